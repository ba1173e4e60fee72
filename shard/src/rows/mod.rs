//! The rows in the slots, and their blocks in the KV cache. The backend holds the keys and values themselves.
//!
//! Entry points: [`RowTable::check`] and [`RowTable::check_release`], which check a whole command and change nothing;
//! then the methods that execute it. The router decides which rows run and which blocks they get; this module
//! checks that its commands fit the rows.
//!
//! ```text
//! open ──▶ reads given tokens ──sample──▶ has a sampled token ──read it, sample──▶ … ──release──▶ free
//! ```

use backend::RowSampler;
use backend::{BLOCK_SIZE, StateLayout};
use model::sampling::TokenMask;
use proto::{Opening, Release, SamplingError, Step};

/// The reason why a command is refused. A refused command changes nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum RowError {
    #[error("the step has no rows")]
    EmptyStep,
    #[error("slot {slot} does not exist: there are {num_slots} slots")]
    SlotRange { slot: u32, num_slots: usize },
    #[error("slot {slot} occurs twice in one command")]
    SlotTwice { slot: u32 },
    #[error("slot {slot} is not open")]
    NotOpen { slot: u32 },
    #[error("slot {slot} is already open")]
    AlreadyOpen { slot: u32 },
    #[error("slot {slot} is to go on from the token that the shard sampled for it, but the shard has sampled none")]
    NothingSampled { slot: u32 },
    #[error("slot {slot} has {expected} tokens in the cache, but the command says {position}")]
    Position { slot: u32, position: u32, expected: usize },
    #[error(
        "slot {slot} has read {num_tokens} tokens, of which {num_generated} cannot be generated: the first is of the \
         prompt"
    )]
    Generated { slot: u32, num_tokens: usize, num_generated: u32 },
    #[error("slot {slot} wants the logprobs of given tokens, but no tokens are given")]
    NothingGiven { slot: u32 },
    #[error("slot {slot} gets token {token_id}, but the vocabulary has {vocab_size} tokens")]
    Token { slot: u32, token_id: u32, vocab_size: usize },
    #[error("slot {slot} would hold {num_tokens} tokens, but the limit is {max_total_tokens}")]
    TooLong { slot: u32, num_tokens: usize, max_total_tokens: usize },
    #[error("slot {slot} needs {needed} blocks for {num_tokens} tokens, but its table has {num_blocks}")]
    TableTooShort { slot: u32, num_tokens: usize, needed: usize, num_blocks: usize },
    #[error("slot {slot} gets block {block}, but there are {num_blocks} blocks")]
    BlockRange { slot: u32, block: u32, num_blocks: usize },
    #[error("slot {slot} gets block {block}, which it has already")]
    BlockTwice { slot: u32, block: u32 },
    #[error("the step has {num_tokens} prompt tokens, but the limit is {max_batch_prefill_tokens}")]
    TooManyPromptTokens { num_tokens: usize, max_batch_prefill_tokens: usize },
    #[error("slot {slot} gets a mask of {given} bytes, but the vocabulary of {vocab_size} needs {needed}")]
    MaskLen { slot: u32, given: usize, vocab_size: usize, needed: usize },
    #[error("slot {slot}: {source}")]
    Sampling { slot: u32, source: SamplingError },
}

/// The limits that the checks of commands use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) layout: StateLayout,
    pub(crate) vocab_size: usize,
    /// The maximum number of tokens that a token attends to, itself included; `None` if a layer has no window.
    pub(crate) window: Option<usize>,
}

impl Limits {
    /// Returns the number of a row's first blocks that no token from `position` on reads: the dead blocks. Another row
    /// may own them.
    fn num_dead_blocks(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window) / BLOCK_SIZE)
    }
}

/// The slots with their rows.
#[derive(Debug)]
pub(crate) struct RowTable {
    limits: Limits,
    slots: Vec<Option<Row>>,
}

/// The sequence in one slot.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// The number of tokens in the KV cache.
    pub(crate) num_tokens: usize,
    /// The blocks for the row's tokens, in order of position. Those before its window may belong to other rows.
    pub(crate) block_table: Vec<u32>,
    pub(crate) sampler: RowSampler,
    /// The number of tokens that the row generated before it was preempted. These tokens are the last ones before the
    /// first token that the row samples in this slot.
    num_generated: u32,
    /// The number of tokens of the prompt. `None` until the row samples.
    pub(crate) prompt_len: Option<usize>,
    /// True if the row has sampled the token that follows those in the KV cache.
    has_sampled: bool,
}

/// The tokens and blocks that a command adds to a row.
struct Growth<'a> {
    slot: u32,
    /// The number of tokens before and after the command.
    num_tokens: [usize; 2],
    block_table: &'a [u32],
    new_blocks: &'a [u32],
}

