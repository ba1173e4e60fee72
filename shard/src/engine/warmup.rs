//! Warm-up: choose the limits, allocate the KV cache, run every kind of step once.
//!
//! Door: [`Engine::warmup`]. Afterwards all slots are free. The limits follow from what the client asks for, what the
//! model takes and what memory there is; when they cannot be met, the error says which flag to change.

use backend::{BLOCK_SIZE, StateLayout};
use proto::{
    Decode, DecodeRow, FitReply, Prefill, PromptChunk, Release, SamplingParams, StepReply, Warmup, WarmupReply,
};

use super::limits::{self, Facts};
use super::{Engine, EngineError, Progress};
use crate::kv_cache::{Limits, RowTable};

const PHASE: &str = "warm up";
/// Tokens of a warm-up prompt: more than a block.
const PROMPT_LEN: usize = BLOCK_SIZE + 1;

impl Engine {
    /// Makes the engine ready for steps. `progress` hears of each piece of work.
    ///
    /// # Errors
    /// When the limits cannot be met, or a step or the row in it fails.
    pub(crate) fn warmup(&mut self, warmup: &Warmup, progress: &mut Progress<'_>) -> Result<WarmupReply, EngineError> {
        if self.is_warm() {
            return Err(EngineError::AlreadyWarm);
        }
        let limits = self.limits(warmup)?;
        let pieces = warmup_params();
        let total = pieces.len() as u64 + 1;
        progress(PHASE, 0, total);
        let own: Vec<i64>;
        let assignment = if warmup.device_assignment.is_empty() {
            own = self.backend.devices().iter().map(|device| device.id).collect();
            &own
        } else {
            &warmup.device_assignment
        };
        self.backend.allocate(limits.layout, assignment, progress)?;
        self.rows = Some(RowTable::new(limits));
        let mut all = Rehearsal::default();
        for (done, params) in (1..).zip(pieces) {
            progress(PHASE, done, total);
            match self.rehearse(params) {
                Ok(rehearsal) => all.add(rehearsal),
                Err(error) => {
                    self.rows = None;
                    return Err(error);
                }
            }
        }
        progress(PHASE, total, total);
        let StateLayout { num_slots, num_blocks, max_total_tokens, max_batch_prefill_tokens } = limits.layout;
        let num_ranks = self.backend.devices().len();
        Ok(WarmupReply {
            num_slots: num_slots as u32,
            num_blocks: num_blocks as u32,
            max_total_tokens: max_total_tokens as u32,
            max_batch_prefill_tokens: max_batch_prefill_tokens as u32,
            kv_cache_bytes: self.backend.state_bytes().per_token * (num_ranks * num_blocks * BLOCK_SIZE) as u64,
            num_programs_compiled: self.backend.num_programs_compiled() as u32,
            max_top_n_tokens: self.backend.max_top_n_tokens().map_or(0, |most| most as u32),
            slowest_token_ns: all.slowest_token_ns,
            fingerprint: all.fingerprint,
        })
    }

    /// What [`Engine::warmup`] would choose.
    ///
    /// # Errors
    /// When the limits cannot be met.
    pub(crate) fn fit(&self, wishes: &Warmup) -> Result<FitReply, EngineError> {
        let StateLayout { num_slots, num_blocks, max_total_tokens, max_batch_prefill_tokens } =
            self.limits(wishes)?.layout;
        Ok(FitReply {
            num_slots: num_slots as u32,
            num_blocks: num_blocks as u32,
            max_total_tokens: max_total_tokens as u32,
            max_batch_prefill_tokens: max_batch_prefill_tokens as u32,
        })
    }

    fn limits(&self, wishes: &Warmup) -> Result<Limits, EngineError> {
        let facts = Facts {
            max_position_embeddings: self.info.max_position_embeddings as usize,
            vocab_size: self.info.vocab_size as usize,
            state_bytes: self.backend.state_bytes(),
            memory: self.backend.memory()?,
        };
        limits::choose(wishes, &facts)
    }

    /// A prompt with a chunk cut off, a token, another token, and the end.
    fn rehearse(&mut self, sampling: SamplingParams) -> Result<Rehearsal, EngineError> {
        let limits = self.rows.as_ref().ok_or(EngineError::NotWarm)?.limits();
        let prompt_len = PROMPT_LEN.min(limits.layout.max_total_tokens).min(limits.layout.max_batch_prefill_tokens);
        let chunk = PromptChunk {
            slot: 0,
            position: 0,
            token_ids: (0..prompt_len).map(|i| (i % limits.vocab_size) as u32).collect(),
            new_blocks: (0..limits.layout.num_blocks.min(2) as u32).collect(),
            sampling: Some(sampling),
            samples_token: true,
            ..PromptChunk::default()
        };
        let prefill = self.prefill(&Prefill { chunks: vec![chunk], rows: vec![] })?;
        let mut rehearsal = Rehearsal::of(&prefill, prompt_len as u64)?;
        if prompt_len < limits.layout.max_total_tokens {
            let row = DecodeRow { slot: 0, position: prompt_len as u32, new_blocks: vec![], allowed_tokens: None };
            rehearsal.add(Rehearsal::of(&self.decode(&Decode { rows: vec![row] })?, 1)?);
        }
        self.release(&Release { slots: vec![0] })?;
        Ok(rehearsal)
    }
}

/// What steps of the warm-up tell.
#[derive(Debug, Clone, Copy, Default)]
struct Rehearsal {
    slowest_token_ns: u64,
    fingerprint: u64,
}

impl Rehearsal {
    /// # Errors
    /// When the row failed: what makes no token of these prompts makes none of any.
    fn of(step: &StepReply, num_tokens: u64) -> Result<Self, EngineError> {
        match step.failures.first() {
            Some(failure) => Err(EngineError::NotFinite { slot: failure.slot }),
            None => Ok(Self { slowest_token_ns: step.forward_ns / num_tokens, fingerprint: step.fingerprint }),
        }
    }

    fn add(&mut self, next: Self) {
        self.slowest_token_ns = self.slowest_token_ns.max(next.slowest_token_ns);
        // Steps in another order are another warm-up.
        self.fingerprint = self.fingerprint.rotate_left(1) ^ next.fingerprint;
    }
}

/// One row of each kind of program: greedy; with penalties; with prompt log-probabilities and top tokens; with every processor.
fn warmup_params() -> [SamplingParams; 4] {
    let everything = SamplingParams::every_processor();
    let penalised = SamplingParams { logit_bias: Vec::new(), watermark_delta: 0.0, ..everything.clone() };
    let reports = SamplingParams {
        top_n_tokens: 5,
        wants_prompt_logprobs: true,
        prompt_top_n_tokens: 5,
        ..SamplingParams::greedy()
    };
    [SamplingParams::greedy(), penalised, reports, everything]
}
