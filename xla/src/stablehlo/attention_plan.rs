//! The sizes of the loops of attention: tiles of queries, chunks of contexts, and how often a loop runs.
//!
//! Entry point: [`Plan::new`].

use backend::BLOCK_SIZE;
use devices::{DecodeLoop, HeadForm};
use model::graph::{AttentionSpec, DType};

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
    pub(super) num_items: Option<usize>,
    pub(super) form: HeadForm,
    pub(super) window: Option<usize>,
    pub(super) soft_cap: Option<f32>,
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
fn reach(context: usize, window: Option<usize>) -> usize {
    let chunk = DECODE_CHUNK_BLOCKS * BLOCK_SIZE;
    let of_window = window.map_or(usize::MAX, |window| (window + BLOCK_SIZE).next_multiple_of(chunk));
    context.next_multiple_of(BLOCK_SIZE).min(of_window)
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
            DecodeLoop::List(num_items) if is_decode => Some(num_items.min(num_tiles)),
            DecodeLoop::List(_) | DecodeLoop::EveryRow => None,
        };
        let together = num_items.unwrap_or(group);
        let is_too_large = |blocks: usize| {
            together * blocks * block_bytes > sizes.chunk_bytes || together * blocks * score_bytes > MAX_SCORE_BYTES
        };
        let AttentionSpec { keys: _, values: _, scale: _, window, soft_cap } = *spec;
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

    /// Returns the number of iterations of the loop in a program that decodes, for rows with these lengths of context.
    /// If the layer has a window, the loop may have fewer.
    pub(crate) fn decode_rounds(&self, contexts: &[usize]) -> usize {
        let chunk = self.chunk_blocks * BLOCK_SIZE;
        match (self.reach, self.num_items) {
            (_, Some(num_items)) => contexts.iter().map(|len| len.div_ceil(chunk)).sum::<usize>().div_ceil(num_items),
            (Some(reach), None) => reach.div_ceil(chunk),
            (None, None) => contexts.iter().max().map_or(0, |longest| longest.div_ceil(chunk)),
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
