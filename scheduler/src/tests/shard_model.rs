//! A model of a shard for tests, which also checks the steps. Each position of its KV cache stores a number that
//! depends on all tokens up to that position. So a test fails if a row reads a wrong block, or a block that another row
//! has overwritten.

use std::collections::{BTreeMap, BTreeSet};

use proto::{GivenTokens, Logprobs, RowFailure, RowReply, SampledToken, StepReply, TopTokens};

use super::{BLOCK, EOS, TOKEN};
use crate::{Limits, Step};

/// The state of one open row.
#[derive(Debug)]
pub(super) struct Row {
    position: u32,
    blocks: Vec<u32>,
    /// The index of the first of `blocks` that the current step may read. Earlier blocks may belong to other rows.
    first_live: usize,
    /// The expected number of each token, computed from the row's own tokens; poison once the row has read poison.
    entries: Vec<u64>,
    num_generated: u32,
    /// `None` while the prompt is read.
    prompt_len: Option<u32>,
    last_token: u32,
    /// True if every token of the row needs a mask.
    is_masked: bool,
}

/// All rows and the KV cache.
#[derive(Debug)]
pub(super) struct ShardModel {
    limits: Limits,
    pub(super) rows: BTreeMap<u32, Row>,
    /// `[num_blocks, BLOCK]`
    cache: Vec<u64>,
    /// The number of given tokens read so far.
    pub(super) num_read: u64,
    /// The poisoned blocks of rows whose failure the scheduler knows.
    known_bad: BTreeSet<u32>,
}

/// The number that stands for keys and values that are not finite. All numbers computed from it are poison too, and no
/// token can be sampled from it.
const POISON: u64 = u64::MAX;

/// The seed that marks sequences with masks.
pub(super) const MASKED: u64 = 77;

/// Returns the mask of the token that follows `num_tokens` tokens.
pub(super) fn mask_after(num_tokens: u32) -> Vec<u8> {
    num_tokens.to_le_bytes().to_vec()
}