impl RowTable {
    /// Returns a table without rows.
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, slots: vec![None; limits.layout.num_slots] }
    }

    /// Returns the limits that the checks of commands use.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Checks that a step can be executed.
    ///
    /// # Errors
    /// The first error found.
    pub(crate) fn check(&self, step: &Step) -> Result<(), RowError> {
        if step.rows.is_empty() {
            return Err(RowError::EmptyStep);
        }
        self.check_slots(step.rows.iter().map(|row| row.slot))?;
        let num_tokens = step.rows.iter().map(|row| row.token_ids.len()).sum();
        let max_batch_prefill_tokens = self.limits.layout.max_batch_prefill_tokens;
        if num_tokens > max_batch_prefill_tokens {
            return Err(RowError::TooManyPromptTokens { num_tokens, max_batch_prefill_tokens });
        }
        step.rows.iter().try_for_each(|row| self.check_row(row))
    }

    /// Checks that all rows of `release` can end.
    ///
    /// # Errors
    /// The first slot that does not exist, occurs twice or is not open.
    pub(crate) fn check_release(&self, release: &Release) -> Result<(), RowError> {
        self.check_slots(release.slots.iter().copied())?;
        release.slots.iter().try_for_each(|slot| self.open_row(*slot).map(|_| ()))
    }

    /// Puts a checked row into its slot. The row has its cached tokens, and no blocks yet.
    pub(crate) fn open(&mut self, slot: u32, opening: &Opening, sampler: RowSampler) {
        let Opening { sampling: _, cached_token_ids, num_generated_tokens } = opening;
        self.slots[slot as usize] = Some(Row {
            num_tokens: cached_token_ids.len(),
            block_table: Vec::new(),
            sampler,
            num_generated: *num_generated_tokens,
            prompt_len: None,
            has_sampled: false,
        });
    }

    /// Adds checked tokens and blocks to an open row, and returns it.
    pub(crate) fn extend(&mut self, step: &proto::Row) -> &Row {
        let row = self.slots[step.slot as usize].as_mut().expect("the command was checked");
        row.num_tokens += step.num_tokens();
        row.block_table.extend_from_slice(&step.new_blocks);
        row.has_sampled = step.token.is_some();
        if row.has_sampled && row.prompt_len.is_none() {
            row.prompt_len = Some(row.num_tokens - row.num_generated as usize);
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

    fn check_row(&self, row: &proto::Row) -> Result<(), RowError> {
        let slot = row.slot;
        let open = match (&row.opening, &self.slots[slot as usize]) {
            (Some(_), Some(_)) => return Err(RowError::AlreadyOpen { slot }),
            (None, None) => return Err(RowError::NotOpen { slot }),
            (Some(opening), None) => {
                self.check_opening(slot, opening)?;
                None
            }
            (None, Some(open)) => Some(open),
        };
        let len = match (open, &row.opening) {
            (Some(open), _) => open.num_tokens,
            (None, opening) => opening.as_ref().map_or(0, |opening| opening.cached_token_ids.len()),
        };
        if row.position as usize != len {
            return Err(RowError::Position { slot, position: row.position, expected: len });
        }
        if row.reads_sampled() && !open.is_some_and(|open| open.has_sampled) {
            return Err(RowError::NothingSampled { slot });
        }
        if row.reads_sampled() && row.logprobs.is_some() {
            return Err(RowError::NothingGiven { slot });
        }
        let next_token_id = row.logprobs.as_ref().and_then(|logprobs| logprobs.next_token_id);
        self.check_tokens(slot, row.token_ids.iter().copied().chain(next_token_id))?;
        let num_tokens = len + row.num_tokens();
        // At least the first token of a row belongs to its prompt.
        let num_generated = match (open, &row.opening) {
            (Some(Row { prompt_len: Some(_), .. }), _) => 0,
            (Some(open), _) => open.num_generated,
            (None, opening) => opening.as_ref().map_or(0, |opening| opening.num_generated_tokens),
        };
        if row.token.is_some() && num_generated as usize >= num_tokens {
            return Err(RowError::Generated { slot, num_tokens, num_generated });
        }
        self.check_mask(slot, row.token.as_ref().and_then(|sample| sample.allowed_tokens.as_deref()))?;
        let block_table = open.map_or([].as_slice(), |open| open.block_table.as_slice());
        self.check_growth(&Growth { slot, num_tokens: [len, num_tokens], block_table, new_blocks: &row.new_blocks })
    }

    fn check_opening(&self, slot: u32, opening: &Opening) -> Result<(), RowError> {
        let sampling = opening.sampling.clone().unwrap_or_default();
        let check = sampling.check().and_then(|()| sampling.check_tokens(self.limits.vocab_size as u32));
        check.map_err(|source| RowError::Sampling { slot, source })?;
        self.check_tokens(slot, opening.cached_token_ids.iter().copied())
    }

    fn check_tokens(&self, slot: u32, mut token_ids: impl Iterator<Item = u32>) -> Result<(), RowError> {
        let vocab_size = self.limits.vocab_size;
        match token_ids.find(|id| *id as usize >= vocab_size) {
            Some(token_id) => Err(RowError::Token { slot, token_id, vocab_size }),
            None => Ok(()),
        }
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
        let Growth { slot, num_tokens: [num_before, num_tokens], block_table, new_blocks } = *growth;
        let StateLayout { num_slots: _, num_blocks, max_total_tokens, max_batch_prefill_tokens: _ } =
            self.limits.layout;
        if num_tokens > max_total_tokens {
            return Err(RowError::TooLong { slot, num_tokens, max_total_tokens });
        }
        let num_dead = self.limits.num_dead_blocks(num_before);
        for (index, block) in new_blocks.iter().copied().enumerate() {
            if block as usize >= num_blocks {
                return Err(RowError::BlockRange { slot, block, num_blocks });
            }
            // A new block may equal a dead block. Dead blocks are the first ones of the table, or the first new blocks
            // of a row that opens after a long cached prefix.
            let mut own = block_table.iter().chain(&new_blocks[..index]).skip(num_dead);
            if own.any(|own| *own == block) {
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
