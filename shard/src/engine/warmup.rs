//! Warm-up: choose the limits, allocate the KV cache, run every kind of step once.
//!
//! Door: [`Engine::warmup`]. Afterwards all slots are free. The limits follow from what the client asks for, what the
//! model takes and what memory there is; when they cannot be met, the error says which flag to change.

use proto::{Decode, DecodeRow, Prefill, PromptChunk, Release, SamplingParams, Warmup, WarmupReply};

use super::{Engine, EngineError, Progress};
use crate::backend::{BLOCK_SIZE, StateLayout};
use crate::kv_cache::{Limits, RowTable};

const PHASE: &str = "warm up";
const DEFAULT_MAX_BATCH_SIZE: usize = 64;
const DEFAULT_MAX_TOTAL_TOKENS: usize = 4096;
const DEFAULT_MAX_BATCH_PREFILL_TOKENS: usize = 4096;
/// Share of the available memory that a cache may take whose size nobody asked for.
const CACHE_SHARE: u64 = 2;
/// A token id.
const HISTORY_BYTES_PER_TOKEN: u64 = 4;
/// Tokens of a warm-up prompt: more than a block.
const PROMPT_LEN: usize = BLOCK_SIZE + 1;

impl Engine {
    /// Makes the engine ready for steps. `progress` hears of each piece of work.
    ///
    /// # Errors
    /// When the limits cannot be met, or a step fails.
    pub(crate) fn warmup(&mut self, warmup: &Warmup, progress: &mut Progress<'_>) -> Result<WarmupReply, EngineError> {
        if self.is_warm() {
            return Err(EngineError::AlreadyWarm);
        }
        let limits = self.choose_limits(warmup)?;
        let pieces = warmup_params();
        let total = pieces.len() as u64 + 1;
        progress(PHASE, 0, total);
        self.backend.allocate(limits.layout, progress)?;
        self.rows = Some(RowTable::new(limits));
        for (done, params) in (1..).zip(pieces) {
            progress(PHASE, done, total);
            if let Err(error) = self.rehearse(params) {
                self.rows = None;
                return Err(error);
            }
        }
        progress(PHASE, total, total);
        let StateLayout { num_slots, num_blocks, max_total_tokens, max_batch_prefill_tokens } = limits.layout;
        Ok(WarmupReply {
            num_slots: num_slots as u32,
            num_blocks: num_blocks as u32,
            max_total_tokens: max_total_tokens as u32,
            max_batch_prefill_tokens: max_batch_prefill_tokens as u32,
            kv_cache_bytes: self.backend.kv_bytes_per_token() * (num_blocks * BLOCK_SIZE) as u64,
        })
    }

    fn choose_limits(&self, warmup: &Warmup) -> Result<Limits, EngineError> {
        let Warmup { max_total_tokens, max_batch_prefill_tokens, max_batch_total_tokens, max_batch_size } = warmup;
        let asked_total = limit("max_total_tokens", *max_total_tokens)?;
        let asked_cache = limit("max_batch_total_tokens", *max_batch_total_tokens)?;
        let max_position_embeddings = self.info.max_position_embeddings as usize;
        let default_total = DEFAULT_MAX_TOTAL_TOKENS.min(max_position_embeddings);
        let max_total_tokens = asked_total.unwrap_or_else(|| default_total.min(asked_cache.unwrap_or(default_total)));
        if max_total_tokens > max_position_embeddings {
            return Err(EngineError::BeyondModel { max_total_tokens, max_position_embeddings });
        }
        if let Some(max_batch_total_tokens) = asked_cache.filter(|asked| *asked < max_total_tokens) {
            return Err(EngineError::CacheTooSmall { max_batch_total_tokens, max_total_tokens });
        }
        let num_slots = limit("max_batch_size", *max_batch_size)?.unwrap_or(DEFAULT_MAX_BATCH_SIZE);
        let prefill = limit("max_batch_prefill_tokens", *max_batch_prefill_tokens)?;
        let cache_tokens = self.choose_cache_tokens(asked_cache, num_slots, max_total_tokens)?;
        let max_batch_prefill_tokens = prefill.unwrap_or(DEFAULT_MAX_BATCH_PREFILL_TOKENS.max(max_total_tokens));
        let num_blocks = cache_tokens.div_ceil(BLOCK_SIZE);
        let layout = StateLayout { num_slots, num_blocks, max_total_tokens, max_batch_prefill_tokens };
        Ok(Limits { layout, vocab_size: self.info.vocab_size as usize })
    }

