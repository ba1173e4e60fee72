//! The sizes of the decode kernel, and the shapes of its operands.
//!
//! Entry point: [`DecodeKernel`]. The kernel's text and the types of the custom call both come from
//! [`DecodeKernel::operands`] and [`DecodeKernel::result`], because libtpu does not compare the two.

use backend::BLOCK_SIZE;
use devices::HeadForm;
use model::graph::Window;

use super::value::{Element, Space, Type};
use crate::program::REFERENCE_CONTEXT;

/// The number of lanes of a vector register.
pub(super) const LANES: usize = 128;
/// The number of rows of a vector register of 32-bit numbers.
const SUBLANES: usize = 8;
/// The maximum number of bytes of all block tables, if all are in scalar memory. Otherwise the kernel fetches them row
/// by row.
const MAX_TABLE_BYTES: usize = 256 << 10;
/// The maximum number of bytes of the queries and the outputs that one step of the grid sees, unless one row has more.
const MAX_WINDOW_BYTES: usize = 2 << 20;
/// The maximum number of bytes of the keys of a chunk, or of its values, unless one block has more.
const MAX_CHUNK_BYTES: usize = 512 << 10;
/// The maximum number of bytes of the chunks of [`MANY_SLOTS`] slots.
const MAX_BUFFER_BYTES: usize = 4 << 20;
/// The maximum number of blocks of a chunk.
const MAX_CHUNK_BLOCKS: usize = 32;
/// The number of slots, each for a chunk that the kernel holds or fetches, if chunks are small.
const MANY_SLOTS: usize = 4;
/// The same for large chunks: the kernel computes with one chunk and fetches the next.
const FEW_SLOTS: usize = 2;

/// The kernel of decode attention for one set of sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DecodeKernel {
    pub(crate) rows: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) num_blocks: usize,
    pub(crate) blocks_per_row: usize,
    /// The number of blocks that are fetched, and multiplied, together.
    pub(crate) chunk_blocks: usize,
    /// The number of slots in vector memory. A slot is the place of one chunk.
    pub(crate) num_slots: usize,
    pub(crate) window: Option<Window>,
    pub(crate) soft_cap: Option<f32>,
    /// True if each head has a sink: a score to which no key and no value belongs.
    pub(crate) has_sinks: bool,
    /// The type of queries, keys and values.
    pub(crate) element: Element,
    /// `Wide` multiplies the queries of all heads with all lanes of the keys at once; `Split` multiplies the queries of
    /// each KV head with the lanes of this KV head.
    pub(crate) form: HeadForm,
    /// As [`MAX_TABLE_BYTES`]; tests set other limits.
    pub(crate) max_table_bytes: usize,
    /// As [`MAX_WINDOW_BYTES`]; tests set other limits.
    pub(crate) max_window_bytes: usize,
}

/// The sizes that a model and its cache determine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DecodeSizes {
    pub(crate) rows: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) num_blocks: usize,
    pub(crate) blocks_per_row: usize,
    pub(crate) window: Option<Window>,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) has_sinks: bool,
    pub(crate) element: Element,
}

impl DecodeKernel {
    /// Returns the kernel for `sizes`, or `None` if the kernel cannot serve them: heads must have 64 lanes or a
    /// multiple of 128, numbers must be bf16 or f32.
    pub(crate) fn new(sizes: &DecodeSizes) -> Option<Self> {
        let DecodeSizes { rows, heads, kv_heads, head_dim, value_dim, num_blocks, blocks_per_row, .. } = *sizes;
        let DecodeSizes { window, soft_cap, has_sinks, element, .. } = *sizes;
        let is_known = |dim: usize| dim == LANES / 2 || (dim > 0 && dim.is_multiple_of(LANES));
        let is_whole = [head_dim, value_dim].iter().all(|dim| dim.is_multiple_of(LANES));
        if ![head_dim, value_dim].into_iter().all(is_known) || !matches!(element, Element::Bf16 | Element::F32) {
            return None;
        }
        // Heads that are no whole vectors cannot be split. With few queries per KV head the wide form fills vector
        // registers better.
        let is_wide = kv_heads > 1 && (!is_whole || heads / kv_heads < SUBLANES);
        let form = if is_wide { HeadForm::Wide } else { HeadForm::Split };
        let width = kv_heads * head_dim.max(value_dim);
        let block_bytes = BLOCK_SIZE * width.next_multiple_of(LANES) * element.size_bytes();
        let mut chunk_blocks = MAX_CHUNK_BLOCKS;
        while chunk_blocks > 1 && (chunk_blocks * block_bytes > MAX_CHUNK_BYTES || chunk_blocks > num_blocks) {
            chunk_blocks /= 2;
        }
        let is_small = 2 * MANY_SLOTS * chunk_blocks * block_bytes <= MAX_BUFFER_BYTES;
        Some(Self {
            rows,
            heads,
            kv_heads,
            head_dim,
            value_dim,
            num_blocks,
            blocks_per_row,
            chunk_blocks,
            num_slots: if is_small { MANY_SLOTS } else { FEW_SLOTS },
            window,
            soft_cap,
            has_sinks,
            element,
            form,
            max_table_bytes: MAX_TABLE_BYTES,
            max_window_bytes: MAX_WINDOW_BYTES,
        })
    }

