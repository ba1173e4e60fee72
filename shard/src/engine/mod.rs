//! One model on the devices of this process: executes steps and releases, and keeps track of the rows in the slots.
//!
//! Entry points: [`load`](fn@load), [`Engine::warmup`], then [`Engine::launch`], [`Engine::release`]. A command is
//! checked as a whole before anything changes. A step then becomes one batch for the backend, and `wants` makes the
//! reply from the results. The next step may be launched before the results of the last one are there.
//!
//! **Invariant**: there is no policy here. The engine never chooses which row runs, and never ends a sequence on its
//! own.

mod check;
mod error;
mod host_memory;
mod launched;
pub(crate) mod limits;
mod load;
#[cfg(test)]
pub(crate) mod tests;
mod wants;
mod warmup;

use std::sync::Arc;
use std::time::Instant;

pub(crate) use backend::Progress;
use backend::{Backend, DevicePlace, Pulse};
use backend::{RowSampler, SAMPLED_TOKEN};
use model::sampling::{self, Samplers, TokenMask};
use proto::{MAX_HELD_BACK_TOKENS, ModelInfo, Opening, Release, Row, Sample, Step, StepReply};

use crate::rows::RowTable;
pub(crate) use check::check;
pub(crate) use error::EngineError;
pub(crate) use launched::{DeviceClock, LaunchedStep};
pub(crate) use load::{config_json, device_counts, load, num_threads, quantized, weight_type};
use wants::Asked;

/// A loaded model.
pub(crate) struct Engine {
    info: ModelInfo,
    work: Work,
    row_bytes: u64,
    config_hash: u64,
    eos_token_ids: Arc<[i32]>,
    backend: Box<dyn Backend>,
    samplers: Samplers,
    /// `None` before warm-up.
    rows: Option<RowTable>,
}

/// The work of a rank's linear layers, in multiply-adds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Work {
    /// For each token.
    pub(crate) per_token: u64,
    /// In addition, for each row of logits.
    pub(crate) per_logits: u64,
    /// True if tokens choose some of the weights.
    pub(crate) has_experts: bool,
}

impl Engine {
    /// Returns the properties of the model that the router can ask for.
    pub(crate) fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Returns the numbers of multiply-adds in the linear layers of one rank.
    pub(crate) fn work(&self) -> Work {
        self.work
    }

    /// Returns the bytes of one rank's weights that a row multiplies, its logits included.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Returns a hash of settings on which all shards of the model must agree.
    pub(crate) fn config_hash(&self) -> u64 {
        self.config_hash
    }

    /// Returns the devices of this process, in the order of their ranks.
    pub(crate) fn devices(&self) -> Vec<proto::Device> {
        let device = |place: DevicePlace| {
            let DevicePlace { rank, id, process_index, coords } = place;
            proto::Device { id, process_index, coordinates: coords, rank: rank as u32 }
        };
        self.backend.devices().into_iter().map(device).collect()
    }

    /// Returns the counter that advances while steps are computed.
    pub(crate) fn pulse(&self) -> Pulse {
        self.backend.pulse()
    }

    /// True if the engine has warmed up, so that steps can run.
    pub(crate) fn is_warm(&self) -> bool {
        self.rows.is_some()
    }

    /// Launches a step and waits for its results.
    ///
    /// # Errors
    /// As [`Engine::launch`], and when the device fails later.
    pub(crate) fn step(&mut self, step: &Step) -> Result<StepReply, EngineError> {
        let mut launched = self.launch(step)?;
        let mut clock = DeviceClock::default();
        pollster::block_on(std::future::poll_fn(|context| launched.poll(&mut clock, context)))
    }

