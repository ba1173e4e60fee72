//! A chunk of keys, or of values, of one key head.
//!
//! Doors: [`Chunk`], [`ChunkAhead`].

use std::ops::Range;

use super::cache::{KeysAndValues, Stored};
use super::element::KvElement;
use super::groups::{GROUP_SIZE, copy_keys, copy_values, numbers_of_value, padded_dim};
use super::products::{Dots, STEP_VALUES};
use crate::isa::{LANES, Simd};
use crate::lines::{BLOCK_COLUMNS, Line, STEP_LINES, TILE_SIZE};

/// Keys per update of the running softmax: their keys and values stay in the caches while all queries use them.
pub(super) const CHUNK_KEYS: usize = 64;
/// Steps of a chunk's keys.
pub(super) const CHUNK_STEPS: usize = CHUNK_KEYS / STEP_VALUES;
/// Groups of a chunk.
pub(super) const CHUNK_GROUPS: usize = CHUNK_KEYS / GROUP_SIZE;
/// Keys whose scores are one product's columns.
pub(super) const PART_KEYS: usize = BLOCK_COLUMNS;

/// The scores of a query and the keys of a chunk, then their weights.
pub(super) type ChunkWeights = [f32; CHUNK_KEYS];

/// The keys, or values, of a chunk for one key head.
pub(super) struct Chunk<'a, E: KvElement> {
    groups: [&'a [E::Stored]; CHUNK_GROUPS],
    num_groups: usize,
    /// Factors of the vectors, where they have some.
    scales: ChunkWeights,
}

/// The keys and values of the next chunk, which the caches are asked for a few lines at a time while this one is multiplied: there are
/// few places for lines that are under way.
pub(super) struct ChunkAhead<'a, E: KvElement> {
    cache: &'a KeysAndValues<E>,
    /// Of the first key of each group.
    places: &'a [usize],
    head_dim: usize,
    /// Groups of keys, then of values, that were asked for, and lines of the next.
    num_groups: usize,
    num_lines: usize,
}

