//! The cache of keys and values of an attention layer, on the device.
//!
//! Entry points: [`Cache`], [`write`]. The keys of a layer are `[num_blocks, block_size, kv_heads * head_dim]`, its
//! values `[num_blocks, block_size, kv_heads * value_dim]` or the first numbers of the keys.

use backend::BLOCK_SIZE;
use model::graph::DType;

use super::attention::Batch;
use super::emitter::{Combine, Emitter};
use super::history::or_out_of_bounds;
use super::tensor::{Tensor, Type};

/// The arrays in which a layer keeps keys and values.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    /// `[num_blocks, block_size, kv_heads * head_dim]`
    pub(super) keys: Tensor,
    /// `[num_blocks, block_size, kv_heads * value_dim]`, or the part of each key that is its value.
    pub(super) values: CachedValues,
}

/// The place of the values of a [`Cache`].
#[derive(Debug, Clone)]
pub(super) enum CachedValues {
    Array(Tensor),
    /// A value is the first numbers of its key, which has `head_dim` of them.
    InKeys {
        head_dim: usize,
        value_dim: usize,
    },
}

impl CachedValues {
    /// Returns the array of values, if they have one.
    pub(super) fn array(&self) -> Option<&Tensor> {
        match self {
            Self::Array(values) => Some(values),
            Self::InKeys { .. } => None,
        }
    }
}

/// Writes the step's k `[tokens, kv_heads, head_dim]` and, if values have an array, v `[tokens, kv_heads, value_dim]`.
/// Returns the cache that contains them.
pub(super) fn write(
    emitter: &mut Emitter,
    cache: &Cache,
    (k, v): (&Tensor, Option<&Tensor>),
    batch: Batch<'_>,
) -> Cache {
    let place = places(emitter, &cache.keys, batch); // [tokens, 2]
    let mut write = |cache: &Tensor, x: &Tensor| {
        let x = emitter.reshape(x, &[x.dims()[0], cache.dims()[2]]); // [tokens, width]
        let x = emitter.convert(&x, cache.dtype()); // [tokens, width]
        emitter.scatter_rows(cache, &place, &x, Combine::Replace)
    };
    let keys = write(&cache.keys, k);
    let values = match (&cache.values, v) {
        (CachedValues::Array(values), Some(v)) => CachedValues::Array(write(values, v)),
        (values, _) => values.clone(),
    };
    Cache { keys, values }
}

impl Cache {
    /// Returns the keys `[group, chunk, kv_heads * head_dim]` and the values `[group, chunk, kv_heads * value_dim]` of
    /// `blocks` `[group, blocks]`.
    pub(super) fn read(&self, emitter: &mut Emitter, blocks: &Tensor) -> [Tensor; 2] {
        let keys = read(emitter, &self.keys, blocks);
        let values = match &self.values {
            CachedValues::Array(values) => read(emitter, values, blocks),
            CachedValues::InKeys { head_dim, value_dim } => {
                let [group, chunk, width] = [0, 1, 2].map(|dim| keys.dims()[dim]);
                let kv_heads = width / head_dim;
                let by_head = emitter.reshape(&keys, &[group, chunk, kv_heads, *head_dim]);
                let values = emitter.slice(&by_head, 3, 0..*value_dim); // [group, chunk, kv_heads, value_dim]
                emitter.reshape(&values, &[group, chunk, kv_heads * value_dim])
            }
        };
        [keys, values]
    }

    /// Returns the number of KV heads, and the number of dimensions of a value, given that of a key.
    pub(super) fn heads(&self, head_dim: usize) -> [usize; 2] {
        let kv_heads = self.keys.dims()[2] / head_dim;
        match &self.values {
            CachedValues::Array(values) => [kv_heads, values.dims()[2] / kv_heads],
            CachedValues::InKeys { head_dim: _, value_dim } => [kv_heads, *value_dim],
        }
    }

    /// The type of keys and values.
    pub(super) fn dtype(&self) -> DType {
        self.keys.dtype()
    }
}

/// Returns the block and the offset of each token, `[tokens, 2]` i32. The block of padding is beyond the end of the
/// cache, so nothing is written for it.
fn places(emitter: &mut Emitter, cache: &Tensor, Batch { rows, sizes }: Batch<'_>) -> Tensor {
    let num_tokens = rows.positions.dims()[0];
    let size = emitter.splat(BLOCK_SIZE as f64, rows.positions.ty.clone()); // [tokens]
    let index = emitter.elementwise("divide", &[&rows.positions, &size]); // [tokens]
    let offset = emitter.elementwise("remainder", &[&rows.positions, &size]); // [tokens]
    let row = emitter.iota(0, Type::new([sizes.rows, sizes.tokens_per_row], DType::I32)); // [rows, tokens_per_row]
    let row = emitter.reshape(&row, &[num_tokens]); // [tokens]
    let stride = emitter.splat(sizes.blocks_per_row as f64, row.ty.clone()); // [tokens]
    let entry = emitter.elementwise("multiply", &[&row, &stride]); // [tokens]
    let entry = emitter.elementwise("add", &[&entry, &index]); // [tokens]
    let tables = emitter.reshape(&rows.block_tables, &[sizes.rows * sizes.blocks_per_row]); // [rows * blocks_per_row]
    let block = emitter.gather_rows(&tables, &entry); // [tokens]
    let block = or_out_of_bounds(emitter, &rows.is_token, &block, cache); // [tokens]
    let block = emitter.reshape(&block, &[num_tokens, 1]); // [tokens, 1]
    let offset = emitter.reshape(&offset, &[num_tokens, 1]); // [tokens, 1]
    emitter.concatenate(&[&block, &offset], 1) // [tokens, 2]
}

/// Returns the keys or values of `blocks`, `[group, chunk, width]`.
fn read(emitter: &mut Emitter, cache: &Tensor, blocks: &Tensor) -> Tensor {
    let [group, num_blocks] = [blocks.dims()[0], blocks.dims()[1]];
    let gathered = emitter.gather_rows(cache, blocks); // [group, blocks, block_size, width]
    emitter.reshape(&gathered, &[group, num_blocks * BLOCK_SIZE, cache.dims()[2]]) // [group, chunk, width]
}