/// Returns the number that stands for the keys and values of `token`; `before` is the number of the previous token.
fn entry(before: u64, token: u32) -> u64 {
    if before == POISON {
        return POISON;
    }
    (before ^ u64::from(token).wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(23)
}

/// Returns the token that a row generates. `last` is the number of the row's last token, and `num_generated` is the
/// number of tokens generated before. About one token in sixteen is the end-of-sequence token.
fn next_token(last: u64, num_generated: u32) -> u32 {
    let hash = entry(last, num_generated) >> 20;
    if hash.is_multiple_of(16) { EOS } else { TOKEN + (hash % 5) as u32 }
}

/// Returns the tokens that a sequence generates if it runs to its end.
pub(super) fn completion(prompt: &[u32], max_new_tokens: u32, ignores_eos: bool) -> Vec<u32> {
    let mut last = prompt.iter().fold(0, |before, token| entry(before, *token));
    let mut tokens = Vec::new();
    for num_generated in 0..max_new_tokens {
        let token = next_token(last, num_generated);
        tokens.push(token);
        if token == EOS && !ignores_eos {
            break;
        }
        last = entry(last, token);
    }
    tokens
}

/// Returns the numbers that stand for the keys and values of these tokens.
fn entries_of(tokens: &[u32]) -> Vec<u64> {
    let next = |last: &mut u64, token: &u32| {
        *last = entry(*last, *token);
        Some(*last)
    };
    tokens.iter().scan(0, next).collect()
}

/// Returns the first position whose keys and values the token at `position` reads.
fn first_read(window: Option<u32>, position: u32) -> u32 {
    window.map_or(0, |window| (position + 1).saturating_sub(window))
}

/// Returns the number of first blocks of a row that no token from `position` on reads.
fn num_dead_blocks(window: Option<u32>, position: u32) -> usize {
    (first_read(window, position) / BLOCK) as usize
}

impl Row {
    fn live_blocks(&self) -> &[u32] {
        &self.blocks[self.first_live.min(self.blocks.len())..]
    }

    /// Checks that `mask` is the mask of the next token. A mask contains the number of tokens before its token.
    fn check_mask(&self, mask: Option<&Vec<u8>>) {
        assert_eq!(mask, self.is_masked.then(|| mask_after(self.position)).as_ref(), "the mask of another token");
    }
}

impl ShardModel {
    pub(super) fn new(limits: &Limits) -> Self {
        let cache = vec![0; (limits.num_blocks * BLOCK) as usize];
        Self { limits: limits.clone(), rows: BTreeMap::new(), cache, num_read: 0, known_bad: BTreeSet::new() }
    }

    /// Carries out a step, and returns the reply.
    pub(super) fn run(&mut self, step: &Step) -> StepReply {
        for slot in &step.releases {
            assert!(self.rows.remove(&slot.0).is_some(), "release of slot {} that is not open", slot.0);
        }
        let window = self.limits.window;
        self.rows.values_mut().for_each(|row| row.first_live = num_dead_blocks(window, row.position));
        let mut slots = BTreeSet::new();
        // All rows are opened before any row of the step writes, because nothing may rely on the order of rows in a
        // step.
        for row in &step.rows {
            assert!(slots.insert(row.slot), "slot {} twice in a step", row.slot);
            self.open(row);
            self.num_read += row.token_ids.len() as u64;
        }
        for row in &step.rows {
            let tokens = if row.reads_sampled() {
                let open = &self.rows[&row.slot];
                assert!(open.prompt_len.is_some(), "slot {} decodes before its prompt is read", row.slot);
                vec![open.last_token]
            } else {
                row.token_ids.clone()
            };
            self.write(row.slot, row.position, &tokens, &row.new_blocks);
            let open = self.rows.get_mut(&row.slot).unwrap();
            if let Some(sample) = &row.token {
                open.prompt_len.get_or_insert(open.position - open.num_generated);
                open.check_mask(sample.allowed_tokens.as_ref());
            }
        }
        let rows = step.rows.iter().filter_map(|row| self.answer(row)).collect();
        let prompt_tokens: usize = step.rows.iter().map(|row| row.token_ids.len()).sum();
        assert!(prompt_tokens <= self.limits.max_batch_prefill_tokens as usize, "prefill budget passed");
        assert!(slots.len() <= self.limits.max_batch_size as usize, "batch size passed");
        StepReply { rows, ..StepReply::default() }
    }

    fn open(&mut self, row: &proto::Row) {
        let Some(opening) = &row.opening else { return };
        let sampling = opening.sampling.as_ref().expect("a row is opened with its parameters");
        let open = Row {
            position: opening.cached_token_ids.len() as u32,
            blocks: Vec::new(),
            first_live: num_dead_blocks(self.limits.window, row.position),
            entries: entries_of(&opening.cached_token_ids),
            num_generated: opening.num_generated_tokens,
            prompt_len: None,
            last_token: 0,
            is_masked: sampling.seed == MASKED,
        };
        assert!(self.limits.caches_prefixes || open.position == 0, "tokens are skipped that must be read");
        assert!(row.logprobs.is_none() || open.position == 0, "logprobs of tokens that are not read");
        assert!(self.rows.insert(row.slot, open).is_none(), "slot {} opened twice", row.slot);
        self.check_cached(&row.new_blocks, &opening.cached_token_ids);
    }

    /// Returns the reply to a row, or `None` if the row asks for neither a token nor log-probabilities.
    fn answer(&mut self, row: &proto::Row) -> Option<RowReply> {
        let slot = row.slot;
        let logprobs = row.logprobs.as_ref().map(|wanted| Box::new(self.given_tokens(row, wanted)));
        if row.token.is_none() {
            return logprobs.map(|logprobs| RowReply { slot, logprobs: Some(logprobs), ..RowReply::default() });
        }
        let token = self.sample(slot).map(|token_id| SampledToken { token_id, ..SampledToken::default() });
        let failure = token.is_none().then_some(RowFailure::NotFinite.into());
        Some(RowReply { slot, failure, token, logprobs })
    }

    /// Returns the log-probabilities and top tokens that the row asks for. Both are computed from the position, so that
    /// tests can check them.
    fn given_tokens(&self, row: &proto::Row, wanted: &Logprobs) -> GivenTokens {
        let positions = row.position + 1..self.rows[&row.slot].position + u32::from(wanted.next_token_id.is_some());
        let top_tokens = |position| TopTokens { token_ids: vec![position], logprobs: vec![0.0] };
        GivenTokens {
            top_tokens: positions.clone().filter(|_| wanted.top_n_tokens > 0).map(top_tokens).collect(),
            logprobs: positions.map(|position| -(position as f32)).collect(),
        }
    }

    /// Poisons the number of an open row's last token, if there is one and a later token reads its block.
    pub(super) fn poison(&mut self, index: usize) {
        let row = self.rows.values().nth(index % self.rows.len().max(1)).filter(|row| row.position > 0);
        let Some(row) = row else { return };
        let last = row.position - 1;
        let block = (last / BLOCK) as usize;
        if block >= num_dead_blocks(self.limits.window, row.position) {
            self.cache[(row.blocks[block] * BLOCK + last % BLOCK) as usize] = POISON;
        }
    }

    /// Notes that the scheduler knows of the failure of a row. From here on, no row may be opened with the poisoned
    /// blocks of the failed row.
    pub(super) fn note_failure(&mut self, slot: u32) {
        let has_poison = |block: &u32| self.cache[(block * BLOCK) as usize..][..BLOCK as usize].contains(&POISON);
        self.known_bad.extend(self.rows[&slot].live_blocks().iter().filter(|block| has_poison(block)));
    }

    fn write(&mut self, slot: u32, position: u32, tokens: &[u32], new_blocks: &[u32]) {
        let row = self.rows.get_mut(&slot).unwrap_or_else(|| panic!("slot {slot} is not open"));
        assert_eq!(row.position, position, "position of slot {slot}");
        assert!(!tokens.is_empty(), "empty chunk");
        row.blocks.extend(new_blocks);
        row.position += tokens.len() as u32;
        assert!(row.blocks.iter().all(|block| *block < self.limits.num_blocks), "a block does not exist");
        let distinct: BTreeSet<u32> = row.live_blocks().iter().copied().collect();
        assert_eq!(distinct.len(), row.live_blocks().len(), "a block twice in the table of slot {slot}");
        assert!(row.position <= row.blocks.len() as u32 * BLOCK, "block table of slot {slot} is too short");
        let (blocks, mut entries) = (row.blocks.clone(), std::mem::take(&mut row.entries));
        let place = |position: u32| (blocks[(position / BLOCK) as usize] * BLOCK + position % BLOCK) as usize;
        let mut last = entries.last().copied().unwrap_or(0);
        for read in first_read(self.limits.window, position)..position {
            match self.cache[place(read)] {
                POISON => last = POISON,
                number => assert_eq!(number, entries[read as usize], "slot {slot} reads another row at {read}"),
            }
        }
        for (position, token) in (position..).zip(tokens) {
            self.check_nobody_reads(slot, blocks[(position / BLOCK) as usize]);
            self.known_bad.remove(&blocks[(position / BLOCK) as usize]);
            last = entry(last, *token);
            self.cache[place(position)] = last;
            entries.push(last);
        }
        self.rows.get_mut(&slot).unwrap().entries = entries;
    }

    /// Checks that no other row reads the block that `slot` writes.
    fn check_nobody_reads(&self, slot: u32, block: u32) {
        let reader = self.rows.iter().find(|(other, row)| **other != slot && row.live_blocks().contains(&block));
        assert!(reader.is_none(), "slot {slot} writes block {block} of slot {}", reader.unwrap().0);
    }

    /// Checks that the blocks of a prefix contain the numbers of its tokens. Poisoned blocks pass unless the scheduler
    /// knows of them.
    fn check_cached(&self, blocks: &[u32], tokens: &[u32]) {
        let first_read = first_read(self.limits.window, tokens.len() as u32) as usize;
        for (position, expected) in entries_of(tokens).into_iter().enumerate().skip(first_read) {
            let block = blocks[position / BLOCK as usize];
            let place = block as usize * BLOCK as usize + position % BLOCK as usize;
            if self.cache[place] == POISON {
                assert!(!self.known_bad.contains(&block), "block {block} of a row that failed is read");
                continue;
            }
            assert_eq!(self.cache[place], expected, "cached position {position} is not what it should be");
        }
    }

    fn sample(&mut self, slot: u32) -> Option<u32> {
        let row = self.rows.get_mut(&slot).unwrap();
        let last = row.position - 1;
        let place = row.blocks[(last / BLOCK) as usize] * BLOCK + last % BLOCK;
        let num_generated = row.position - row.prompt_len.unwrap();
        let last = self.cache[place as usize];
        row.last_token = if last == POISON { 0 } else { next_token(last, num_generated) };
        (last != POISON).then_some(row.last_token)
    }
}
