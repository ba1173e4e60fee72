//! The limits of a scheduler.

/// The limits of a scheduler. Some come from the shards, some from the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of sequences that run at once. It must not exceed the shards' number of slots.
    pub max_batch_size: u32,
    /// The maximum number of prompt tokens that one step reads. Longer prompts are read in chunks.
    pub max_batch_prefill_tokens: u32,
    /// The number of KV blocks of the shards.
    pub num_blocks: u32,
    /// Tokens per KV block.
    pub block_size_tokens: u32,
    /// Tokens that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// The attention window: the number of tokens that each token reads, itself included. A token at position p reads
    /// positions p − window + 1 to p, and blocks wholly before them are freed. `None` if some layer reads all tokens.
    pub window: Option<u32>,
    /// True if prompts share the blocks of their common prefix. False for models whose state of a sequence is more than
    /// its blocks: with them, every sequence is read from its first token on.
    pub caches_prefixes: bool,
    /// The maximum size of a step's command, in bytes. A step that opens only one sequence may be larger.
    pub max_step_bytes: usize,
}