    /// Launches a step: the backend reads the tokens of all its rows. The launched step returns the results that the
    /// rows request.
    ///
    /// # Errors
    /// When the step is invalid or precedes the warm-up, without any change. When a sampler's graph cannot be built or
    /// the device fails, the state of rows may be unknown.
    pub(crate) fn launch(&mut self, step: &Step) -> Result<LaunchedStep, EngineError> {
        self.rows.as_ref().ok_or(EngineError::NotWarm)?.check(step)?;
        self.check_openings(step)?;
        let mut asked = Asked::default();
        for row in &step.rows {
            if let Some(opening) = &row.opening {
                self.open(row, opening, &mut asked)?;
            }
            self.push(row, &mut asked)?;
        }
        let compiled_before = self.backend.num_programs_compiled();
        let start = Instant::now();
        let results = self.backend.launch(&asked.batch)?;
        let num_programs_compiled = (self.backend.num_programs_compiled() - compiled_before) as u32;
        Ok(LaunchedStep { asked, results, start, num_programs_compiled })
    }

    /// Returns the same engine with another backend, made from its own.
    #[cfg(test)]
    pub(crate) fn with_backend(self, wrap: impl FnOnce(Box<dyn Backend>) -> Box<dyn Backend>) -> Self {
        Self { backend: wrap(self.backend), ..self }
    }

    /// Ends the rows in the slots of `release`.
    ///
    /// # Errors
    /// When a slot does not exist, occurs twice or is not open, or the command precedes the warm-up. Nothing changes
    /// then.
    pub(crate) fn release(&mut self, release: &Release) -> Result<(), EngineError> {
        let rows = self.rows.as_mut().ok_or(EngineError::NotWarm)?;
        rows.check_release(release)?;
        release.slots.iter().for_each(|slot| rows.release(*slot));
        Ok(())
    }

    /// Checks that the model supports what new rows require. `min_new_tokens` holds back every token that ends a
    /// sequence, and there is room for [`MAX_HELD_BACK_TOKENS`] of them. A cached prefix is skipped, but a model with a
    /// state per slot must read every token.
    fn check_openings(&self, step: &Step) -> Result<(), EngineError> {
        let num_eos_tokens = self.eos_token_ids.len();
        for (row, opening) in step.rows.iter().filter_map(|row| Some((row, row.opening.as_ref()?))) {
            let holds_back = opening.sampling.as_ref().is_some_and(|params| params.min_new_tokens > 0);
            if holds_back && num_eos_tokens > MAX_HELD_BACK_TOKENS {
                return Err(EngineError::EosTokens { num_eos_tokens });
            }
            let num_tokens = opening.cached_token_ids.len();
            if num_tokens > 0 && !self.info.can_skip_prefix {
                return Err(EngineError::SkippedPrefix { slot: row.slot, num_tokens });
            }
        }
        Ok(())
    }

    /// Puts a new row into its slot. If its sampler reads earlier tokens, its cached tokens are added to the batch.
    fn open(&mut self, row: &Row, opening: &Opening, asked: &mut Asked) -> Result<(), EngineError> {
        let params = Arc::new(opening.sampling.clone().unwrap_or_default());
        if sampling::looks_back(&params) {
            asked.batch.push_cached_tokens(row.slot as usize, &opening.cached_token_ids);
        }
        let graph = self.samplers.graph(&params)?;
        let sampler = RowSampler { params, graph, eos_token_ids: Arc::clone(&self.eos_token_ids) };
        self.rows.as_mut().ok_or(EngineError::NotWarm)?.open(row.slot, opening, sampler);
        Ok(())
    }

    /// Adds an open row to the batch of the backend.
    fn push(&mut self, row: &Row, asked: &mut Asked) -> Result<(), EngineError> {
        let rows = self.rows.as_mut().ok_or(EngineError::NotWarm)?;
        let vocab_size = rows.limits().vocab_size;
        let open = rows.extend(row);
        let given: Vec<i32> = row.token_ids.iter().map(|id| *id as i32).collect();
        let tokens = if row.reads_sampled() { &[SAMPLED_TOKEN][..] } else { given.as_slice() };
        asked.batch.push_row(row.slot as usize, row.position as usize, tokens, &open.block_table);
        let mask = match &row.token {
            Some(Sample { allowed_tokens: Some(allowed) }) => {
                let graph = self.samplers.masked_graph(&open.sampler.params)?;
                Some((TokenMask::new(allowed, vocab_size), graph))
            }
            Some(Sample { allowed_tokens: None }) | None => None,
        };
        asked.push(row, open, mask);
        Ok(())
    }
}
