//! The limits of a scheduler.

/// The limits of a scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of sequences that run at once. It must not exceed the shards' number of slots.
    pub max_batch_size: u32,
    /// The maximum number of tokens in the chunks of one step. Longer prompts are read in several chunks.
    pub max_batch_prefill_tokens: u32,
    /// The number of KV blocks of the shards.
    pub num_blocks: u32,
    /// Tokens per KV block.
    pub block_size_tokens: u32,
    /// Tokens that end a sequence, unless the sequence ignores them.
    pub eos_token_ids: Vec<u32>,
    /// The attention window: the maximum number of tokens that a token reads, itself included. A token at position p
    /// reads no position before p − window + 1, so a sequence gives up the blocks wholly before it. `None` if some
    /// layer reads all tokens.
    pub window: Option<u32>,
    /// True if prompts share the blocks of their common prefix. If false, every sequence is read from its first token
    /// on, as models need whose state of a sequence is more than its blocks.
    pub caches_prefixes: bool,
    /// The size of a step's command, in bytes, of which opened sequences, tokens and masks have shares (`frame_room`).
    /// A step that opens only one sequence may be larger.
    pub max_step_bytes: usize,
}
