//! Values between private memory and the staging buffers, through raw pointers.
//!
//! These functions do not synchronise. Each asks its caller for a time when nobody writes what is read and nobody uses
//! what is written; [`crate::group`] has such times between its meetings.

#![expect(unsafe_code, reason = "other processes write the memory that is read here, at other times")]

use std::ptr;

use crate::region::{CHUNK_LEN, Region};

/// Values added up at a time, so that a sum of many ranks stays in the nearest cache until it is complete.
const BLOCK_LEN: usize = 1024;

/// Where in the staging of all ranks: one of the two buffers, from one of its values on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) buffer: usize,
    pub(crate) offset: usize,
}

impl Place {
    /// The first of `len` values of one rank.
    ///
    /// # Panics
    /// When the buffer has fewer.
    fn of_rank(self, region: &Region, rank: usize, len: usize) -> *mut f32 {
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
/// No other rank or thread uses that part of its staging meanwhile.
pub(crate) unsafe fn write(region: &Region, rank: usize, place: Place, values: &[f32]) {
    let staged = place.of_rank(region, rank, values.len());
    // SAFETY: `of_rank` checked the bounds; the caller keeps others away; private memory does not overlap the mapping.
    unsafe { ptr::copy_nonoverlapping(values.as_ptr(), staged, values.len()) }
}

/// Copies values out of the staging of `rank`.
///
/// # Safety
/// What was staged happened before, and nobody writes to that part meanwhile.
pub(crate) unsafe fn read(region: &Region, rank: usize, place: Place, values: &mut [f32]) {
    let staged = place.of_rank(region, rank, values.len());
    // SAFETY: `of_rank` checked the bounds; the caller keeps writers away; all bits are an f32; private memory does not
    // overlap the mapping.
    unsafe { ptr::copy_nonoverlapping(staged, values.as_mut_ptr(), values.len()) }
}

/// Adds up what all ranks staged, from the first to the last.
///
/// # Safety
/// As for [`read`], for all ranks.
pub(crate) unsafe fn sum(region: &Region, place: Place, sums: &mut [f32]) {
    if region.world_size() == 1 {
        // SAFETY: as the caller promised.
        return unsafe { read(region, 0, place, sums) };
    }
    for (index, block) in sums.chunks_mut(BLOCK_LEN).enumerate() {
        let place = place.after(index * BLOCK_LEN);
        let staged = |rank| place.of_rank(region, rank, block.len()).cast_const();
        let (first, second) = (staged(0), staged(1));
        // SAFETY: `of_rank` checked the bounds, and nobody writes, as the caller promised.
        unsafe { add_two(first, second, block) };
        for rank in 2..region.world_size() {
            let next = place.of_rank(region, rank, block.len());
            // SAFETY: as above.
            unsafe { add(next, block) };
        }
    }
}

/// # Safety
/// Both point to as many values as there are sums, which nobody writes meanwhile.
// Not inlined, so that every rank runs the same instructions: which of two NaNs an addition keeps depends on their
// order.
#[inline(never)]
unsafe fn add_two(first: *const f32, second: *const f32, sums: &mut [f32]) {
    for (index, sum) in sums.iter_mut().enumerate() {
        // SAFETY: there are as many values as sums.
        *sum = unsafe { first.add(index).read() + second.add(index).read() };
    }
}

/// # Safety
/// It points to as many values as there are sums, which nobody writes meanwhile.
#[inline(never)]
unsafe fn add(next: *const f32, sums: &mut [f32]) {
    for (index, sum) in sums.iter_mut().enumerate() {
        // SAFETY: there are as many values as sums.
        *sum += unsafe { next.add(index).read() };
    }
}
