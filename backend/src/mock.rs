//! A backend without a model: the next token is computed from all tokens of its row by simple arithmetic.
//!
//! The mock reads earlier tokens through the block table, and the input token from the token history, as real backends
//! do. A wrong slot, block or position therefore changes the result. The mock obeys masks, and of the sampling
//! parameters it reads only `top_n_tokens`. It samples an end-of-sequence token only if a mask allows none of its
//! candidates, so without a mask a sequence never ends with such a token.

use std::time::{Duration, Instant};

use model::Fingerprint;
use model::graph::StateBytes;
use model::sampling::TokenMask;

use super::history::TokenHistory;
use super::{
    BLOCK_SIZE, Backend, BackendError, DevicePlace, LocalRanks, MemoryPlan, PendingStep, Progress, Pulse, StateLayout,
    computed,
};
use crate::batch::{Batch, BatchRow, PromptTargets, PromptToken, SampledToken, StepOutput};

/// More than any mock needs: its KV cache has one number per token.
const AVAILABLE_BYTES: u64 = 64 << 20;

/// The mock. Its KV cache stores token ids where a real backend stores keys and values.
#[derive(Debug)]
pub struct MockBackend {
    candidates: Vec<u32>,
    vocab_size: usize,
    ranks: LocalRanks,
    /// The minimum duration of a step.
    step_duration: Duration,
    state: Option<MockState>,
    pulse: Pulse,
}

#[derive(Debug)]
struct MockState {
    history: TokenHistory,
    /// `[num_blocks, block_size]`
    cache: Vec<i32>,
}

impl MockBackend {
    /// Returns a mock for a vocabulary of `vocab_size` tokens. Its candidates are the tokens of the second quarter of
    /// the vocabulary, which are mostly plain words in byte-pair vocabularies, or of the whole vocabulary if that
    /// quarter is empty, without `eos_token_ids`. Each rank computes all tokens.
    pub fn new(vocab_size: usize, eos_token_ids: &[u32], ranks: LocalRanks) -> Self {
        let is_plain = |id: &u32| !eos_token_ids.contains(id);
        let quarter =
            |range: std::ops::Range<usize>| -> Vec<u32> { range.map(|id| id as u32).filter(is_plain).collect() };
        let mut candidates = quarter(vocab_size / 4..vocab_size / 2);
        if candidates.is_empty() {
            candidates = quarter(0..vocab_size);
        }
        Self { candidates, vocab_size, ranks, step_duration: Duration::ZERO, state: None, pulse: Pulse::default() }
    }

    /// Returns the same mock, but with steps that take at least `step_duration`, like those of a device, to measure the
    /// code around the backend.
    pub fn taking(self, step_duration: Duration) -> Self {
        Self { step_duration, ..self }
    }

    fn sample(&self, context: &[i32], top_n: usize, mask: Option<&TokenMask>) -> SampledToken {
        let hash = hash(context);
        let tokens = self.tokens(hash, mask);
        let logprob = |i: u64| -(((hash % 100) + 100 * i + 1) as f32) / 100.0;
        let Some(token_id) = tokens.clone().next() else {
            return SampledToken { token_id: 0, logprob: f32::NAN, top_tokens: Vec::new() };
        };
        let top_tokens = tokens.zip(0..top_n as u64).map(|(token, i)| (token, logprob(i))).collect();
        SampledToken { token_id, logprob: logprob(0), top_tokens }
    }

    /// Returns the candidates that the mask allows, best first, starting at the candidate that `hash` selects. If there
    /// is a mask, all other tokens that it allows follow.
    fn tokens<'a>(&'a self, hash: u64, mask: Option<&'a TokenMask>) -> impl Iterator<Item = u32> + Clone + 'a {
        let from = |len: usize| (0..len as u64).map(move |i| ((hash + i) % len as u64) as usize);
        let is_allowed = move |token: &u32| mask.is_none_or(|mask| mask.has(*token as usize));
        let candidates = from(self.candidates.len()).map(|index| self.candidates[index]).filter(is_allowed);
        let num_others = if mask.is_some() { self.vocab_size } else { 0 };
        let others = from(num_others).map(|token| token as u32).filter(is_allowed);
        candidates.chain(others.filter(|token| self.candidates.binary_search(token).is_err()))
    }
}

