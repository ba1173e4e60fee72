//! Who is in which slot, and where in the KV cache: the book-keeping beside the bytes that the backend holds.
//!
//! Doors: [`RowTable::check_prefill`], [`RowTable::check_decode`] and [`RowTable::check_release`], which look at a whole command
//! and change nothing; then the methods that carry it out. The router decides who runs and which blocks a row gets; this
//! room only sees that the two sides agree.
//!
//! ```text
//! open ──▶ Prefill ──last chunk──▶ Decode ──▶ … ──release──▶ free
//!          len += chunk            len += 1
//! ```

use backend::RowSampler;
use backend::{BLOCK_SIZE, StateLayout};
use model::sampling::TokenMask;
use proto::{DecodeRow, Prefill, PromptChunk, Release, SamplingError};

/// A command that does not fit what the shard knows. Nothing has been changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum RowError {
    #[error("step without rows")]
    EmptyStep,
    #[error("slot {slot} is beyond the {num_slots} slots")]
    SlotRange { slot: u32, num_slots: usize },
    #[error("slot {slot} occurs twice in one command")]
    SlotTwice { slot: u32 },
    #[error("slot {slot} is not open")]
    NotOpen { slot: u32 },
    #[error("slot {slot} is already open")]
    AlreadyOpen { slot: u32 },
    #[error("slot {slot} has read its whole prompt and takes no other chunk")]
    PromptIsOver { slot: u32 },
    #[error("slot {slot} has not read its whole prompt and cannot decode")]
    PromptIsNotOver { slot: u32 },
    #[error("slot {slot} has {expected} tokens in the cache, the command says {position}")]
    Position { slot: u32, position: u32, expected: usize },
    #[error("slot {slot} is told of cached tokens or of generated ones, which only a first chunk can be")]
    NotFirst { slot: u32 },
    #[error("slot {slot} wants the logprobs of its prompt, of which {num_cached} tokens would not be computed")]
    CachedLogprobs { slot: u32, num_cached: usize },
    #[error("slot {slot} has read {num_tokens} tokens, of which {num_generated} cannot be its own")]
    Generated { slot: u32, num_tokens: usize, num_generated: u32 },
    #[error("slot {slot} gets a chunk without tokens")]
    EmptyChunk { slot: u32 },
    #[error("slot {slot} gets token {token_id}, the vocabulary has {vocab_size}")]
    Token { slot: u32, token_id: u32, vocab_size: usize },
    #[error("slot {slot} would hold {num_tokens} tokens, the limit is {max_total_tokens}")]
    TooLong { slot: u32, num_tokens: usize, max_total_tokens: usize },
    #[error("slot {slot} needs {needed} blocks for {num_tokens} tokens, its table has {num_blocks}")]
    TableTooShort { slot: u32, num_tokens: usize, needed: usize, num_blocks: usize },
    #[error("slot {slot} gets block {block}, there are {num_blocks}")]
    BlockRange { slot: u32, block: u32, num_blocks: usize },
    #[error("slot {slot} gets block {block}, which it has already")]
    BlockTwice { slot: u32, block: u32 },
    #[error("step of {num_tokens} prompt tokens, the limit is {max_batch_prefill_tokens}")]
    TooManyPromptTokens { num_tokens: usize, max_batch_prefill_tokens: usize },
    #[error("slot {slot} gets a mask of {given} bytes, the vocabulary of {vocab_size} needs {needed}")]
    MaskLen { slot: u32, given: usize, vocab_size: usize, needed: usize },
    #[error("slot {slot} gets a mask for a chunk that samples no token")]
    MaskUnused { slot: u32 },
    #[error("slot {slot} names the token after a chunk whose own token follows, or whose logprobs are not asked for")]
    NextToken { slot: u32 },
    #[error("slot {slot}: {source}")]
    Sampling { slot: u32, source: SamplingError },
}

/// What commands may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) layout: StateLayout,
    pub(crate) vocab_size: usize,
}

/// All slots.
#[derive(Debug)]
pub(crate) struct RowTable {
    limits: Limits,
    slots: Vec<Option<Row>>,
}

/// The sequence in one slot.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Tokens in the KV cache.
    pub(crate) num_tokens: usize,
    /// Blocks that hold them, in order of position.
    pub(crate) block_table: Vec<u32>,
    pub(crate) sampler: RowSampler,
    pub(crate) phase: Phase,
}

/// What a row does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Reads more of its prompt, and behind it `num_generated` tokens that it made earlier.
    Prefill { num_generated: u32 },
    /// Continues a prompt of `prompt_len` tokens.
    Decode { prompt_len: usize },
}

