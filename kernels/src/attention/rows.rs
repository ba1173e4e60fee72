//! Where things lie: the dimensions of attention, and a row's tokens, positions and blocks.
//!
//! Doors: [`AttentionShape`], [`AttentionRow`]. They are what the caller says about a step; nothing is computed here
//! but places.

/// The dimensions of a layer's attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Query heads; a multiple of `num_kv_heads`. Consecutive query heads share a key head.
    pub num_heads: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Numbers of a query, and of a key.
    pub head_dim: usize,
    /// Numbers of a value, and of what a head gives.
    pub value_dim: usize,
    /// Tokens per block of the cache, a multiple of 16.
    pub block_size: usize,
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Keys that a query attends at most, its own included: those before are not seen.
    pub window: Option<usize>,
    /// Scores become `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
}

/// One row of a step.
#[derive(Debug, Clone, Copy)]
pub struct AttentionRow<'a> {
    /// Index of its first token among the step's tokens.
    pub first_token: usize,
    /// Its tokens in this step; they are the last of its context.
    pub num_tokens: usize,
    /// Its tokens in the cache, those of this step included.
    pub context_len: usize,
    /// The blocks that hold its context, in order of position; may be longer than needed.
    pub block_table: &'a [u32],
}

impl AttentionShape {
    /// Numbers of one token's queries.
    pub fn q_width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Numbers of one token's keys.
    pub fn key_width(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Numbers of one token's values.
    pub fn value_width(&self) -> usize {
        self.num_kv_heads * self.value_dim
    }

    /// Numbers of what one token gets.
    pub fn out_width(&self) -> usize {
        self.num_heads * self.value_dim
    }

    /// Query heads per key head.
    pub(super) fn group_size(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// The first key that a query with `num_keys` keys up to its own attends.
    pub(super) fn first_key(&self, num_keys: usize) -> usize {
        self.window.map_or(0, |window| num_keys.saturating_sub(window))
    }

    pub(super) fn check(&self) {
        let Self { num_heads, num_kv_heads, head_dim, value_dim, block_size, scale: _, window, soft_cap: _ } = *self;
        let is_grouped = num_kv_heads > 0 && num_heads > 0 && num_heads % num_kv_heads == 0;
        assert!(is_grouped, "{num_heads} query heads cannot share {num_kv_heads} key heads");
        let has_sizes = head_dim > 0 && value_dim > 0 && block_size > 0;
        assert!(has_sizes, "head_dim {head_dim}, value_dim {value_dim} and block_size {block_size} must be positive");
        assert!(window != Some(0), "a window of no keys");
    }
}

impl AttentionRow<'_> {
    /// Position of its first token of this step.
    pub(super) fn first_position(&self) -> usize {
        self.context_len - self.num_tokens
    }

    /// The place in the cache of one key.
    pub(super) fn kv_place(&self, shape: &AttentionShape, kv_head: usize, position: usize) -> usize {
        let head_idx = self.block_table[position / shape.block_size] as usize * shape.num_kv_heads + kv_head;
        head_idx * shape.block_size + position % shape.block_size
    }

    /// The places in the cache of the keys of consecutive positions, for one key head.
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
        assert!(num_tokens <= context_len, "a row with {num_tokens} tokens has a context of {context_len}");
        let num_blocks = context_len.div_ceil(shape.block_size);
        assert!(num_blocks <= block_table.len(), "a context of {context_len} tokens in {} blocks", block_table.len());
    }
}
