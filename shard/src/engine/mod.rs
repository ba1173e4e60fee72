//! One model on one device: carries out prefill, decode and release, and keeps the books of who is in which slot.
//!
//! Doors: [`load`](fn@load), [`Engine::warmup`], then [`Engine::prefill`], [`Engine::decode`], [`Engine::release`]. A command is checked as
//! a whole before anything changes; then it becomes one [`Batch`] for the backend. A row whose numbers are not finite, or that may
//! choose nothing, is a failure in the reply (`reply.rs`) and no error: the other rows of the step are as good as ever.
//!
//! **Invariant**: there is no policy here. The engine never chooses who runs, never ends a sequence, never waits.

mod check;
mod error;
pub(crate) mod limits;
mod load;
mod reply;
#[cfg(test)]
mod tests;
mod warmup;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use backend::Progress;
use backend::{Backend, DevicePlace};
use backend::{Batch, RowSampler, SAMPLED_TOKEN};
use model::sampling::{self, Samplers, TokenMask};
use proto::{Decode, DecodeRow, MAX_HELD_BACK_TOKENS, ModelInfo, Prefill, PromptChunk, Release, StepReply};

use crate::kv_cache::{Phase, RowTable};
pub(crate) use check::check;
pub(crate) use error::EngineError;
pub(crate) use load::{config_json, graphs, load, num_threads, quantized, weight_type};
use reply::PromptReport;

/// A loaded model.
pub(crate) struct Engine {
    info: ModelInfo,
    work: Work,
    config_hash: u64,
    eos_token_ids: Arc<[i32]>,
    backend: Box<dyn Backend>,
    samplers: Samplers,
    /// `None` before warm-up.
    rows: Option<RowTable>,
    /// When the backend was last done with a step.
    idle_since: Option<Instant>,
}

/// Multiply-adds of a rank's linear layers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Work {
    /// For each token.
    pub(crate) per_token: u64,
    /// For the logits of a row that samples, beside that.
    pub(crate) per_logits: u64,
}

/// A step on its way to the backend, and what its reply needs to know.
#[derive(Default)]
struct Step {
    batch: Batch,
    /// Slot of each sampled row.
    sampled_slots: Vec<u32>,
    /// Chunks whose prompt log-probabilities are asked for.
    prompts: Vec<PromptReport>,
}

impl Engine {
    /// Facts of the model.
    pub(crate) fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// What there is to compute.
    pub(crate) fn work(&self) -> Work {
        self.work
    }

    /// Hash of what all ranks of the model must agree on.
    pub(crate) fn config_hash(&self) -> u64 {
        self.config_hash
    }

    /// The devices of this process, in the order of their ranks.
    pub(crate) fn devices(&self) -> Vec<proto::Device> {
        let device = |place: DevicePlace| {
            let DevicePlace { id, process_index, coords } = place;
            proto::Device { id, process_index, coordinates: coords }
        };
        self.backend.devices().into_iter().map(device).collect()
    }

    /// Whether steps can be taken.
    pub(crate) fn is_warm(&self) -> bool {
        self.rows.is_some()
    }

    /// Reads prompt chunks, and makes a token for each of `rows` in the same step.
    ///
    /// # Errors
    /// [`EngineError::Row`] when the command does not fit, without any change; others when the device failed.
    pub(crate) fn prefill(&mut self, prefill: &Prefill) -> Result<StepReply, EngineError> {
        let rows = self.rows.as_mut().ok_or(EngineError::NotWarm)?;
        rows.check_prefill(prefill)?;
        let num_eos_tokens = self.eos_token_ids.len();
        let holds_back = |chunk: &PromptChunk| chunk.sampling.as_ref().is_some_and(|params| params.min_new_tokens > 0);
        if num_eos_tokens > MAX_HELD_BACK_TOKENS && prefill.chunks.iter().any(holds_back) {
            return Err(EngineError::EosTokens { num_eos_tokens });
        }
        let skips = |chunk: &&PromptChunk| !chunk.cached_token_ids.is_empty();
        if let Some(chunk) = prefill.chunks.iter().find(skips).filter(|_| !self.info.can_skip_prefix) {
            return Err(EngineError::SkippedPrefix { slot: chunk.slot, num_tokens: chunk.cached_token_ids.len() });
        }
        let mut step = Step::default();
        for chunk in &prefill.chunks {
            if let Some(params) = &chunk.sampling {
                rows.open(
                    chunk,
                    RowSampler {
                        params: Arc::new(params.clone()),
                        graph: self.samplers.graph(params)?,
                        eos_token_ids: Arc::clone(&self.eos_token_ids),
                    },
                );
            }
            step.push_chunk(rows, chunk);
            step.mask(chunk.allowed_tokens.as_deref(), (&mut self.samplers, rows))?;
        }
        for row in &prefill.rows {
            step.push_decode_row(rows, row);
            step.mask(row.allowed_tokens.as_deref(), (&mut self.samplers, rows))?;
        }
        self.execute(&step)
    }