/// Blocks and tokens that a command adds to a row.
struct Growth<'a> {
    slot: u32,
    /// Tokens before and after.
    num_tokens: (usize, usize),
    block_table: &'a [u32],
    new_blocks: &'a [u32],
}

impl RowTable {
    /// No rows.
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, slots: vec![None; limits.layout.num_slots] }
    }

    /// What commands may ask for.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether this step can be carried out.
    ///
    /// # Errors
    /// The first thing that is off.
    pub(crate) fn check_prefill(&self, prefill: &Prefill) -> Result<(), RowError> {
        let Prefill { chunks, rows } = prefill;
        if chunks.is_empty() && rows.is_empty() {
            return Err(RowError::EmptyStep);
        }
        self.check_slots(chunks.iter().map(|chunk| chunk.slot).chain(rows.iter().map(|row| row.slot)))?;
        let num_tokens = chunks.iter().map(|chunk| chunk.token_ids.len()).sum();
        let max_batch_prefill_tokens = self.limits.layout.max_batch_prefill_tokens;
        if num_tokens > max_batch_prefill_tokens {
            return Err(RowError::TooManyPromptTokens { num_tokens, max_batch_prefill_tokens });
        }
        chunks.iter().try_for_each(|chunk| self.check_chunk(chunk))?;
        rows.iter().try_for_each(|row| self.check_decode_row(row))
    }

    /// Whether this step can be carried out.
    ///
    /// # Errors
    /// The first thing that is off.
    pub(crate) fn check_decode(&self, rows: &[DecodeRow]) -> Result<(), RowError> {
        if rows.is_empty() {
            return Err(RowError::EmptyStep);
        }
        self.check_slots(rows.iter().map(|row| row.slot))?;
        rows.iter().try_for_each(|row| self.check_decode_row(row))
    }

    /// Whether all of these rows can end.
    ///
    /// # Errors
    /// The first slot that is not open or occurs twice.
    pub(crate) fn check_release(&self, release: &Release) -> Result<(), RowError> {
        self.check_slots(release.slots.iter().copied())?;
        release.slots.iter().try_for_each(|slot| self.open_row(*slot).map(|_| ()))
    }

    /// Puts a row into the slot of a first chunk that was checked. It has the tokens that are cached, and no blocks yet.
    pub(crate) fn open(&mut self, chunk: &PromptChunk, sampler: RowSampler) {
        let phase = Phase::Prefill { num_generated: chunk.num_generated_tokens };
        let num_tokens = chunk.cached_token_ids.len();
        self.slots[chunk.slot as usize] = Some(Row { num_tokens, block_table: Vec::new(), sampler, phase });
    }

    /// Adds checked tokens and blocks to a row, and answers it. `prompt_is_over` ends its prefill.
    pub(crate) fn extend(&mut self, slot: u32, num_tokens: usize, new_blocks: &[u32], prompt_is_over: bool) -> &Row {
        let row = self.slots[slot as usize].as_mut().expect("the command was checked");
        row.num_tokens += num_tokens;
        row.block_table.extend_from_slice(new_blocks);
        if let Phase::Prefill { num_generated } = row.phase
            && prompt_is_over
        {
            row.phase = Phase::Decode { prompt_len: row.num_tokens - num_generated as usize };
        }
        row
    }

    /// Empties a slot that was checked to be open.
    pub(crate) fn release(&mut self, slot: u32) {
        self.slots[slot as usize] = None;
    }

    fn check_slots(&self, slots: impl Iterator<Item = u32>) -> Result<(), RowError> {
        let num_slots = self.slots.len();
        let mut is_named = vec![false; num_slots];
        for slot in slots {
            let is_named = is_named.get_mut(slot as usize).ok_or(RowError::SlotRange { slot, num_slots })?;
            if std::mem::replace(is_named, true) {
                return Err(RowError::SlotTwice { slot });
            }
        }
        Ok(())
    }

    fn check_chunk(&self, chunk: &PromptChunk) -> Result<(), RowError> {
        let PromptChunk {
            slot,
            position,
            token_ids,
            new_blocks,
            sampling,
            samples_token,
            cached_token_ids,
            next_token_id,
            ..
        } = chunk;
        let slot = *slot;
        let (len, block_table, (num_generated, wants_logprobs)) = match (sampling, &self.slots[slot as usize]) {
            (Some(_), Some(_)) => return Err(RowError::AlreadyOpen { slot }),
            (Some(sampling), None) => {
                let check = sampling.check().and_then(|()| sampling.check_tokens(self.limits.vocab_size as u32));
                check.map_err(|source| RowError::Sampling { slot, source })?;
                let num_cached = cached_token_ids.len();
                if sampling.wants_prompt_logprobs && num_cached > 0 {
                    return Err(RowError::CachedLogprobs { slot, num_cached });
                }
                (num_cached, [].as_slice(), (chunk.num_generated_tokens, sampling.wants_prompt_logprobs))
            }
            (None, _) => {
                let row = self.open_row(slot)?;
                let Phase::Prefill { num_generated } = row.phase else {
                    return Err(RowError::PromptIsOver { slot });
                };
                if !cached_token_ids.is_empty() || chunk.num_generated_tokens > 0 {
                    return Err(RowError::NotFirst { slot });
                }
                let wants_logprobs = row.sampler.params.wants_prompt_logprobs;
                (row.num_tokens, row.block_table.as_slice(), (num_generated, wants_logprobs))
            }
        };
        if *position as usize != len {
            return Err(RowError::Position { slot, position: *position, expected: len });
        }
        if token_ids.is_empty() {
            return Err(RowError::EmptyChunk { slot });
        }
        let vocab_size = self.limits.vocab_size;
        if next_token_id.is_some() && (*samples_token || !wants_logprobs) {
            return Err(RowError::NextToken { slot });
        }
        let mut all_ids = cached_token_ids.iter().chain(token_ids).chain(next_token_id).copied();
        if let Some(token_id) = all_ids.find(|id| *id as usize >= vocab_size) {
            return Err(RowError::Token { slot, token_id, vocab_size });
        }
        // At least the first token of a row is prompt.
        let num_tokens = len + token_ids.len();
        if *samples_token && num_generated as usize >= num_tokens {
            return Err(RowError::Generated { slot, num_tokens, num_generated });
        }
        if chunk.allowed_tokens.is_some() && !samples_token {
            return Err(RowError::MaskUnused { slot });
        }
        self.check_mask(slot, chunk.allowed_tokens.as_deref())?;
        self.check_growth(&Growth { slot, num_tokens: (len, len + token_ids.len()), block_table, new_blocks })
    }

    fn check_decode_row(&self, decode_row: &DecodeRow) -> Result<(), RowError> {
        let DecodeRow { slot, position, new_blocks, allowed_tokens } = decode_row;
        let slot = *slot;
        let row = self.open_row(slot)?;
        if let Phase::Prefill { .. } = row.phase {
            return Err(RowError::PromptIsNotOver { slot });
        }
        let len = row.num_tokens;
        if *position as usize != len {
            return Err(RowError::Position { slot, position: *position, expected: len });
        }
        self.check_mask(slot, allowed_tokens.as_deref())?;
        self.check_growth(&Growth { slot, num_tokens: (len, len + 1), block_table: &row.block_table, new_blocks })
    }

    fn check_mask(&self, slot: u32, allowed_tokens: Option<&[u8]>) -> Result<(), RowError> {
        let Some(bytes) = allowed_tokens else {
            return Ok(());
        };
        let vocab_size = self.limits.vocab_size;
        let (given, needed) = (bytes.len(), TokenMask::num_bytes(vocab_size));
        if given == needed { Ok(()) } else { Err(RowError::MaskLen { slot, given, vocab_size, needed }) }
    }

    fn check_growth(&self, growth: &Growth<'_>) -> Result<(), RowError> {
        let Growth { slot, num_tokens: (_, num_tokens), block_table, new_blocks } = *growth;
        let StateLayout { num_slots: _, num_blocks, max_total_tokens, max_batch_prefill_tokens: _ } =
            self.limits.layout;
        if num_tokens > max_total_tokens {
            return Err(RowError::TooLong { slot, num_tokens, max_total_tokens });
        }
        for (index, block) in new_blocks.iter().copied().enumerate() {
            if block as usize >= num_blocks {
                return Err(RowError::BlockRange { slot, block, num_blocks });
            }
            if block_table.contains(&block) || new_blocks[..index].contains(&block) {
                return Err(RowError::BlockTwice { slot, block });
            }
        }
        let (needed, num_blocks) = (num_tokens.div_ceil(BLOCK_SIZE), block_table.len() + new_blocks.len());
        if needed > num_blocks {
            return Err(RowError::TableTooShort { slot, num_tokens, needed, num_blocks });
        }
        Ok(())
    }

    fn open_row(&self, slot: u32) -> Result<&Row, RowError> {
        self.slots[slot as usize].as_ref().ok_or(RowError::NotOpen { slot })
    }
}

#[cfg(test)]
mod tests;
