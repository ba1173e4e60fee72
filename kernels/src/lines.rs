//! Large buffers, on huge pages if the system provides them; cache lines (64 bytes); the operands and sums of block
//! products.
//!
//! Entry points: [`Lines`]; [`LeftSide`], [`RightSide`] and [`Block`]. Huge pages are faster to allocate and to read
//! sequentially.

#![expect(unsafe_code, reason = "zeroed bytes of the system are lines of numbers")]

use std::alloc::{Layout, handle_alloc_error};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::MmapMut;

use crate::isa::Simd;

/// The number of rows of a block: those of two AMX tiles.
pub(crate) const BLOCK_ROWS: usize = 32;
/// The number of columns of a block: those of two AMX tiles.
pub(crate) const BLOCK_COLUMNS: usize = 32;
/// The number of rows of a tile, and of columns of a tile of sums.
pub(crate) const TILE_SIZE: usize = 16;
/// The number of lines of the right-hand side per step: those of two tiles.
pub(crate) const STEP_LINES: usize = 2 * TILE_SIZE;

/// The size of a mapping that weights share. Weights of at most [`MAX_SHARING_BYTES`] do, such as those of experts:
/// alone, they would be too small for huge pages.
const CHUNK_BYTES: usize = 64 << 20;
const MAX_SHARING_BYTES: usize = CHUNK_BYTES / 2;

/// A cache line of sixteen words, for example of 32 bf16 or 64 int8 values.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u32; 16]);

/// The sums or the values of a block, `[rows, columns]`. Sums of integers are i32, everything else is f32.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(crate) struct Block<T>(pub(crate) [[T; BLOCK_COLUMNS]; BLOCK_ROWS]);

/// Rounds `values` to the nearest bf16 and stores two in each word.
#[inline(always)]
pub(crate) fn bf16_line(line: &mut Line, values: &[f32; 32]) {
    for (word, pair) in line.0.iter_mut().zip(values.as_chunks::<2>().0) {
        *word = bf16_bits(pair[1]) & 0xffff_0000 | bf16_bits(pair[0]) >> 16;
    }
}

/// Returns the bf16 nearest to `value` (ties to even) in the upper half of the result; the lower half is unspecified.
#[inline(always)]
fn bf16_bits(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    if value.is_nan() { bits | 0x40_0000 } else { rounded }
}

/// Lines that will be read soon. Each step of a product prefetches `lines_per_step` of them, with tiles at least one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ahead {
    pub(crate) first: *const Line,
    pub(crate) lines_per_step: usize,
}

/// The left-hand side of a product: the rows of a block. Each row has one line per step and part (`Dots::num_parts`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeftSide<'a> {
    /// `[steps][num_rows][parts]`
    pub(crate) lines: &'a [Line],
    pub(crate) num_rows: usize,
}

/// The right-hand side of a product: the lines of some steps, and the lines to prefetch meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RightSide<'a> {
    pub(crate) lines: &'a [Line],
    pub(crate) ahead: Ahead,
}

impl Ahead {
    /// Returns an `Ahead` for `lines` that are in the caches already. Nothing is prefetched, except that tiles prefetch
    /// one of these lines per step.
    pub(crate) fn nothing(lines: &[Line]) -> Self {
        Self { first: lines.as_ptr(), lines_per_step: 0 }
    }

    /// Splits the lines among `num_shares` products of `num_steps` steps. A share may have no lines.
    #[inline(always)]
    pub(crate) fn shares(self, num_shares: usize, num_steps: usize) -> impl Iterator<Item = Self> {
        (0..num_shares).map(move |idx| {
            let [start, end] = [idx, idx + 1].map(|idx| self.lines_per_step * idx / num_shares);
            Self { first: self.first.wrapping_add(start * num_steps), lines_per_step: end - start }
        })
    }

