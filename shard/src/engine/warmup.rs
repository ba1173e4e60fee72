//! Warm-up: chooses the limits, allocates the KV cache, and runs a few rows that sample differently.
//!
//! Entry point: [`Engine::warmup`]. All slots are free afterwards. The module `limits` chooses the limits.

use backend::{BLOCK_SIZE, StateLayout};
use proto::{Logprobs, Opening, Release, Row, Sample, SamplingParams, Step, StepReply, StepSizes, Warmup, WarmupReply};

use super::limits::{self, LimitInputs};
use super::{Engine, EngineError, Progress};
use crate::rows::{Limits, RowTable};

const PHASE: &str = "warm up";
/// The length of a warm-up prompt in tokens, if the limits allow it: more than one block.
const PROMPT_LEN: usize = BLOCK_SIZE + 1;

impl Engine {
    /// Makes the engine ready for steps. `progress` is called while the backend allocates, and for each warm-up row.
    ///
    /// # Errors
    /// When the limits cannot be met, the engine is warm already, the backend cannot tell how much memory it has or
    /// cannot allocate it, or a warm-up step or its row fails.
    pub(crate) fn warmup(&mut self, warmup: &Warmup, progress: &mut Progress<'_>) -> Result<WarmupReply, EngineError> {
        if self.is_warm() {
            return Err(EngineError::AlreadyWarm);
        }
        let limits = self.limits(warmup)?;
        let warmup_rows = warmup_rows();
        let total = warmup_rows.len() as u64 + 1;
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
        let mut all = Measurement::default();
        for (done, row) in (1..).zip(warmup_rows) {
            progress(PHASE, done, total);
            match self.measure(row) {
                Ok(measured) => all.add(measured),
                Err(error) => {
                    self.rows = None;
                    return Err(error);
                }
            }
        }
        progress(PHASE, total, total);
        let num_ranks = self.backend.devices().len();
        Ok(WarmupReply {
            sizes: Some(sizes(limits.layout)),
            kv_cache_bytes: self.backend.state_bytes().per_token
                * (num_ranks * limits.layout.num_blocks * BLOCK_SIZE) as u64,
            num_programs_compiled: self.backend.num_programs_compiled() as u32,
            max_top_n_tokens: self.backend.max_top_n_tokens().map_or(0, |most| most as u32),
            slowest_token_ns: all.slowest_token_ns,
            fingerprint: all.fingerprint,
            decode_ns: all.decode_ns.unwrap_or_default(),
            chunk_sizes: self.backend.chunk_sizes().iter().map(|size| *size as u32).collect(),
        })
    }

    /// Returns the sizes that [`Engine::warmup`] would choose.
    ///
    /// # Errors
    /// When the limits cannot be met, or the backend cannot tell how much memory it has.
    pub(crate) fn fit(&self, wishes: &Warmup) -> Result<StepSizes, EngineError> {
        Ok(sizes(self.limits(wishes)?.layout))
    }

    fn limits(&self, wishes: &Warmup) -> Result<Limits, EngineError> {
        let facts = LimitInputs {
            max_position_embeddings: self.info.max_position_embeddings as usize,
            vocab_size: self.info.vocab_size as usize,
            state_bytes: self.backend.state_bytes(),
            window: self.info.window.map(|window| window as usize),
            memory: self.backend.memory()?,
        };
        limits::choose(wishes, &facts)
    }

    /// Runs one row: reads a prompt and samples a token, samples a second token if the row may be longer, and releases
    /// the slot.
    fn measure(&mut self, WarmupRow { sampling, logprobs }: WarmupRow) -> Result<Measurement, EngineError> {
        let limits = self.rows.as_ref().ok_or(EngineError::NotWarm)?.limits();
        let prompt_len = PROMPT_LEN.min(limits.layout.max_total_tokens).min(limits.layout.max_batch_prefill_tokens);
        let prompt = Row {
            token_ids: (0..prompt_len).map(|i| (i % limits.vocab_size) as u32).collect(),
            new_blocks: (0..limits.layout.num_blocks.min(2) as u32).collect(),
            opening: Some(Box::new(Opening { sampling: Some(sampling), ..Opening::default() })),
            token: Some(Sample::default()),
            logprobs,
            ..Row::default()
        };
        let mut measured = self.measured(prompt, prompt_len as u64)?;
        if prompt_len < limits.layout.max_total_tokens {
            let row = Row { position: prompt_len as u32, token: Some(Sample::default()), ..Row::default() };
            // A single token takes as long as several, because the weights are read once.
            measured.add(Measurement { slowest_token_ns: 0, ..self.measured(row, 1)? });
        }
        self.release(&Release { slots: vec![0] })?;
        Ok(measured)
    }

    /// Runs a step with one row, which reads `num_tokens` tokens.
    ///
    /// # Errors
    /// When the step fails. If only the row fails, the model itself is wrong: no client has chosen its tokens.
    fn measured(&mut self, row: Row, num_tokens: u64) -> Result<Measurement, EngineError> {
        let StepReply { rows, forward_ns, fingerprint, .. } = self.step(&Step { rows: vec![row] })?;
        if rows.iter().any(|row| row.failure.is_some()) {
            return Err(EngineError::NotFinite { dtype: self.info.dtype.clone() });
        }
        Ok(Measurement {
            slowest_token_ns: forward_ns / num_tokens,
            decode_ns: (num_tokens == 1).then_some(forward_ns),
            fingerprint,
        })
    }
}

fn sizes(layout: StateLayout) -> StepSizes {
    let StateLayout { num_slots, num_blocks, max_total_tokens, max_batch_prefill_tokens } = layout;
    StepSizes {
        num_slots: num_slots as u32,
        num_blocks: num_blocks as u32,
        max_total_tokens: max_total_tokens as u32,
        max_batch_prefill_tokens: max_batch_prefill_tokens as u32,
    }
}

/// The sampling parameters of a row of the warm-up, and the log-probabilities that it requests.
struct WarmupRow {
    sampling: SamplingParams,
    logprobs: Option<Logprobs>,
}

/// The measurements of warm-up steps.
#[derive(Debug, Clone, Copy, Default)]
struct Measurement {
    /// The longest time of a step that reads a prompt, per token.
    slowest_token_ns: u64,
    /// The shortest time of a step that reads one token.
    decode_ns: Option<u64>,
    fingerprint: u64,
}

impl Measurement {
    fn add(&mut self, next: Self) {
        self.slowest_token_ns = self.slowest_token_ns.max(next.slowest_token_ns);
        self.decode_ns = self.decode_ns.into_iter().chain(next.decode_ns).min();
        // The rotation makes the fingerprint depend on the order of the steps.
        self.fingerprint = self.fingerprint.rotate_left(1) ^ next.fingerprint;
    }
}

/// Returns the rows of the warm-up: greedy; with penalties; with prompt log-probabilities and top tokens; with every
/// processor.
fn warmup_rows() -> [WarmupRow; 4] {
    let everything = SamplingParams::every_processor();
    let penalised = SamplingParams { logit_bias: Vec::new(), watermark_delta: 0.0, ..everything.clone() };
    let reports = SamplingParams { top_n_tokens: 5, ..SamplingParams::greedy() };
    let logprobs = Logprobs { next_token_id: None, top_n_tokens: 5 };
    [
        WarmupRow { sampling: SamplingParams::greedy(), logprobs: None },
        WarmupRow { sampling: penalised, logprobs: None },
        WarmupRow { sampling: reports, logprobs: Some(logprobs) },
        WarmupRow { sampling: everything, logprobs: None },
    ]
}
