//! The sizes of the loops of attention: tiles of queries, chunks of contexts, and how often a loop runs.
//!
//! Entry point: [`Plan::new`].

use backend::BLOCK_SIZE;
use devices::{DecodeLoop, HeadForm};
use model::graph::{AttentionSpec, DType, Window};

use super::inputs::Sizes;

/// The maximum number of blocks of a row in a chunk, in programs that decode, unless they are for a fixed length of
/// context.
const DECODE_CHUNK_BLOCKS: usize = 16;
/// The maximum number of blocks of a row in a chunk, in programs that are not for a fixed length of context.
pub(crate) const MAX_CHUNK_BLOCKS: usize = 32;
/// The maximum number of tokens whose queries form a tile. They belong to one row and read its context together.
pub(crate) const QUERY_TILE: usize = 256;
/// The number of bytes of an iteration's scores above which chunks are made smaller, so that the scores stay in fast
/// memory together with the chunks. Programs for a fixed length of context have no such limit.
const MAX_SCORE_BYTES: usize = 16 << 20;

/// The heads of an attention layer on one rank, and the type of the keys and values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) kv_heads: usize,
    pub(crate) value_dim: usize,
    pub(crate) dtype: DType,
}

/// The sizes and settings of the loops.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) value_dim: usize,
    /// The number of tokens whose queries form a tile, all of one row.
    pub(super) tile: usize,
    pub(super) num_tiles: usize,
    /// The number of tiles that read their contexts in the same loop.
    pub(super) group: usize,
    pub(super) chunk_blocks: usize,
    /// The number of tokens, from the first key of each tile, that a group of tiles reads; `None` if the tile that
    /// needs the most keys determines it.
    pub(super) reach: Option<usize>,
    /// The number of chunks of any tiles that an iteration reads; `None` if it reads the next chunk of every tile.
    pub(super) num_items: Option<ItemCounts>,
    pub(super) form: HeadForm,
    pub(super) window: Option<Window>,
    pub(super) soft_cap: Option<f32>,
}

/// The numbers of chunks that the iterations of the two loops over a list read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ItemCounts {
    /// The number that each iteration of the first loop reads.
    pub(super) many: usize,
    /// The number that each iteration of the second loop reads, which takes the rest; a divisor of `many`.
    pub(super) few: usize,
}

/// The numbers of iterations of the loops of a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rounds {
    /// The iterations of the only loop, or of the first loop over a list.
    pub(crate) full: usize,
    /// The iterations of the loop over the rest of a list.
    pub(crate) rest: usize,
}

/// Returns `most`, halved while that number of blocks is too large; at least 1.
fn chunk_blocks(most: usize, is_too_large: impl Fn(usize) -> bool) -> usize {
    let mut blocks = most;
    while blocks > 1 && is_too_large(blocks) {
        blocks /= 2;
    }
    blocks
}

/// Returns the number of tokens that a decoding row reads of a context of `context` tokens, in whole blocks. With a
/// window, the row reads from the start of the block in which the window begins, in whole chunks, so that the number of
/// blocks can be halved.
fn reach(context: usize, window: Option<Window>) -> usize {
    let chunk = DECODE_CHUNK_BLOCKS * BLOCK_SIZE;
    let of_window = window.map_or(usize::MAX, |window| (window.num_keys() + BLOCK_SIZE).next_multiple_of(chunk));
    context.next_multiple_of(BLOCK_SIZE).min(of_window)
}

impl ItemCounts {
    /// Returns these numbers. If `few` does not divide `many`, all iterations read `many`.
    fn new(many: usize, few: usize) -> Self {
        Self { many, few: if few > 0 && many.is_multiple_of(few) { few } else { many } }
    }

    /// Returns the largest number of chunks that are left to the second loop. If more are left, another iteration of
    /// the first loop reads no more than the second loop would.
    pub(super) fn most_of_rest(self) -> usize {
        self.many - self.few
    }

    /// Returns the numbers of iterations for a list of `len` chunks.
    fn rounds(self, len: usize) -> Rounds {
        let full = len.saturating_sub(self.most_of_rest()).div_ceil(self.many);
        Rounds { full, rest: len.saturating_sub(full * self.many).div_ceil(self.few) }
    }
}

