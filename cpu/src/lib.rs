//! The CPU backend: executes graphs operation by operation. It is the reference that other backends are compared with.
//!
//! Candle's tensors hold the values between operations, and candle does simple operations on them, such as reshaping
//! and gathering; the hot operations (linear, attention, norms, softmax) are our `kernels`. The model runs over all
//! tokens of a step at once. Samplers run row by row: each row has the graph of its own sampling parameters, and
//! several rows run in parallel.
//!
//! The ranks of a host share a model. Each rank is a process with a part of the weights and a share of the processors.
//! The ranks sum their results, in most models twice per layer ([`Membership`]), and all sample the same tokens,
//! because they have the same bits.
//!
//! Between operations, activations are f32 whatever the type of the weights; keys and values are rounded to the type of
//! the KV cache when they are written. The bits of a row's results depend neither on the other rows, nor on the chunks
//! of its prompt, nor on the number of threads.

mod elementwise;
mod error;
mod executor;
mod experts;
mod host;
mod loader;
mod model_ops;
#[cfg(any(test, feature = "oracle"))]
pub mod oracle;
mod plan;
mod sampling_ops;
mod selection;
mod state;
mod step;
mod targets;
#[cfg(test)]
mod tests;
mod threads;
mod threefry;

use backend::{
    Backend, BackendError, Batch, DevicePlace, Membership, MemoryPlan, ModelGraphs, PendingStep, Processors, Progress,
    PromptToken, Pulse, SampledToken, StateLayout, StepOutput, WeightBytes, computed,
};
use candle_core::Tensor;
use kernels::attention::KvType;
use model::Fingerprint;
use model::graph::{Graph, StateBytes};
use model::weights::Checkpoint;
use rayon::prelude::*;

use error::CpuError;
use executor::Program;
use loader::Weight;
use state::State;
use step::Step;
use targets::Targets;
use threads::Threads;

/// The options of a rank.
#[derive(Debug)]
pub struct CpuOptions {
    pub membership: Membership,
    /// The number of compute threads of all ranks of the host together.
    pub num_threads: usize,
    pub processors: Processors,
    /// The number format of keys and values.
    pub kv_type: KvType,
}

/// Returns the bytes of the states that a rank of the model `graphs` keeps between steps.
pub fn state_bytes(graphs: &ModelGraphs, kv_type: KvType) -> StateBytes {
    bytes_of_states(&graphs.decoder, kv_type)
}

/// Returns the bytes that a rank's part of the weights of `graphs` takes when it is loaded. Of quantized weights, only
/// the scales are read; of others, nothing.
///
/// # Errors
/// When a weight is missing or malformed.
pub fn weights_bytes(graphs: &ModelGraphs, checkpoint: &Checkpoint, rank: usize) -> Result<u64, BackendError> {
    Ok(loader::size_bytes(&[&graphs.decoder, &graphs.logits], checkpoint, rank)?)
}

fn bytes_of_states(decoder: &Graph, kv_type: KvType) -> StateBytes {
    StateBytes::of(decoder.states(), |vector_len| kv_type.bytes_per_vector(vector_len) as u64)
}

/// A model on the CPU.
#[derive(Debug)]
pub struct CpuBackend {
    membership: Membership,
    threads: Threads,
    decoder: Program,
    logits: Program,
    targets: Targets,
    kv_type: KvType,
    weight_bytes: WeightBytes,
    /// The hash of the graphs.
    fingerprint: Fingerprint,
    state: Option<State>,
    pulse: Pulse,
}

impl CpuBackend {
    /// Loads this rank's part of the weights of `graphs` and packs it for the kernels. `progress` receives the number
    /// of loaded weights and the total.
    ///
    /// # Errors
    /// When a weight cannot be loaded, the threads cannot be started, a graph cannot be built, or another rank does not
    /// join in time.
    pub fn load(
        graphs: &ModelGraphs,
        checkpoint: &Checkpoint,
        options: CpuOptions,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, BackendError> {
        let CpuOptions { membership, num_threads, processors, kv_type } = options;
        let threads = Threads::new(membership.num_threads(num_threads), membership.near(&processors))?;
        let targets = Targets::new(graphs.vocab_size()).map_err(CpuError::from)?;
        let ModelGraphs { decoder, logits } = graphs;
        let graphs = [decoder, logits];
        let weights = threads.install(|| loader::load(&graphs, (checkpoint, &membership), progress))?;
        let all = weights.values().map(Weight::size_bytes).sum();
        let weight_bytes = WeightBytes::of(graphs.map(AsRef::as_ref), all, |spec| weights[&spec.name].size_bytes());
        let [decoder, logits] = graphs.map(|graph| Program::new(graph, &weights));
        let text = format!("{}{}", decoder.graph(), logits.graph());
        let fingerprint = Fingerprint::default().bytes(text.as_bytes());
        Ok(Self {
            membership,
            threads,
            decoder,
            logits,
            targets,
            kv_type,
            weight_bytes,
            fingerprint,
            state: None,
            pulse: Pulse::default(),
        })
    }
}

impl Backend for CpuBackend {
    fn state_bytes(&self) -> StateBytes {
        bytes_of_states(self.decoder.graph(), self.kv_type)
    }