    /// Returns the number of groups of queries, and the number of queries of a group. One product multiplies one group.
    pub(super) fn groups(&self) -> [usize; 2] {
        match self.form {
            HeadForm::Wide => [1, self.heads],
            HeadForm::Split => [self.kv_heads, self.heads / self.kv_heads],
        }
    }

    /// Returns the number of lanes of keys and of values with which a group of queries is multiplied.
    pub(super) fn group_lanes(&self) -> [usize; 2] {
        let num_kv_heads = self.kv_heads / self.groups()[0];
        [self.head_dim, self.value_dim].map(|dim| num_kv_heads * dim)
    }

    /// Returns true if all block tables are in scalar memory.
    pub(crate) fn has_scalar_tables(&self) -> bool {
        self.rows * self.blocks_per_row * Element::I32.size_bytes() <= self.max_table_bytes
    }

    /// Returns the sizes of the block tables: `[rows * blocks_per_row]` in scalar memory, else `[rows, n, LANES]`, in
    /// which each row's table is padded to whole vectors.
    pub(crate) fn table_dims(&self) -> Vec<usize> {
        if self.has_scalar_tables() {
            return vec![self.rows * self.blocks_per_row];
        }
        vec![self.rows, self.blocks_per_row.div_ceil(LANES), LANES]
    }

    /// Returns the number of rows of a step of the grid.
    pub(super) fn rows_per_step(&self) -> usize {
        let [groups, queries] = self.groups();
        let lanes = |dim: usize| groups * queries.next_multiple_of(SUBLANES) * dim.next_multiple_of(LANES);
        let row_bytes = Element::F32.size_bytes() * (lanes(self.head_dim) + lanes(self.value_dim));
        let fits = |rows: &usize| self.rows.is_multiple_of(*rows) && rows * row_bytes <= self.max_window_bytes;
        (1..=self.rows).rev().find(fits).unwrap_or(1)
    }

    /// Returns the types of the operands: the lengths of the contexts `[rows]`, the block tables, the queries
    /// `[rows, groups, queries, head_dim]`, the keys, the values, and the sinks of the queries
    /// `[groups, queries, LANES]`, f32, if there are any. All lanes of a sink are equal.
    pub(crate) fn operands(&self) -> Vec<Type> {
        let [groups, queries] = self.groups();
        let tables = if self.has_scalar_tables() { Space::Smem } else { Space::Any };
        let cache = |dim: usize| [self.num_blocks, BLOCK_SIZE, self.kv_heads * dim];
        let mut operands = vec![
            Type::array([self.rows], Element::I32, Space::Smem),
            Type::array(self.table_dims(), Element::I32, tables),
            Type::array([self.rows, groups, queries, self.head_dim], self.element, Space::Vmem),
            Type::array(cache(self.head_dim), self.element, Space::Hbm),
            Type::array(cache(self.value_dim), self.element, Space::Hbm),
        ];
        if self.has_sinks {
            operands.push(Type::array([groups, queries, LANES], Element::F32, Space::Vmem));
        }
        operands
    }

    /// Returns the costs for rows with contexts of [`REFERENCE_CONTEXT`] tokens: operations of the products,
    /// exponentials, and bytes read and written, with the padding of the caches.
    pub(super) fn reference_costs(&self) -> [usize; 3] {
        let tokens =
            self.rows * self.window.map_or(REFERENCE_CONTEXT, |window| REFERENCE_CONTEXT.min(window.num_keys()));
        let lanes: usize = self.group_lanes().iter().sum();
        let queries = self.operands()[2].size_bytes();
        let width = |dim: usize| (self.kv_heads * dim).next_multiple_of(LANES);
        let cached = tokens * (width(self.head_dim) + width(self.value_dim)) * self.element.size_bytes();
        [2 * tokens * self.heads * lanes, tokens * self.heads, cached + queries + self.result().size_bytes()]
    }

    /// Returns the type of the result, `[rows, groups, queries, value_dim]`, f32.
    pub(crate) fn result(&self) -> Type {
        let [groups, queries] = self.groups();
        Type::array([self.rows, groups, queries, self.value_dim], Element::F32, Space::Vmem)
    }
}
