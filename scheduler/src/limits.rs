//! The limits of a scheduler.

/// The limits that the shards and the user set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The most sequences that run at once, at most the number of slots of the shards.
    pub max_batch_size: u32,
    /// The most prompt tokens of one step. Longer prompts are read in chunks.
    pub max_batch_prefill_tokens: u32,
    /// The number of KV blocks of the shards.
    pub num_blocks: u32,
    /// Tokens per KV block.
    pub block_size_tokens: u32,
    /// Tokens that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// The number of tokens that each token reads in every layer, its own included: a token at position p reads
    /// positions p − window + 1 to p, and blocks wholly before them are given back. `None` if some layer reads all
    /// tokens.
    pub window: Option<u32>,
    /// True if prompts share the blocks of their common prefix. False for models that keep more state of a sequence
    /// than its blocks: every sequence is then read from its first token on.
    pub caches_prefixes: bool,
    /// The most bytes of a step's command, unless a single sequence takes more.
    pub max_step_bytes: usize,
}