    fn weight_bytes(&self) -> Option<WeightBytes> {
        Some(self.weight_bytes)
    }

    fn memory(&self) -> Result<MemoryPlan, BackendError> {
        MemoryPlan::of_host(self.membership.num_on_host())
    }

    fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    fn devices(&self) -> Vec<DevicePlace> {
        vec![DevicePlace::of_host(self.membership.rank())]
    }

    fn allocate(
        &mut self,
        layout: StateLayout,
        _assignment: &[i64],
        _progress: &mut Progress<'_>,
    ) -> Result<(), BackendError> {
        // The old state is dropped first, because memory may not suffice for both.
        self.state = None;
        self.state = Some(State::allocate(self.decoder.graph(), self.kv_type, layout)?);
        Ok(())
    }

    fn launch(&mut self, batch: &Batch) -> Result<PendingStep, BackendError> {
        self.membership.begin_step(batch.token_ids.len());
        // The other ranks cannot go on without this one.
        Ok(computed(self.run(batch).inspect_err(|_| self.membership.abort())?))
    }
}

impl CpuBackend {
    fn run(&self, batch: &Batch) -> Result<StepOutput, CpuError> {
        let state = self.state.as_ref().ok_or(BackendError::NotAllocated)?;
        self.threads.step(self.weight_bytes.all, || {
            state.begin(batch);
            let hidden = self.decoder.run(&self.step(batch, state, &[]))?.remove(0); // [tokens, hidden]
            let prompt_tokens = self.prompt_tokens(batch, state, &hidden)?;
            let tokens = if batch.sampled.is_empty() { Vec::new() } else { self.sample(batch, state, &hidden)? };
            // Later batches contain a placeholder in place of these tokens, so this step's fingerprint must include
            // them.
            let made = tokens.iter().map(SampledToken::identity);
            let fingerprint = batch.fingerprint(self.fingerprint).numbers(made).value();
            Ok(StepOutput { tokens, prompt_tokens, fingerprint })
        })
    }

    fn step<'a>(&'a self, batch: &'a Batch, state: &'a State, arguments: &'a [Tensor]) -> Step<'a> {
        Step { batch, state, membership: &self.membership, pulse: &self.pulse, sampled: 0, arguments }
    }

    fn prompt_tokens(&self, batch: &Batch, state: &State, hidden: &Tensor) -> Result<Vec<PromptToken>, CpuError> {
        let mut tokens = Vec::with_capacity(batch.targets.token_ids.len());
        for pass in targets::passes(&batch.targets) {
            let arguments = [model_ops::gather_rows(hidden, pass.token_indices)?]; // [rows, hidden]
            let logits = self.logits.run(&self.step(batch, state, &arguments))?.remove(0); // [rows, vocab]
            tokens.extend(self.targets.report(&pass, &logits, &self.step(batch, state, &[]))?);
        }
        Ok(tokens)
    }

    fn sample(&self, batch: &Batch, state: &State, hidden: &Tensor) -> Result<Vec<SampledToken>, CpuError> {
        let last_token = |row: usize| (batch.rows[row].first_token + batch.rows[row].num_tokens - 1) as i32;
        let indices: Vec<i32> = batch.sampled.iter().map(|sampled| last_token(sampled.row)).collect();
        let arguments = [model_ops::gather_rows(hidden, &indices)?]; // [rows, hidden]
        let logits = self.logits.run(&self.step(batch, state, &arguments))?.remove(0); // [rows, vocab]
        let sample_row = |sampled: usize| {
            let arguments = [logits.narrow(0, sampled, 1)?]; // [1, vocab]
            let sampler = &batch.sampled[sampled].sampler;
            let step = Step { sampled, ..self.step(batch, state, &arguments) };
            let outputs = executor::run(sampler, &[], &step)?;
            sampled_token(&outputs)
        };
        (0..batch.sampled.len()).into_par_iter().map(sample_row).collect()
    }
}

fn sampled_token(outputs: &[Tensor]) -> Result<SampledToken, CpuError> {
    let token_id = host::View::new(&outputs[0])?.i32()[0] as u32;
    let logprob = host::View::new(&outputs[1])?.f32()[0];
    Ok(SampledToken { token_id, logprob, top_tokens: top_tokens(&outputs[2..])? })
}

/// Returns top tokens from their ids and log-probabilities, both `[1, top_tokens]`; an empty list if no top tokens were
/// requested.
fn top_tokens(outputs: &[Tensor]) -> Result<Vec<(u32, f32)>, CpuError> {
    let [ids, logprobs] = outputs else { return Ok(Vec::new()) };
    let (ids, logprobs) = (host::View::new(ids)?, host::View::new(logprobs)?);
    Ok(ids.i32().iter().map(|id| *id as u32).zip(logprobs.f32().iter().copied()).collect())
}
