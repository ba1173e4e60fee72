//! A chunk of keys, or of values, of one key head.
//!
//! Entry points: [`Chunk`], [`ChunkAhead`].

use std::ops::Range;

use super::cache::{KeysAndValues, Stored};
use super::element::KvElement;
use super::groups::{GROUP_SIZE, copy_keys, copy_values, keys_to_values, numbers_of_value, padded_dim};
use super::products::{Dots, Keys, RUN_WORDS, Run, Runs, STEP_VALUES, Values};
use crate::isa::{LANES, Simd};
use crate::lines::{BLOCK_COLUMNS, Line, STEP_LINES, TILE_SIZE};

/// The number of keys per update of the running softmax. These keys and their values stay in the processor's caches
/// while all queries use them.
pub(super) const CHUNK_KEYS: usize = 64;
/// The number of steps over the keys of a chunk.
pub(super) const CHUNK_STEPS: usize = CHUNK_KEYS / STEP_VALUES;
/// The number of runs per step.
const STEP_RUNS: usize = TILE_SIZE / RUN_WORDS;
/// The number of groups per chunk.
pub(super) const CHUNK_GROUPS: usize = CHUNK_KEYS / GROUP_SIZE;
/// The number of keys in one product of queries and keys. Each key is a column of the product.
pub(super) const PART_KEYS: usize = BLOCK_COLUMNS;

/// The scores of one query for the keys of a chunk; the softmax replaces them with weights.
pub(super) type ChunkWeights = [f32; CHUNK_KEYS];

/// The keys, or values, of a chunk, for one key head.
pub(super) struct Chunk<'a, E: KvElement> {
    groups: [&'a [E::Stored]; CHUNK_GROUPS],
    num_groups: usize,
    /// The scale factors of the vectors; 1 for types without factors.
    scales: ChunkWeights,
}

/// The keys and values of the next chunk. They are prefetched a few lines at a time while the current chunk is
/// multiplied, because the processor can wait for only a few lines at once.
pub(super) struct ChunkAhead {
    /// The first line of each group of keys, then of each group of values.
    groups: [*const Line; 2 * CHUNK_GROUPS],
    /// The number of lines to prefetch per group: all lines of a key group or of a value group, whichever has fewer. Of
    /// the larger groups, only the first lines are prefetched.
    lines_per_group: usize,
    num_groups: usize,
    /// The group of the next line to prefetch.
    next_group: usize,
    /// The index, in that group, of the next line to prefetch.
    next_line: usize,
}

/// Adjacent lines of a chunk to prefetch.
#[derive(Clone, Copy)]
pub(super) struct PieceAhead {
    first: *const Line,
    num_lines: usize,
}

/// Returns the number of cache lines that numbers fill in memory, given the number of lines they would fill as bf16.
pub(super) const fn stored_lines<E: KvElement>(num_lines: usize) -> usize {
    num_lines * size_of::<E::Stored>() / size_of::<u16>()
}

impl<'a, E: KvElement> Chunk<'a, E> {
    /// Returns the chunk of the groups whose first vectors are at `places`.
    #[inline(always)]
    pub(super) fn new(stored: &'a Stored<E>, places: &[usize], dim: usize) -> Self {
        let dim = padded_dim(dim);
        let mut groups: [&[E::Stored]; CHUNK_GROUPS] = [&[]; CHUNK_GROUPS];
        let mut scales = [1.0; CHUNK_KEYS];
        for (idx, (group, place)) in groups.iter_mut().zip(places).enumerate() {
            *group = &stored.numbers[place * dim..][..GROUP_SIZE * dim];
            if E::HAS_SCALES {
                scales[idx * GROUP_SIZE..][..GROUP_SIZE].copy_from_slice(&stored.scales[*place..][..GROUP_SIZE]);
            }
        }
        Self { groups, num_groups: places.len(), scales }
    }

