//! The limits of a model's steps, from the client's wishes, the model's maximum and the available memory.
//!
//! Entry point: [`choose`], a pure function. `compile` calls the function too, and a launch checks limits with it
//! before weights are read. If no limits are possible, the error names the setting to change.

use backend::{BLOCK_SIZE, MemoryPlan, StateLayout};
use model::graph::StateBytes;
use proto::Warmup;

use super::EngineError;
use crate::rows::Limits;

const DEFAULT_MAX_BATCH_SIZE: usize = 64;
const DEFAULT_MAX_TOTAL_TOKENS: usize = 4096;
const DEFAULT_MAX_BATCH_PREFILL_TOKENS: usize = 4096;

/// The properties of the model and of the memory that bound the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitInputs {
    pub(crate) max_position_embeddings: usize,
    pub(crate) vocab_size: usize,
    /// The bytes of the states on one rank.
    pub(crate) state_bytes: StateBytes,
    /// The maximum number of tokens that a token attends to, itself included; `None` if a layer has no window.
    pub(crate) window: Option<usize>,
    pub(crate) memory: MemoryPlan,
}

/// Returns the limits for the wishes in `warmup`.
///
/// # Errors
/// When a wish is 0, or the model or the memory cannot meet the wishes.
pub(crate) fn choose(warmup: &Warmup, facts: &LimitInputs) -> Result<Limits, EngineError> {
    let Warmup {
        max_total_tokens,
        max_batch_prefill_tokens,
        max_batch_total_tokens,
        max_batch_size,
        device_assignment: _,
        kv_cache_bytes,
        kv_cache_percent,
    } = warmup;
    let wish = RequestedCache {
        tokens: limit("max_batch_total_tokens", *max_batch_total_tokens)?,
        bytes: *kv_cache_bytes,
        percent: *kv_cache_percent,
    };
    let asked_total = limit("max_total_tokens", *max_total_tokens)?;
    let asked_cache = wish.tokens;
    let max_position_embeddings = facts.max_position_embeddings;
    let default_total = DEFAULT_MAX_TOTAL_TOKENS.min(max_position_embeddings);
    let max_total_tokens = asked_total.unwrap_or_else(|| default_total.min(asked_cache.unwrap_or(default_total)));
    if max_total_tokens > max_position_embeddings {
        return Err(EngineError::BeyondModel { max_total_tokens, max_position_embeddings });
    }
    let least = least_cache_tokens(max_total_tokens, facts.window);
    if let Some(max_batch_total_tokens) = asked_cache.filter(|asked| *asked < least) {
        let flag = "--max-batch-total-tokens";
        return Err(EngineError::CacheTooSmall { max_batch_total_tokens, least, max_total_tokens, flag });
    }
    let num_slots = limit("max_batch_size", *max_batch_size)?.unwrap_or(DEFAULT_MAX_BATCH_SIZE);
    let prefill = limit("max_batch_prefill_tokens", *max_batch_prefill_tokens)?;
    let cache_tokens = choose_cache_tokens(wish, num_slots, max_total_tokens, facts)?;
    let max_batch_prefill_tokens = prefill.unwrap_or(DEFAULT_MAX_BATCH_PREFILL_TOKENS.max(max_total_tokens));
    let num_blocks = cache_tokens.div_ceil(BLOCK_SIZE);
    let layout = StateLayout { num_slots, num_blocks, max_total_tokens, max_batch_prefill_tokens };
    Ok(Limits { layout, vocab_size: facts.vocab_size, window: facts.window })
}

/// Returns the minimum number of tokens that the KV cache must hold, so that the longest row can run: the tokens of the
/// row, or those of its window and a block if they are fewer.
fn least_cache_tokens(max_total_tokens: usize, window: Option<usize>) -> usize {
    window.map_or(max_total_tokens, |window| max_total_tokens.min(window.saturating_add(BLOCK_SIZE)))
}

/// The size of the KV cache that the client requests. `tokens` takes precedence over `bytes`, and `bytes` over
/// `percent`.
#[derive(Debug, Clone, Copy)]
struct RequestedCache {
    tokens: Option<usize>,
    bytes: Option<u64>,
    percent: Option<u32>,
}

/// Returns the number of tokens that the KV cache holds: the size that the client requests, else as many tokens as all
/// slots can use, within the cache's share of the memory.
fn choose_cache_tokens(
    wish: RequestedCache,
    num_slots: usize,
    max_total_tokens: usize,
    facts: &LimitInputs,
) -> Result<usize, EngineError> {
    let MemoryPlan { available_bytes, cache_percent } = facts.memory;
    let kv_bytes_per_token = facts.state_bytes.per_token.max(1);
    let require_bytes = |num_tokens: usize, needed_bytes: u64, flag| {
        let error = EngineError::OutOfMemory { num_tokens, needed_bytes, available_bytes, flag };
        if needed_bytes > available_bytes { Err(error) } else { Ok(num_tokens) }
    };
    let require = |num_tokens: usize, bytes_per_token: u64, flag| {
        require_bytes(num_tokens, (num_tokens as u64).saturating_mul(bytes_per_token), flag)
    };
    // Rows do not share their last blocks, so the tokens of a row are rounded up to whole blocks.
    let row_tokens = max_total_tokens.next_multiple_of(BLOCK_SIZE);
    let useful = num_slots.saturating_mul(row_tokens);
    require_bytes(useful, facts.state_bytes.of_slots(num_slots, row_tokens), "--max-batch-size")?;
    if i32::try_from(useful).is_err() {
        return Err(EngineError::HistoryTooLarge { num_slots, max_total_tokens });
    }
    let RequestedCache { tokens, bytes, percent } = wish;
    if let Some(asked) = tokens {
        return require(asked, kv_bytes_per_token, "--max-batch-total-tokens");
    }
    let asked_bytes = bytes.or(percent.map(|percent| available_bytes / 100 * u64::from(percent)));
    let share_bytes = asked_bytes.unwrap_or(available_bytes / 100 * cache_percent);
    let most_blocks = share_bytes / kv_bytes_per_token / BLOCK_SIZE as u64;
    // The number of tokens must fit into 32 bits.
    let share = most_blocks.min(u64::from(u32::MAX) / BLOCK_SIZE as u64) as usize * BLOCK_SIZE;
    let least = least_cache_tokens(max_total_tokens, facts.window);
    if asked_bytes.is_some() {
        if share < least {
            return Err(EngineError::CacheTooSmall {
                max_batch_total_tokens: share,
                least,
                max_total_tokens,
                flag: "--kv-cache-memory",
            });
        }
        return require(share, kv_bytes_per_token, "--kv-cache-memory");
    }
    let chosen = useful.min(share);
    if chosen >= least {
        return Ok(chosen);
    }
    require(least, kv_bytes_per_token * 100 / cache_percent, "--max-total-tokens")
}

fn limit(name: &'static str, asked: Option<u32>) -> Result<Option<usize>, EngineError> {
    if asked == Some(0) {
        return Err(EngineError::ZeroLimit { name });
    }
    Ok(asked.map(|asked| asked as usize))
}