impl MockState {
    fn write(&mut self, batch: &Batch) {
        let tokens = self.history.current_tokens(batch);
        for row in &batch.rows {
            let first_position = row.context_len - row.num_tokens;
            for (i, token) in tokens[row.first_token..][..row.num_tokens].iter().enumerate() {
                let index = cache_index(batch.block_table(row), first_position + i);
                self.cache[index] = *token;
            }
        }
    }

    /// Returns the first `len` tokens of the row, read through the block table.
    fn context(&self, batch: &Batch, row: &BatchRow, len: usize) -> Vec<i32> {
        (0..len).map(|position| self.cache[cache_index(batch.block_table(row), position)]).collect()
    }
}

impl Backend for MockBackend {
    fn state_bytes(&self) -> StateBytes {
        let bytes = size_of::<i32>() as u64;
        StateBytes { per_token: bytes, per_slot: 0, per_position: bytes }
    }

    fn memory(&self) -> Result<MemoryPlan, BackendError> {
        Ok(MemoryPlan { available_bytes: AVAILABLE_BYTES, cache_percent: 50 })
    }

    fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    fn devices(&self) -> Vec<DevicePlace> {
        self.ranks.local().map(DevicePlace::of_host).collect()
    }

    fn allocate(
        &mut self,
        layout: StateLayout,
        _assignment: &[i64],
        _progress: &mut Progress<'_>,
    ) -> Result<(), BackendError> {
        let history = TokenHistory::new(layout.num_slots, layout.max_total_tokens);
        self.state = Some(MockState { history, cache: vec![-1; layout.num_blocks * BLOCK_SIZE] });
        Ok(())
    }

    fn launch(&mut self, batch: &Batch) -> Result<PendingStep, BackendError> {
        let end = Instant::now() + self.step_duration;
        let state = self.state.as_mut().ok_or(BackendError::NotAllocated)?;
        state.write(batch);
        let state = self.state.as_ref().ok_or(BackendError::NotAllocated)?;
        let fingerprint = batch.fingerprint(Fingerprint::default()).value();
        let mut output = StepOutput { fingerprint, ..StepOutput::default() };
        for sampled in &batch.sampled {
            let row = &batch.rows[sampled.row];
            let context = state.context(batch, row, row.context_len);
            let token = self.sample(&context, sampled.params.top_n_tokens as usize, sampled.mask.as_ref());
            state.history.append(row, token.token_id as i32);
            output.tokens.push(token);
        }
        let PromptTargets { token_indices, token_ids, top_n } = &batch.targets;
        for ((token_index, target), top_n) in token_indices.iter().zip(token_ids).zip(top_n) {
            let index = *token_index as usize;
            let row = batch.rows.iter().rfind(|row| row.first_token <= index);
            let row = row.expect("a target belongs to a row of its batch");
            let mut context = state.context(batch, row, batch.positions[index] as usize + 1);
            let top_n = usize::try_from(*top_n).unwrap_or(0);
            let top_tokens = if top_n > 0 { self.sample(&context, top_n, None).top_tokens } else { Vec::new() };
            context.push(*target);
            output.prompt_tokens.push(PromptToken { logprob: -((hash(&context) % 1000) as f32) / 100.0, top_tokens });
        }
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
        self.pulse.advance();
        Ok(computed(output))
    }
}

/// Returns the hash of a context. Without a mask, the next token is the candidate with the index
/// `hash(context) % candidates`.
fn hash(context: &[i32]) -> u64 {
    let hash = Fingerprint::default().numbers(context.iter().map(|token| u64::from(token.cast_unsigned()))).value();
    // The shift by 32 folds the high half into the low bits, on which the remainder `hash % candidates` depends. The
    // shift by 1 keeps `hash + i` from overflowing.
    (hash ^ (hash >> 32)) >> 1
}

fn cache_index(block_table: &[u32], position: usize) -> usize {
    block_table[position / BLOCK_SIZE] as usize * BLOCK_SIZE + position % BLOCK_SIZE
}