    /// Writes values to `to`: the first `dim` numbers of each of these keys.
    pub(super) fn values_in_keys<'c>(&self, dim: usize, to: &'c mut Vec<E::Stored>) -> Chunk<'c, E> {
        let group_len = GROUP_SIZE * padded_dim(dim);
        to.resize(CHUNK_GROUPS * group_len, E::Stored::default());
        for (keys, values) in self.groups().iter().zip(to.chunks_exact_mut(group_len)) {
            keys_to_values::<E>(keys, values);
        }
        self.of_groups(to, group_len)
    }

    /// Copies the keys to `to`. Zeros pad their dimensions to a multiple of 16.
    pub(super) fn copy_keys<'c>(&self, to: &'c mut Vec<E::Stored>) -> Chunk<'c, E> {
        self.copy(to, copy_keys::<E>)
    }

    /// Copies the values with the indices `some` in the chunk to `to`. The other values become zeros, and zeros pad the
    /// dimensions to a multiple of 16.
    pub(super) fn copy_values<'c>(&self, some: &Range<usize>, to: &'c mut Vec<E::Stored>) -> Chunk<'c, E> {
        let (mut is_missing, mut slot) = ([true; CHUNK_KEYS], 0);
        is_missing[some.clone()].fill(false);
        self.copy(to, |group, to| {
            copy_values::<E>(group, to);
            for idx in 0..GROUP_SIZE {
                if is_missing[slot + idx] {
                    numbers_of_value::<E>(to, idx).for_each(|number| *number = E::Stored::default());
                }
            }
            slot += GROUP_SIZE;
        })
    }

    fn copy<'c>(
        &self,
        to: &'c mut Vec<E::Stored>,
        mut copy_group: impl FnMut(&[E::Stored], &mut [E::Stored]),
    ) -> Chunk<'c, E> {
        let group_len = (self.groups[0].len() / GROUP_SIZE).next_multiple_of(LANES) * GROUP_SIZE;
        to.resize(CHUNK_GROUPS * group_len, E::Stored::default());
        for (group, to) in self.groups().iter().zip(to.chunks_exact_mut(group_len)) {
            copy_group(group, to);
        }
        self.of_groups(to, group_len)
    }

    /// Returns a chunk with the groups in `copied`, each of `group_len` numbers, and the scale factors of this chunk.
    fn of_groups<'c>(&self, copied: &'c [E::Stored], group_len: usize) -> Chunk<'c, E> {
        let mut groups: [&[E::Stored]; CHUNK_GROUPS] = [&[]; CHUNK_GROUPS];
        groups.iter_mut().zip(copied.chunks_exact(group_len)).for_each(|(group, copied)| *group = copied);
        Chunk { groups, num_groups: self.num_groups, scales: self.scales }
    }

    #[inline(always)]
    pub(super) fn groups(&self) -> &[&'a [E::Stored]] {
        &self.groups[..self.num_groups]
    }

    /// True if every stored number is finite. Scale factors are not checked.
    pub(super) fn is_finite(&self) -> bool {
        let mut is_finite = true;
        for group in self.groups() {
            for number in *group {
                is_finite &= E::is_finite(*number);
            }
        }
        is_finite
    }

    /// Multiplies each score, or weight, by the scale factor of its key, or value.
    #[inline(always)]
    pub(super) fn scale<S: Simd>(&self, simd: S, numbers: &mut ChunkWeights) {
        for (lanes, scales) in numbers.as_chunks_mut().0.iter_mut().zip(self.scales.as_chunks().0) {
            simd.store(simd.mul(simd.load(lanes), simd.load(scales)), lanes);
        }
    }

    /// Writes the keys to `to` as the columns of a matrix, in the order `[keys / 32][dimensions / 32][2 tiles][16
    /// words][16 keys]` (a word has two dimensions of a key). The columns of keys that the chunk lacks are unspecified.
    #[inline(always)]
    pub(super) fn lay_out_keys<S: Simd, D: Dots<E>>(&self, simd: S, dots: D, ahead: &mut ChunkAhead, to: &mut [Line]) {
        let keys = Keys::<E>(self.groups());
        let part_lines = keys.num_runs().div_ceil(STEP_RUNS) * STEP_LINES;
        for idx in 0..keys.num_vectors() {
            let (part, tile) = (idx * GROUP_SIZE / PART_KEYS, idx * GROUP_SIZE % PART_KEYS / TILE_SIZE);
            let part = &mut to[part * part_lines..][..part_lines];
            for (step, to) in part.chunks_exact_mut(STEP_LINES).enumerate() {
                let runs = to[tile * TILE_SIZE..][..TILE_SIZE].chunks_exact_mut(RUN_WORDS);
                for (run, to) in (step * STEP_RUNS..).zip(runs) {
                    if run < keys.num_runs() {
                        lay_out_run(simd, dots, &keys.run(run, idx), to);
                    } else {
                        to.fill(Line([0; LANES]));
                    }
                }
                ahead.ask(simd, stored_lines::<E>(TILE_SIZE));
            }
        }
    }

    /// Writes the values to `to` as the rows of a matrix, in the order `[dimensions / 32][keys / 32][2 tiles][16
    /// words][16 dimensions]` (a word has the numbers of two keys). Groups and dimensions that the chunk lacks become
    /// zeros.
    #[inline(always)]
    pub(super) fn lay_out_values<S: Simd, D: Dots<E>>(
        &self,
        simd: S,
        dots: D,
        ahead: &mut ChunkAhead,
        to: &mut [Line],
    ) {
        let values = Values::<E>(self.groups());
        let num_vectors = values.num_vectors();
        for run in 0..CHUNK_GROUPS {
            for vector in 0..num_vectors.next_multiple_of(STEP_VALUES / LANES) {
                let (step, tile) = (vector / 2, vector % 2);
                let first = (step * CHUNK_STEPS + run / STEP_RUNS) * STEP_LINES
                    + tile * TILE_SIZE
                    + run % STEP_RUNS * RUN_WORDS;
                let to = &mut to[first..][..RUN_WORDS];
                if run < values.num_runs() && vector < num_vectors {
                    lay_out_run(simd, dots, &values.run(run, vector), to);
                } else {
                    to.fill(Line([0; LANES]));
                }
                ahead.ask(simd, stored_lines::<E>(RUN_WORDS));
            }
        }
    }
}

