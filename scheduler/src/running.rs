//! A running sequence: its progress after the steps scheduled so far, and its row in the next step.
//!
//! ```text
//!  tokens [0 ........ num_to_read)   generated while the sequence runs
//!         ├── written ──┤                           in the KV cache once the steps scheduled so far are done
//!                        next: a chunk of the tokens to read, then one decode row per step
//! ```
//!
//! A sequence reads its prompt, and after a preemption also the tokens that it had generated before.

use std::ops::Range;

use proto::{Opening, Row, Sample};

use crate::Limits;
use crate::kv_pool::{BlockTable, KvPool};
use crate::pace::Chunk;
use crate::sequence::Sequence;
use crate::slot::{Admission, SlotId};
use crate::step::{Expected, Step};
use crate::wants::PromptWants;

/// A sequence that owns a slot and blocks.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) sequence: Sequence,
    pub(crate) admission: Admission,
    pub(crate) table: BlockTable,
    num_to_read: u32,
    num_written: u32,
    /// The number of tokens that the sequence will have generated after the steps scheduled so far, unless it ends
    /// before.
    num_scheduled_tokens: u32,
    /// The reports on the prompt that the sequence's rows ask for.
    wants: PromptWants,
    /// True if one of the steps scheduled so far opens the sequence's row.
    is_open: bool,
    /// The number of blocks of the table that were sent to the shards.
    num_told_blocks: usize,
}

impl Running {
    /// Creates a running sequence whose first `num_cached` tokens are in the blocks of `table`.
    pub(crate) fn new(sequence: Sequence, admission: Admission, table: BlockTable, num_cached: u32) -> Self {
        Self {
            num_to_read: sequence.num_tokens(),
            num_scheduled_tokens: sequence.num_new_tokens(),
            wants: sequence.wants(),
            is_open: false,
            num_told_blocks: 0,
            sequence,
            admission,
            table,
            num_written: num_cached,
        }
    }

    /// The number of tokens that the next step may read: tokens that no step has read and that have room in the table's
    /// blocks. The last token to read waits until the mask of the token after it is known.
    pub(crate) fn num_unread(&self, block_size_tokens: u32) -> u32 {
        let held_back = u32::from(!self.sequence.can_sample(self.num_scheduled_tokens));
        let num_places = self.table.blocks().len() * block_size_tokens as usize;
        let end = (self.num_to_read - held_back).min(u32::try_from(num_places).unwrap_or(u32::MAX));
        end.saturating_sub(self.num_written)
    }

    /// True if one of the steps scheduled so far opens the sequence's row.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// True if the sequence has read its prompt and the next step can generate a token.
    pub(crate) fn is_decoding(&self) -> bool {
        self.num_written >= self.num_to_read
            && self.num_scheduled_tokens < self.sequence.max_new_tokens
            && self.sequence.can_sample(self.num_scheduled_tokens)
    }

    /// Gives up the blocks that the steps scheduled from here on do not read.
    pub(crate) fn drop_dead_blocks(&mut self, pool: &mut KvPool, limits: &Limits) {
        pool.drop_first(&mut self.table, limits.num_dead_blocks(self.num_written));
    }

    /// Takes the blocks to which the next step may write. Returns false if not enough blocks are available.
    pub(crate) fn grow(&mut self, pool: &mut KvPool, limits: &Limits) -> bool {
        let is_decoding = self.is_decoding();
        let reach = if is_decoding { self.num_written + 1 } else { limits.reach(self.num_written, self.num_to_read) };
        let num_blocks = reach.div_ceil(limits.block_size_tokens) as usize;
        while self.table.blocks().len() < num_blocks {
            if pool.grow(&mut self.table).is_none() {
                return false;
            }
        }
        true
    }

    /// Returns the blocks of the table that were not sent to the shards yet, and counts them as sent.
    fn tell_blocks(&mut self) -> Vec<u32> {
        let blocks = self.table.blocks();
        let num_told_blocks = std::mem::replace(&mut self.num_told_blocks, blocks.len());
        blocks[num_told_blocks..].iter().map(|block| block.0).collect()
    }

    /// Adds the sequence's full blocks to the prefix cache, up to the last token whose id is known here.
    pub(crate) fn cache(&mut self, pool: &mut KvPool) {
        let num_known = self.num_written.min(self.sequence.num_tokens());
        pool.cache(&mut self.table, &self.sequence.tokens, num_known);
    }

    /// Adds to a step the row that generates the next token.
    pub(crate) fn decode(&mut self, slot: SlotId, step: &mut Step) {
        let row = Row {
            slot: slot.0,
            position: self.num_written,
            new_blocks: self.tell_blocks(),
            token: Some(self.sample()),
            ..Row::default()
        };
        step.work.add_decoding(self.num_written);
        self.num_written += 1;
        self.num_scheduled_tokens += 1;
        step.push(row, Expected { slot, admission: self.admission, wants_token: true, report: None });
    }

    /// Returns the chunk without tokens that begins at the next token to read.
    pub(crate) fn empty_chunk(&self) -> Chunk {
        Chunk { start: self.num_written, num_tokens: 0, is_reported: self.wants.reads_all() }
    }

    /// Plans to read `num_tokens` more tokens in this step.
    pub(crate) fn plan(&mut self, num_tokens: u32, pool: &mut KvPool) {
        self.num_written += num_tokens;
        self.cache(pool);
    }

    /// Adds to a step the row that reads the planned tokens, from position `start` on.
    pub(crate) fn read(&mut self, slot: SlotId, start: u32, step: &mut Step) {
        let new_blocks = self.tell_blocks();
        let ids = |range: Range<u32>| self.sequence.tokens.range(range).into_owned();
        let token_ids = ids(start..self.num_written);
        let mut row = Row { slot: slot.0, position: start, token_ids, new_blocks, ..Row::default() };
        if !self.is_open {
            row.opening = Some(Box::new(Opening {
                sampling: Some(self.sequence.sampling.clone()),
                cached_token_ids: ids(0..start),
                num_generated_tokens: self.num_scheduled_tokens,
            }));
        }
        let next = self.num_written..self.num_to_read.min(self.num_written + 1);
        let report = self.wants.ask(&mut row, ids(next).first().copied());
        let wants_token = self.num_written == self.num_to_read;
        if wants_token {
            row.token = Some(self.sample());
            self.num_scheduled_tokens += 1;
        }
        self.is_open = true;
        step.push(row, Expected { slot, admission: self.admission, wants_token, report });
    }

    fn sample(&self) -> Sample {
        Sample { allowed_tokens: self.sequence.mask().cloned() }
    }
}