impl Plan {
    /// Returns the plan of a layer in a program of `sizes`.
    pub(crate) fn new(dims: Heads, sizes: &Sizes, spec: &AttentionSpec) -> Self {
        let Heads { heads, head_dim, kv_heads, value_dim, dtype } = dims;
        let tile = sizes.tokens_per_row.min(QUERY_TILE);
        let num_tiles = sizes.rows * sizes.tokens_per_row / tile;
        let is_decode = sizes.tokens_per_row == 1;
        let form = if is_decode && kv_heads > 1 { sizes.decode_heads } else { HeadForm::Split };
        let group = if is_decode { num_tiles } else { (QUERY_TILE / tile).min(num_tiles) };
        let most = if is_decode { DECODE_CHUNK_BLOCKS } else { MAX_CHUNK_BLOCKS };
        let block_bytes = BLOCK_SIZE * kv_heads * head_dim.max(value_dim) * dtype.size_bytes() as usize;
        let score_bytes = tile * heads * BLOCK_SIZE * DType::F32.size_bytes() as usize;
        let num_items = match sizes.decode_loop {
            DecodeLoop::List { many, few } if is_decode => Some(ItemCounts::new(many.min(num_tiles), few)),
            DecodeLoop::List { .. } | DecodeLoop::EveryRow => None,
        };
        let together = num_items.map_or(group, |counts| counts.many);
        let is_too_large = |blocks: usize| {
            together * blocks * block_bytes > sizes.chunk_bytes || together * blocks * score_bytes > MAX_SCORE_BYTES
        };
        let AttentionSpec { keys: _, values: _, scale: _, window, soft_cap, slopes: _ } = *spec;
        let reach = sizes.context.filter(|_| is_decode).map(|context| reach(context, window));
        let chunk_blocks = match reach {
            Some(reach) => chunk_blocks(reach / BLOCK_SIZE, |blocks| {
                blocks % 2 == 0 && group * blocks * block_bytes > sizes.chunk_bytes
            }),
            None => chunk_blocks(most.min(sizes.blocks_per_row), is_too_large),
        };
        Self {
            heads,
            kv_heads,
            head_dim,
            value_dim,
            tile,
            num_tiles,
            group,
            chunk_blocks,
            reach,
            num_items,
            form,
            window,
            soft_cap,
        }
    }

    /// Returns the score of a key that a query does not see. With a window the score is finite, because a chunk may
    /// contain no key that the query sees.
    pub(super) fn unseen(&self) -> f64 {
        if self.window.is_some() { f64::from(f32::MIN) } else { f64::NEG_INFINITY }
    }

    /// Returns the numbers of iterations of the loops in a program that decodes, for rows with these lengths of
    /// context. If the layer has a window, the loops may have fewer.
    pub(crate) fn decode_rounds(&self, contexts: &[usize]) -> Rounds {
        let chunk = self.chunk_blocks * BLOCK_SIZE;
        match (self.reach, self.num_items) {
            (_, Some(counts)) => counts.rounds(contexts.iter().map(|len| len.div_ceil(chunk)).sum()),
            (Some(reach), None) => Rounds { full: reach.div_ceil(chunk), rest: 0 },
            (None, None) => {
                let longest = contexts.iter().max().map_or(0, |longest| longest.div_ceil(chunk));
                Rounds { full: longest, rest: 0 }
            }
        }
    }

    /// Returns the last dimension of the loop's output.
    pub(super) fn output_width(&self) -> usize {
        match self.form {
            HeadForm::Split => self.value_dim,
            HeadForm::Wide => self.kv_heads * self.value_dim,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_with_few_chunks_after_its_end() {
        let counts = ItemCounts::new(32, 8);
        assert_eq!(counts.rounds(79), Rounds { full: 2, rest: 2 });
        assert_eq!(
            [24, 25, 256].map(|len| counts.rounds(len)),
            [[0, 3], [1, 0], [8, 0]].map(|[full, rest]| Rounds { full, rest })
        );
        for (many, few) in [(32, 8), (4, 2), (8, 8), (6, 4), (1, 8)] {
            let counts = ItemCounts::new(many, few);
            for len in 0..200 {
                let Rounds { full, rest } = counts.rounds(len);
                let read = full * counts.many + rest * counts.few;
                assert!((len..len + counts.few).contains(&read), "{counts:?}: {read} of {len} chunks");
            }
        }
    }
}