/// Writes the words of a run to `to`, one line per word.
#[inline(always)]
fn lay_out_run<S: Simd, E: KvElement, D: Dots<E>>(simd: S, _: D, run: &Run<'_, E, 1>, to: &mut [Line]) {
    for (word, to) in to.iter_mut().enumerate() {
        D::lay_out(simd, run.word(word, 0), to);
    }
}

impl ChunkAhead {
    /// Returns the groups to prefetch: their first keys, and values, are at `places`. `dims` are the numbers of
    /// dimensions of a key and of a value.
    #[inline(always)]
    pub(super) fn new<E: KvElement>(cache: &KeysAndValues<E>, places: &[usize], dims: [usize; 2]) -> Self {
        let dims = dims.map(padded_dim);
        let mut groups = [std::ptr::null(); 2 * CHUNK_GROUPS];
        let stored = std::iter::once(&cache.k).chain(&cache.v).zip(dims);
        let num_groups = stored.clone().count() * places.len();
        let dim = stored.clone().map(|(_, dim)| dim).min().unwrap_or(0);
        let of_keys_then_values = stored.flat_map(|stored| places.iter().map(move |place| (stored, place)));
        for (group, ((stored, dim), place)) in groups.iter_mut().zip(of_keys_then_values) {
            *group = stored.numbers.as_ptr().wrapping_add(place * dim).cast();
        }
        let lines_per_group = (GROUP_SIZE * dim * size_of::<E::Stored>()).div_ceil(size_of::<Line>());
        Self { groups, lines_per_group, num_groups, next_group: 0, next_line: 0 }
    }

    /// Takes the next lines to prefetch: at most `num_lines`, all of one group.
    #[inline(always)]
    pub(super) fn take(&mut self, num_lines: usize) -> PieceAhead {
        if self.next_group == self.num_groups {
            return PieceAhead { first: std::ptr::null(), num_lines: 0 };
        }
        let first = self.groups[self.next_group].wrapping_add(self.next_line);
        let num_lines = num_lines.min(self.lines_per_group - self.next_line);
        self.next_line += num_lines;
        if self.next_line == self.lines_per_group {
            (self.next_group, self.next_line) = (self.next_group + 1, 0);
        }
        PieceAhead { first, num_lines }
    }

    /// Prefetches the next lines: at most `num_lines`, all of one group.
    #[inline(always)]
    pub(super) fn ask<S: Simd>(&mut self, simd: S, num_lines: usize) {
        let PieceAhead { first, num_lines } = self.take(num_lines);
        for line in 0..num_lines {
            simd.prefetch_second_level(first.wrapping_add(line));
        }
    }

    /// Prefetches all remaining lines.
    #[inline(always)]
    pub(super) fn ask_for_rest<S: Simd>(&mut self, simd: S) {
        while self.next_group < self.num_groups {
            self.ask(simd, self.lines_per_group);
        }
    }
}

impl PieceAhead {
    /// Prefetches `LINES` lines from index `first` on, or none if `first` is past the end. The last of these lines may
    /// be past the end.
    #[inline(always)]
    pub(super) fn ask<S: Simd, const LINES: usize>(self, simd: S, first: usize) {
        if first < self.num_lines {
            for line in first..first + LINES {
                simd.prefetch_second_level(self.first.wrapping_add(line));
            }
        }
    }
}
