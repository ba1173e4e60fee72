//! The dimensions of attention, and the place of each key of a row in the cache.
//!
//! Entry points: [`AttentionShape`], [`AttentionRow`], with which the caller describes a step. This file does not read
//! any keys or values.

/// The dimensions of a layer's attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// The number of query heads, a multiple of `num_kv_heads`. Consecutive query heads share a key head.
    pub num_heads: usize,
    /// The number of key heads, and of value heads.
    pub num_kv_heads: usize,
    /// The number of dimensions of a query, and of a key.
    pub head_dim: usize,
    /// The number of dimensions of a value, and of a head's output.
    pub value_dim: usize,
    /// The number of tokens per block of the cache, a multiple of 16.
    pub block_size: usize,
    /// The factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// The keys that a query attends to. `None` means all up to its own key.
    pub window: Option<Window>,
    /// The cap of the scaled scores: they become `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
}

/// A limit on the keys that a query attends to. Without one, it attends to all keys up to its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// The last keys up to the query's own key, at most this number.
    Sliding(usize),
    /// The keys up to the query's own key in its own stretch of positions. A stretch has this number of positions, and
    /// the first begins at position 0.
    Chunked(usize),
}

/// The tokens of one row in a step, and the blocks of its context.
#[derive(Debug, Clone, Copy)]
pub struct AttentionRow<'a> {
    /// The index of the row's first token among the step's tokens.
    pub first_token: usize,
    /// The number of the row's tokens in this step, which are the last tokens of the row's context.
    pub num_tokens: usize,
    /// The number of the row's tokens in the cache, the tokens of this step included.
    pub context_len: usize,
    /// The blocks that contain the row's context, in order of position. There may be more blocks than the context
    /// needs.
    pub block_table: &'a [u32],
}

impl AttentionShape {
    /// Returns the number of values in the queries of one token.
    pub fn q_width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Returns the number of values in the keys of one token.
    pub fn key_width(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Returns the number of values in the value heads of one token.
    pub fn value_width(&self) -> usize {
        self.num_kv_heads * self.value_dim
    }

    /// Returns the number of values in the output of one token.
    pub fn out_width(&self) -> usize {
        self.num_heads * self.value_dim
    }

    /// Returns the number of query heads per key head.
    pub(super) fn group_size(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// Returns the first key that a query attends to; `num_keys` counts the keys up to and including its own.
    pub(super) fn first_key(&self, num_keys: usize) -> usize {
        match self.window {
            None => 0,
            Some(Window::Sliding(window)) => num_keys.saturating_sub(window),
            Some(Window::Chunked(stretch)) => (num_keys - 1) / stretch * stretch,
        }
    }

    pub(super) fn check(&self) {
        let Self { num_heads, num_kv_heads, head_dim, value_dim, block_size, scale: _, window, soft_cap: _ } = *self;
        let is_grouped = num_kv_heads > 0 && num_heads > 0 && num_heads % num_kv_heads == 0;
        assert!(is_grouped, "{num_heads} query heads cannot share {num_kv_heads} key heads");
        let has_sizes = head_dim > 0 && value_dim > 0 && block_size > 0;
        assert!(has_sizes, "head_dim {head_dim}, value_dim {value_dim} and block_size {block_size} must be positive");
        let is_empty = matches!(window, Some(Window::Sliding(0) | Window::Chunked(0)));
        assert!(!is_empty, "the window is 0 keys, but must be at least 1");
    }
}

impl AttentionRow<'_> {
    /// Returns the position of the row's first token of this step.
    pub(super) fn first_position(&self) -> usize {
        self.context_len - self.num_tokens
    }

    /// Returns the place in the cache of the key, and of the value, at `position`.
    pub(super) fn kv_place(&self, shape: &AttentionShape, kv_head: usize, position: usize) -> usize {
        let head_idx = self.block_table[position / shape.block_size] as usize * shape.num_kv_heads + kv_head;
        head_idx * shape.block_size + position % shape.block_size
    }

    /// Fills `places` with the places in the cache of the keys at consecutive positions, for one key head.
    pub(super) fn kv_places(
        &self,
        shape: &AttentionShape,
        kv_head: usize,
        first_position: usize,
        places: &mut [usize],
    ) {
        let mut places = places;
        let (mut block_idx, mut in_block) = (first_position / shape.block_size, first_position % shape.block_size);
        while !places.is_empty() {
            let head_idx = self.block_table[block_idx] as usize * shape.num_kv_heads + kv_head;
            let of_block = places.split_off_mut(..(shape.block_size - in_block).min(places.len())).unwrap_or_default();
            for (place, idx) in of_block.iter_mut().zip(head_idx * shape.block_size + in_block..) {
                *place = idx;
            }
            (block_idx, in_block) = (block_idx + 1, 0);
        }
    }

    pub(super) fn check(&self, shape: &AttentionShape) {
        let Self { first_token: _, num_tokens, context_len, block_table } = *self;
        assert!(num_tokens <= context_len, "a row with {num_tokens} tokens has a context of only {context_len}");
        let num_blocks = context_len.div_ceil(shape.block_size);
        assert!(
            num_blocks <= block_table.len(),
            "a context of {context_len} tokens has only {} blocks",
            block_table.len()
        );
    }
}