    /// Prefetches the range `lines` of the lines that belong to `step`. The part of the range beyond `lines_per_step`
    /// is left out.
    #[inline(always)]
    pub(crate) fn prefetch<S: Simd>(self, simd: S, step: usize, lines: Range<usize>) {
        let first = self.first.wrapping_add(step * self.lines_per_step);
        for line in lines.start..lines.end.min(self.lines_per_step) {
            simd.prefetch(first.wrapping_add(line));
        }
    }
}

/// A number or an array of numbers, for which zeroed memory is valid.
///
/// # Safety
/// Every bit pattern must be a valid value, and the alignment must not exceed that of a [`Line`].
pub(crate) unsafe trait Numbers: Copy {}

// SAFETY: every bit pattern is an integer or a float, and the alignment is at most a line's, 64 bytes.
unsafe impl Numbers for Line {}
// SAFETY: as above.
unsafe impl Numbers for f32 {}
// SAFETY: as above.
unsafe impl Numbers for u16 {}
// SAFETY: as above.
unsafe impl Numbers for i8 {}
// SAFETY: as above.
unsafe impl<const LEN: usize, const COUNT: usize> Numbers for [[u16; LEN]; COUNT] {}
// SAFETY: as above.
unsafe impl<const LEN: usize, const COUNT: usize> Numbers for [[f32; LEN]; COUNT] {}

/// A slice of lines, or of other numbers, in memory that is mapped from the system.
#[derive(Debug)]
pub(crate) struct Lines<L = Line> {
    /// The mapping that `first` points into.
    _mapping: Arc<MmapMut>,
    first: NonNull<L>,
    len: usize,
}

/// A mapping that many slices share.
struct Chunk {
    /// Empty when all its slices have been dropped.
    mapping: Weak<MmapMut>,
    first: NonNull<u8>,
    used_bytes: usize,
}

// SAFETY: a slice owns the lines that it points to.
unsafe impl<L: Numbers + Send> Send for Lines<L> {}
// SAFETY: as above.
unsafe impl<L: Numbers + Sync> Sync for Lines<L> {}
// SAFETY: the pointer is only used for lines that nothing else points to.
unsafe impl Send for Chunk {}

/// The newest chunk.
static CHUNK: Mutex<Option<Chunk>> = Mutex::new(None);

impl<L: Numbers> Lines<L> {
    /// Allocates `len` lines of zeros in pages of their own. The system provides a page when it is first written or
    /// read. The process is aborted if the system refuses the memory.
    pub(crate) fn zeros(len: usize) -> Self {
        Self::try_zeros(len).unwrap_or_else(|_| {
            let layout = Layout::from_size_align(len * size_of::<L>(), align_of::<L>());
            handle_alloc_error(layout.unwrap_or(Layout::new::<L>()))
        })
    }

