//! Copies values between private memory and the staging buffers, through raw pointers.
//!
//! These functions do not synchronise. The caller must ensure that nothing writes what is read and nothing uses what is
//! written; [`crate::group`] ensures it by its meetings.

#![expect(unsafe_code, reason = "other processes write the memory that is read here, at other times")]

use std::ptr;

use crate::region::{CHUNK_LEN, Region};

/// The number of values that are added up over all ranks before the next ones, so that the sums stay in the first-level
/// cache until they are complete.
const BLOCK_LEN: usize = 1024;

/// A position in the staging of a rank: one of its two buffers, and an offset in values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) buffer: usize,
    pub(crate) offset: usize,
}

impl Place {
    /// A pointer to the first of `len` values of one rank.
    ///
    /// # Panics
    /// When the values would exceed the buffer.
    fn pointer(self, region: &Region, rank: usize, len: usize) -> *mut f32 {
        let is_inside = self.offset <= CHUNK_LEN && len <= CHUNK_LEN - self.offset;
        assert!(is_inside, "{len} values at {} of a buffer of {CHUNK_LEN}", self.offset);
        region.buffer(rank, self.buffer).wrapping_add(self.offset)
    }

    fn after(self, len: usize) -> Self {
        Self { offset: self.offset + len, ..self }
    }
}

/// Copies values into the staging of `rank`.
///
/// # Safety
/// No other rank or thread may use the memory that is written meanwhile.
pub(crate) unsafe fn write(region: &Region, rank: usize, place: Place, values: &[f32]) {
    let staged = place.pointer(region, rank, values.len());
    // SAFETY: `pointer` checked the bounds, the caller ensures that nothing else uses this memory, and private memory
    // does not overlap the mapping.
    unsafe { ptr::copy_nonoverlapping(values.as_ptr(), staged, values.len()) }
}

/// Copies values out of the staging of `rank`.
///
/// # Safety
/// The rank must have staged the values before, ordered by a meeting, and nothing may write to them meanwhile.
pub(crate) unsafe fn read(region: &Region, rank: usize, place: Place, values: &mut [f32]) {
    let staged = place.pointer(region, rank, values.len());
    // SAFETY: `pointer` checked the bounds, the caller ensures that nothing writes this memory, every bit pattern is
    // an f32, and private memory does not overlap the mapping.
    unsafe { ptr::copy_nonoverlapping(staged, values.as_mut_ptr(), values.len()) }
}

/// Adds up the staged values of all ranks, from the first to the last.
///
/// # Safety
/// As for [`read`], for all ranks.
pub(crate) unsafe fn sum(region: &Region, place: Place, sums: &mut [f32]) {
    if region.num_ranks() == 1 {
        // SAFETY: the caller ensures what `read` requires.
        return unsafe { read(region, 0, place, sums) };
    }
    for (index, block) in sums.chunks_mut(BLOCK_LEN).enumerate() {
        let place = place.after(index * BLOCK_LEN);
        let staged = |rank| place.pointer(region, rank, block.len()).cast_const();
        let (first, second) = (staged(0), staged(1));
        // SAFETY: `pointer` checked the bounds, and the caller ensures that nothing writes the values.
        unsafe { add_two(first, second, block) };
        for rank in 2..region.num_ranks() {
            let next = place.pointer(region, rank, block.len());
            // SAFETY: as for `add_two`.
            unsafe { add(next, block) };
        }
    }
}

/// Writes the sums of two ranks' values.
///
/// # Safety
/// Both pointers point to as many values as there are sums, and nothing writes them meanwhile.
// Not inlined, so that every rank runs the same instructions: the order of the operands decides which of two NaNs an
// addition returns.
#[inline(never)]
unsafe fn add_two(first: *const f32, second: *const f32, sums: &mut [f32]) {
    for (index, sum) in sums.iter_mut().enumerate() {
        // SAFETY: there are as many values as sums.
        *sum = unsafe { first.add(index).read() + second.add(index).read() };
    }
}

/// Adds one rank's values to the sums.
///
/// # Safety
/// `next` points to as many values as there are sums, and nothing writes them meanwhile.
#[inline(never)]
unsafe fn add(next: *const f32, sums: &mut [f32]) {
    for (index, sum) in sums.iter_mut().enumerate() {
        // SAFETY: there are as many values as sums.
        *sum += unsafe { next.add(index).read() };
    }
}