    /// Tokens that the KV cache holds: as asked for, else what all slots could use if it fits in a share of the memory.
    fn choose_cache_tokens(
        &self,
        asked: Option<usize>,
        num_slots: usize,
        max_total_tokens: usize,
    ) -> Result<usize, EngineError> {
        let kv_bytes_per_token = self.backend.kv_bytes_per_token().max(1);
        let available_bytes = self.backend.available_bytes()?;
        let require = |num_tokens: usize, bytes_per_token: u64, flag| {
            let needed_bytes = (num_tokens as u64).saturating_mul(bytes_per_token);
            let error = EngineError::OutOfMemory { num_tokens, needed_bytes, available_bytes, flag };
            if needed_bytes > available_bytes { Err(error) } else { Ok(num_tokens) }
        };
        // A row's last block is its own, so each row may need a block more than its tokens fill.
        let useful = num_slots.saturating_mul(max_total_tokens.next_multiple_of(BLOCK_SIZE));
        require(useful, HISTORY_BYTES_PER_TOKEN, "--max-batch-size")?;
        if let Some(asked) = asked {
            return require(asked, kv_bytes_per_token, "--max-batch-total-tokens");
        }
        let share = usize::try_from(available_bytes / CACHE_SHARE / kv_bytes_per_token).unwrap_or(usize::MAX);
        let chosen = useful.min(share);
        if chosen >= max_total_tokens {
            return Ok(chosen);
        }
        require(max_total_tokens, kv_bytes_per_token * CACHE_SHARE, "--max-total-tokens")
    }

    /// A prompt with a chunk cut off, a token, another token, and the end.
    fn rehearse(&mut self, sampling: SamplingParams) -> Result<(), EngineError> {
        let limits = self.rows.as_ref().ok_or(EngineError::NotWarm)?.limits();
        let prompt_len = PROMPT_LEN.min(limits.layout.max_total_tokens).min(limits.layout.max_batch_prefill_tokens);
        let chunk = PromptChunk {
            slot: 0,
            position: 0,
            token_ids: (0..prompt_len).map(|i| (i % limits.vocab_size) as u32).collect(),
            new_blocks: (0..limits.layout.num_blocks.min(2) as u32).collect(),
            sampling: Some(sampling),
            samples_token: true,
        };
        self.prefill(&Prefill { chunks: vec![chunk], rows: vec![] })?;
        if prompt_len < limits.layout.max_total_tokens {
            let row = DecodeRow { slot: 0, position: prompt_len as u32, new_blocks: vec![] };
            self.decode(&Decode { rows: vec![row] })?;
        }
        self.release(&Release { slots: vec![0] })
    }
}

/// One row of each kind of program: greedy; with every processor; with prompt log-probabilities and top tokens.
fn warmup_params() -> [SamplingParams; 3] {
    let everything = SamplingParams {
        temperature: 0.9,
        top_k: 10,
        top_p: 0.9,
        typical_p: 0.9,
        repetition_penalty: 1.2,
        frequency_penalty: 0.1,
        seed: 1,
        is_greedy: false,
        top_n_tokens: 0,
        wants_prompt_logprobs: false,
    };
    let reports = SamplingParams { top_n_tokens: 5, wants_prompt_logprobs: true, ..SamplingParams::greedy() };
    [SamplingParams::greedy(), everything, reports]
}

fn limit(name: &'static str, asked: Option<u32>) -> Result<Option<usize>, EngineError> {
    if asked == Some(0) {
        return Err(EngineError::ZeroLimit { name });
    }
    Ok(asked.map(|asked| asked as usize))
}