    /// Makes one token for each row.
    ///
    /// # Errors
    /// [`EngineError::Row`] when the command does not fit, without any change; others when the device failed.
    pub(crate) fn decode(&mut self, decode: &Decode) -> Result<StepReply, EngineError> {
        let rows = self.rows.as_mut().ok_or(EngineError::NotWarm)?;
        rows.check_decode(&decode.rows)?;
        let mut step = Step::default();
        for row in &decode.rows {
            step.push_decode_row(rows, row);
            step.mask(row.allowed_tokens.as_deref(), (&mut self.samplers, rows))?;
        }
        self.execute(&step)
    }

    /// Ends rows.
    ///
    /// # Errors
    /// [`EngineError::Row`] when a slot is not open, without any change.
    pub(crate) fn release(&mut self, release: &Release) -> Result<(), EngineError> {
        let rows = self.rows.as_mut().ok_or(EngineError::NotWarm)?;
        rows.check_release(release)?;
        release.slots.iter().for_each(|slot| rows.release(*slot));
        Ok(())
    }

    fn execute(&mut self, step: &Step) -> Result<StepReply, EngineError> {
        let compiled_before = self.backend.num_programs_compiled();
        let start = Instant::now();
        let output = self.backend.execute(&step.batch)?;
        let end = Instant::now();
        let idle_ns = self.idle_since.replace(end).map_or(0, |idle_since| nanoseconds(start - idle_since));
        let num_programs_compiled = (self.backend.num_programs_compiled() - compiled_before) as u32;
        Ok(StepReply { num_programs_compiled, idle_ns, forward_ns: nanoseconds(end - start), ..step.reply(output) })
    }
}

impl Step {
    fn push_chunk(&mut self, rows: &mut RowTable, chunk: &PromptChunk) {
        let PromptChunk { slot, position, token_ids, new_blocks, sampling, samples_token, cached_token_ids, .. } =
            chunk;
        let row = rows.extend(*slot, token_ids.len(), new_blocks, *samples_token);
        let tokens: Vec<i32> = token_ids.iter().map(|id| *id as i32).collect();
        if sampling::looks_back(&row.sampler.params) {
            self.batch.push_cached_tokens(*slot as usize, cached_token_ids);
        }
        let wants_logprobs = row.sampler.params.wants_prompt_logprobs;
        let top_n = row.sampler.params.prompt_top_n_tokens;
        let first_token = self.batch.token_ids.len();
        let index = self.batch.push_row(*slot as usize, *position as usize, &tokens, &row.block_table);
        if wants_logprobs {
            let next = chunk.next_token_id.map(|id| id as i32);
            let targets = tokens[1..].iter().copied().chain(next);
            let num_targets = targets.clone().count();
            targets.enumerate().for_each(|(i, token)| self.batch.push_target(first_token + i, token, top_n));
            let is_first = sampling.is_some();
            self.prompts.push(PromptReport { slot: *slot, is_first, num_targets, top_n: top_n as usize });
        }
        if let Phase::Decode { prompt_len } = row.phase {
            self.push_sampled(*slot, index, prompt_len, &row.sampler);
        }
    }

    fn push_decode_row(&mut self, rows: &mut RowTable, decode_row: &DecodeRow) {
        let DecodeRow { slot, position, new_blocks, allowed_tokens: _ } = decode_row;
        let row = rows.extend(*slot, 1, new_blocks, false);
        let index = self.batch.push_row(*slot as usize, *position as usize, &[SAMPLED_TOKEN], &row.block_table);
        if let Phase::Decode { prompt_len } = row.phase {
            self.push_sampled(*slot, index, prompt_len, &row.sampler);
        }
    }

    /// Lets the row that was pushed last choose among `allowed_tokens` only.
    fn mask(
        &mut self,
        allowed_tokens: Option<&[u8]>,
        (samplers, rows): (&mut Samplers, &RowTable),
    ) -> Result<(), EngineError> {
        if let (Some(bytes), Some(sampled)) = (allowed_tokens, self.batch.sampled.last()) {
            let graph = samplers.masked_graph(&sampled.params)?;
            self.batch.mask_sampled(TokenMask::new(bytes, rows.limits().vocab_size), graph);
        }
        Ok(())
    }

    fn push_sampled(&mut self, slot: u32, row: usize, prompt_len: usize, sampler: &RowSampler) {
        self.batch.push_sampled(row, prompt_len, sampler);
        self.sampled_slots.push(slot);
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