impl<'a, E: KvElement> Chunk<'a, E> {
    /// Groups whose first vectors have these places.
    #[inline(always)]
    pub(super) fn new(stored: &'a Stored<E>, places: &[usize], head_dim: usize) -> Self {
        let dim = padded_dim(head_dim);
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

    /// A copy of keys in whole lines.
    pub(super) fn copy_keys<'c>(&self, to: &'c mut Vec<E::Stored>) -> Chunk<'c, E> {
        self.copy(to, copy_keys::<E>)
    }

    /// A copy of values in whole lines, with zeros in place of all but some.
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
        let mut groups: [&[E::Stored]; CHUNK_GROUPS] = [&[]; CHUNK_GROUPS];
        groups.iter_mut().zip(to.chunks_exact(group_len)).for_each(|(group, copied)| *group = copied);
        Chunk { groups, num_groups: self.num_groups, scales: self.scales }
    }

    #[inline(always)]
    pub(super) fn groups(&self) -> &[&'a [E::Stored]] {
        &self.groups[..self.num_groups]
    }

    /// Whether all of its numbers are. Factors are not looked at.
    pub(super) fn is_finite(&self) -> bool {
        let mut is_finite = true;
        for group in self.groups() {
            for number in *group {
                is_finite &= E::is_finite(*number);
            }
        }
        is_finite
    }

    /// Multiplies numbers with the factors of what they belong to.
    #[inline(always)]
    pub(super) fn scale<S: Simd>(&self, simd: S, numbers: &mut ChunkWeights) {
        for (lanes, scales) in numbers.as_chunks_mut().0.iter_mut().zip(self.scales.as_chunks().0) {
            simd.store(simd.mul(simd.load(lanes), simd.load(scales)), lanes);
        }
    }

    /// Keys as columns: `[parts of keys][steps of dimensions][2 tiles][16 words][16 keys]`. Keys that are missing are any numbers.
    #[inline(always)]
    pub(super) fn lay_out_keys<S: Simd, D: Dots<E>>(
        &self,
        simd: S,
        _: D,
        ahead: &mut ChunkAhead<'_, E>,
        to: &mut [Line],
    ) {
        let num_words = self.groups[0].len() / (2 * GROUP_SIZE);
        let part_lines = num_words.div_ceil(TILE_SIZE) * STEP_LINES;
        for (idx, group) in self.groups().iter().enumerate() {
            let (part, tile) = (idx * GROUP_SIZE / PART_KEYS, idx * GROUP_SIZE % PART_KEYS / TILE_SIZE);
            let part = &mut to[part * part_lines..][..part_lines];
            for (step, to) in part.chunks_exact_mut(STEP_LINES).enumerate() {
                for (word, to) in (step * TILE_SIZE..).zip(&mut to[tile * TILE_SIZE..][..TILE_SIZE]) {
                    if word < num_words {
                        D::lay_out(simd, &group[word * 2 * GROUP_SIZE..], GROUP_SIZE, to);
                    } else {
                        *to = Line([0; LANES]);
                    }
                }
                ahead.ask(simd, TILE_SIZE);
            }
        }
    }

    /// Values as rows: `[steps of dimensions][steps of keys][2 tiles][16 words][16 dimensions]`, zeros in place of those that are missing.
    #[inline(always)]
    pub(super) fn lay_out_values<S: Simd, D: Dots<E>>(
        &self,
        simd: S,
        _: D,
        ahead: &mut ChunkAhead<'_, E>,
        to: &mut [Line],
    ) {
        let dim = self.groups[0].len() / GROUP_SIZE;
        for (word, row) in (0..CHUNK_KEYS / 2).map(|word| (word, word % (GROUP_SIZE / 2) * 2 * dim)) {
            let group = self.groups[word / (GROUP_SIZE / 2)];
            for line in 0..dim.div_ceil(STEP_VALUES) * 2 {
                let (step, tile) = (line / 2, line % 2);
                let to =
                    &mut to[(step * CHUNK_STEPS + word / TILE_SIZE) * STEP_LINES + tile * TILE_SIZE + word % TILE_SIZE];
                if word / (GROUP_SIZE / 2) < self.num_groups && line * LANES < dim {
                    D::lay_out(simd, &group[row + line * LANES * E::NEIGHBOURS..], dim, to);
                } else {
                    *to = Line([0; LANES]);
                }
            }
            ahead.ask(simd, dim / LANES);
        }
    }
}

impl<'a, E: KvElement> ChunkAhead<'a, E> {
    /// Groups whose first keys have these places.
    pub(super) fn new(cache: &'a KeysAndValues<E>, places: &'a [usize], head_dim: usize) -> Self {
        Self { cache, places, head_dim, num_groups: 0, num_lines: 0 }
    }

    /// Asks for as many numbers as fill some lines of bf16.
    #[inline(always)]
    pub(super) fn ask<S: Simd>(&mut self, simd: S, num_lines: usize) {
        self.ask_for(simd, num_lines * size_of::<E::Stored>() / size_of::<u16>());
    }

    /// Asks for all that was not asked for.
    #[inline(always)]
    pub(super) fn ask_for_rest<S: Simd>(&mut self, simd: S) {
        self.ask_for(simd, usize::MAX);
    }

    #[inline(always)]
    fn ask_for<S: Simd>(&mut self, simd: S, mut num_lines: usize) {
        let lines_per_group =
            (GROUP_SIZE * padded_dim(self.head_dim) * size_of::<E::Stored>()).div_ceil(size_of::<Line>());
        let num_places = self.places.len();
        while num_lines > 0 && self.num_groups < 2 * num_places {
            let is_key = self.num_groups < num_places;
            let stored = if is_key { &self.cache.k } else { &self.cache.v };
            let place = self.places[if is_key { self.num_groups } else { self.num_groups - num_places }];
            let first: *const Line = stored.numbers.as_ptr().wrapping_add(place * padded_dim(self.head_dim)).cast();
            let end = lines_per_group.min(self.num_lines.saturating_add(num_lines));
            for line in self.num_lines..end {
                simd.prefetch_second_level(first.wrapping_add(line));
            }
            num_lines -= end - self.num_lines;
            self.num_lines = end;
            if end == lines_per_group {
                (self.num_groups, self.num_lines) = (self.num_groups + 1, 0);
            }
        }
    }
}