    /// Allocates like [`Lines::zeros`], for sizes that the system may well refuse.
    ///
    /// # Errors
    /// When the system refuses the memory, or its size in bytes exceeds `usize`.
    pub(crate) fn try_zeros(len: usize) -> io::Result<Self> {
        let size_bytes = len.checked_mul(size_of::<L>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let (mapping, first) = map(size_bytes)?;
        Ok(Self { _mapping: mapping, first: first.cast(), len })
    }

    /// Allocates like [`Lines::zeros`], for weights: small ones share huge pages. Their memory is freed when all that
    /// share a mapping have been dropped.
    pub(crate) fn of_weight(len: usize) -> Self {
        let size_bytes = len.saturating_mul(size_of::<L>());
        if size_bytes > MAX_SHARING_BYTES {
            return Self::zeros(len);
        }
        let mut newest = CHUNK.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((mapping, first)) = newest.as_mut().and_then(|chunk| chunk.take(size_bytes)) {
            return Self { _mapping: mapping, first: first.cast(), len };
        }
        let Ok((mapping, first)) = map(CHUNK_BYTES) else { return Self::zeros(len) };
        let used_bytes = size_bytes.next_multiple_of(size_of::<Line>());
        *newest = Some(Chunk { mapping: Arc::downgrade(&mapping), first, used_bytes });
        Self { _mapping: mapping, first: first.cast(), len }
    }
}

impl Chunk {
    /// Returns the mapping and the first of `size_bytes` bytes that no slice has had; `None` if there are too few, or
    /// the mapping is gone.
    fn take(&mut self, size_bytes: usize) -> Option<(Arc<MmapMut>, NonNull<u8>)> {
        let mapping = self.mapping.upgrade()?;
        let start = self.used_bytes;
        let end = start + size_bytes.next_multiple_of(size_of::<Line>());
        if end > CHUNK_BYTES {
            return None;
        }
        self.used_bytes = end;
        // SAFETY: the mapping has `CHUNK_BYTES` bytes, and `start` is at most `end`.
        Some((mapping, unsafe { self.first.add(start) }))
    }
}

/// Maps zeros, on huge pages if possible. Returns the mapping, and its first byte.
fn map(size_bytes: usize) -> io::Result<(Arc<MmapMut>, NonNull<u8>)> {
    let mut pages = MmapMut::map_anon(size_bytes)?;
    // A failure is harmless: small pages are only slower.
    #[cfg(target_os = "linux")]
    let _ = pages.advise(memmap2::Advice::HugePage);
    let first = NonNull::new(pages.as_mut_ptr()).expect("a mapping is not at address 0");
    Ok((Arc::new(pages), first))
}

impl<L: Numbers> Deref for Lines<L> {
    type Target = [L];

    fn deref(&self) -> &[L] {
        // SAFETY: `first` has `len` lines of a mapping that `self` keeps, which no other slice has. It is aligned to a
        // line, and `L: Numbers` promises that every bit pattern is a value.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<L: Numbers> DerefMut for Lines<L> {
    fn deref_mut(&mut self) -> &mut [L] {
        // SAFETY: as in `deref`, and `&mut self` makes the borrow exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_zero_and_keep_what_is_written() {
        for len in [0, 1, 64, 70_001] {
            let mut lines = Lines::<Line>::zeros(len);
            assert_eq!(lines.len(), len);
            assert!(lines.iter().all(|line| line.0 == [0; 16]), "{len}");
            lines.iter_mut().zip(0..).for_each(|(line, i)| line.0 = [i; 16]);
            assert!(lines.iter().zip(0..).all(|(line, i)| line.0 == [i; 16]), "{len}");
        }
    }

    #[test]
    fn a_chunk_gives_each_byte_once() {
        let (mapping, first) = map(CHUNK_BYTES).unwrap();
        let mut chunk = Chunk { mapping: Arc::downgrade(&mapping), first, used_bytes: 0 };
        let mut take = |size_bytes| chunk.take(size_bytes).map(|(_, start)| start.addr().get() - first.addr().get());
        assert_eq!([take(1), take(65), take(64)], [Some(0), Some(64), Some(192)]);
        assert_eq!(take(CHUNK_BYTES - 255), None);
        assert_eq!([take(CHUNK_BYTES - 256), take(1)], [Some(256), None]);
        chunk.used_bytes = 0;
        drop(mapping);
        assert!(chunk.take(1).is_none(), "the mapping is gone");
    }

    #[test]
    fn weights_share_no_lines() {
        let sizes = [1, 1000, MAX_SHARING_BYTES / 64, 3, MAX_SHARING_BYTES / 64, MAX_SHARING_BYTES / 64 + 1];
        let mut weights: Vec<Lines> = sizes.map(Lines::of_weight).into();
        for (lines, i) in weights.iter_mut().zip(1..) {
            assert!(lines.iter().all(|line| line.0 == [0; 16]));
            lines.fill(Line([i; 16]));
        }
        for ((lines, i), len) in weights.iter().zip(1..).zip(sizes) {
            assert!(lines.len() == len && lines.iter().all(|line| line.0 == [i; 16]), "{len}");
        }
    }
}
