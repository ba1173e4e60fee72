//! The data that stays on the devices between steps, and the launches that change it.
//!
//! Entry point: [`State`]. A launch takes the states that it uses and returns them, so launches that share states run
//! one after the other on the devices, although the host only starts them and does not wait. A launch runs on all
//! devices of the process; lists of buffers are `[device][buffer]`.

use std::collections::HashMap;
use std::sync::Arc;

use backend::{Batch, CachedTokens, Pulse};
use model::Fingerprint;
use pjrt::{Argument, Buffer, Client, Device, ElementType, ExecuteOptions, HostSlice};

use super::bucket::{Buckets, Launch};
use super::compiler::{Compiler, Executable};
use super::consumers::{Consumers, Reports};
use super::launch_id;
use super::program::{CACHED_TOKENS, ProgramKey, Programs};
use super::step_input::{self, pack, set_rank};
use super::token_input::TokenInput;
use super::weights::Arrays;
use crate::error::XlaError;

/// The states of the model on the devices, and the programs compiled for their sizes.
#[derive(Debug)]
pub(super) struct State {
    pub(super) model: Model,
    /// The states on each device, in the order of [`Host::devices`] and of [`Programs::all_states`]. A launch takes the
    /// states that it changes; the states that it returns replace them.
    devices: Vec<Vec<Option<Buffer>>>,
    /// The arrays that change nothing ([`TokenInput::neutral`]), one per device, by input and number of rows; created
    /// when first needed.
    pub(super) neutral_inputs: HashMap<(TokenInput, usize), Vec<Arc<Buffer>>>,
    /// The hash of the programs of the current step and of the batch's data.
    pub(super) fingerprint: Fingerprint,
    /// Advances with each launch.
    pulse: Pulse,
}

/// The results of a decoder, on each device.
#[derive(Debug, Default)]
pub(super) struct Decoded {
    /// The hidden state of each row's last token, `[rows, hidden]`.
    pub(super) last: Vec<Buffer>,
    /// The sampler's data about each row ([`sampled_columns`](step_input::sampled_columns)), `[sampled_columns, rows]`.
    pub(super) columns: Vec<Buffer>,
    /// The hidden states of all tokens, `[rows * tokens_per_row, hidden]`; empty if the program has one token per row.
    pub(super) hidden: Vec<Buffer>,
}

/// The programs of a model, the sizes that they are compiled for, and their executables.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) buckets: Buckets,
    pub(super) programs: Programs,
    pub(super) executables: HashMap<ProgramKey, Prepared>,
    pub(super) compiler: Compiler,
}

/// An executable, and the places of its weights.
#[derive(Debug)]
pub(super) struct Prepared {
    executable: Executable,
    /// The indices of the weights' arrays on a device, which are the last arguments, in order.
    weights: Vec<usize>,
}

impl Prepared {
    /// Looks up the weights of `executable`, which are on every device of `host`.
    pub(super) fn new(executable: Executable, host: Host<'_>) -> Self {
        let index = |name: &String| host.devices[0].weights.index(name);
        let weights = executable.weights.iter().map(index).collect();
        Self { executable, weights }
    }
}

/// The devices that a step runs on, and the client that created them.
#[derive(Clone, Copy)]
pub(super) struct Host<'a> {
    pub(super) client: &'a Client,
    /// In the order of their ranks.
    pub(super) devices: &'a [LocalDevice],
}

/// A device of this process, and its weights.
#[derive(Debug)]
pub(super) struct LocalDevice {
    pub(super) rank: usize,
    pub(super) device: Device,
    pub(super) weights: Arrays,
}

impl State {
    /// Returns the states of `model` on a number of devices, before [`clear`](Self::clear).
    pub(super) fn new(model: Model, num_devices: usize, pulse: Pulse) -> Self {
        let none = || std::iter::repeat_with(|| None).take(model.programs.all_states().len()).collect();
        let devices = std::iter::repeat_with(none).take(num_devices).collect();
        Self { model, devices, neutral_inputs: HashMap::new(), fingerprint: Fingerprint::default(), pulse }
    }

    /// Returns for each device the tables that programs take row by row, laid out so, by name; none if the default
    /// layout suits the programs.
    ///
    /// # Errors
    /// When a launch cannot be started.
    pub(super) fn lay_out_tables(&mut self, host: Host<'_>) -> Result<Vec<Vec<(String, Buffer)>>, XlaError> {
        if self.model.programs.tables().is_empty() {
            return Ok(Vec::new());
        }
        let results = self.run(ProgramKey::LayOutTables, host.devices.iter().map(|_| Vec::new()).collect(), host)?;
        let names = || self.model.programs.tables().iter().map(|spec| spec.name.clone());
        Ok(results.into_iter().map(|tables| names().zip(tables).collect()).collect())
    }

    /// Creates the states on the devices, filled with zeros.
    ///
    /// # Errors
    /// For example, when a device has too little memory for the states.
    pub(super) fn clear(&mut self, host: Host<'_>) -> Result<(), XlaError> {
        self.run(ProgramKey::Clear, host.devices.iter().map(|_| Vec::new()).collect(), host).map(|_| ())
    }

    /// Returns the number of this model's programs that were compiled and not loaded from the cache.
    pub(super) fn num_programs_compiled(&self) -> u64 {
        self.model.executables.values().filter(|prepared| prepared.executable.is_new).count() as u64
    }

    /// Returns the padded lengths of prompt chunks, in tokens, ascending.
    pub(super) fn chunk_sizes(&self) -> &[usize] {
        &self.model.buckets.prefill_tokens
    }

    /// Starts all programs of a step, and the copies of their results.
    ///
    /// # Errors
    /// When a program cannot be compiled, or a launch or a transfer cannot be started. The state is then lost.
    pub(super) fn launch(&mut self, batch: &Batch, host: Host<'_>) -> Result<Reports, XlaError> {
        self.fingerprint = Fingerprint::default();
        let mut reports = Reports::new(batch);
        for cached in &batch.cached_tokens {
            self.note_cached_tokens(cached, host)?;
        }
        for launch in self.model.buckets.plan(batch) {
            self.launch_rows(batch, &launch, host, &mut reports)?;
        }
        reports.fingerprint = self.fingerprint;
        Ok(reports)
    }

    /// Writes the tokens of a cached prefix into the token history of its slot. No decoder reads these tokens, because
    /// their keys and values are already in the KV cache.
    fn note_cached_tokens(&mut self, cached: &CachedTokens, host: Host<'_>) -> Result<(), XlaError> {
        let key = ProgramKey::CachedTokens;
        let layout = self.model.programs.layout();
        let out_of_bounds = (layout.num_slots * layout.max_total_tokens) as i32;
        for (index, token_ids) in cached.token_ids.chunks(CACHED_TOKENS).enumerate() {
            let first = cached.slot * layout.max_total_tokens + index * CACHED_TOKENS;
            let mut packed = vec![out_of_bounds; 2 * CACHED_TOKENS]; // [2, cached_tokens]
            for (i, token_id) in token_ids.iter().enumerate() {
                packed[i] = (first + i) as i32;
                packed[CACHED_TOKENS + i] = *token_id;
            }
            self.fingerprint = self.fingerprint.numbers(packed.iter().map(|number| u64::from(number.cast_unsigned())));
            let mut arguments = Vec::with_capacity(host.devices.len());
            for local in host.devices {
                arguments.push(vec![Argument::Donate(upload(host, local, &[2, CACHED_TOKENS], &packed)?)]);
            }
            self.run(key, arguments, host)?;
        }
        Ok(())
    }

    /// Starts a decoder and the programs that consume its hidden states.
    fn launch_rows(
        &mut self,
        batch: &Batch,
        launch: &Launch,
        host: Host<'_>,
        reports: &mut Reports,
    ) -> Result<(), XlaError> {
        let decoded = self.decode(batch, launch, host)?;
        self.consume(decoded, Consumers { batch, launch, host }, reports)
    }

    fn decode(&mut self, batch: &Batch, launch: &Launch, host: Host<'_>) -> Result<Decoded, XlaError> {
        let Launch { rows, bucket_rows, tokens_per_row, context, sampler: _ } = launch;
        let (bucket_rows, tokens_per_row, context) = (*bucket_rows, *tokens_per_row, *context);
        let shape = self.model.programs.step_shape(bucket_rows, tokens_per_row);
        let mut packed = pack(batch, rows, shape);
        self.fingerprint = step_input::fingerprint(self.fingerprint, &packed, shape);
        let mut arguments = Vec::with_capacity(host.devices.len());
        for local in host.devices {
            set_rank(&mut packed, shape, local.rank);
            arguments.push(vec![Argument::Donate(upload(host, local, &[shape.len()], &packed)?)]);
        }
        let key = ProgramKey::Decoder { rows: bucket_rows, tokens_per_row, context };
        let mut decoded = Decoded::default();
        for mut results in self.run(key, arguments, host)? {
            decoded.hidden.extend(if tokens_per_row > 1 { results.pop() } else { None });
            decoded.columns.extend(results.pop());
            decoded.last.extend(results.pop());
        }
        Ok(decoded)
    }

    /// Starts a program on all devices, after compiling it if that has not been done. The arguments on a device are its
    /// states, its entry of `arguments`, and the weights. The states in the results become the device's states, and the
    /// other results are returned, `[device][result]`.
    pub(super) fn run<'a>(
        &mut self,
        key: ProgramKey,
        mut arguments: Vec<Vec<Argument<'a>>>,
        host: Host<'a>,
    ) -> Result<Vec<Vec<Buffer>>, XlaError> {
        if !self.model.executables.contains_key(&key) {
            tracing::warn!(program = %key, "a program that warm-up did not compile is compiled now");
            let executable = self.model.compiler.compile_one(host.client, &self.model.programs.print(key)?)?;
            self.model.executables.insert(key, Prepared::new(executable, host));
        }
        let Prepared { executable, weights } = &self.model.executables[&key];
        self.fingerprint = self.fingerprint.number(executable.fingerprint);
        let states = self.model.programs.states(key);
        for ((own, local), device) in arguments.iter_mut().zip(host.devices).zip(&mut self.devices) {
            let mut list = Vec::with_capacity(states.len() + own.len() + weights.len());
            // [`ProgramKey::Clear`] has no states to take: it creates them.
            list.extend(device[states.clone()].iter_mut().filter_map(Option::take).map(Argument::Donate));
            list.append(own);
            list.extend(weights.iter().map(|index| Argument::Keep(local.weights.get(*index))));
            *own = list;
        }
        // Results take over the memory of states only, which are the first arguments.
        let aliased = Some(0..states.len());
        let options = ExecuteOptions { launch_id: launch_id::next(), aliased, ..ExecuteOptions::default() };
        let execution = executable.loaded.execute(arguments, &options);
        let mut outputs = execution.map_err(|source| failed(key, source))?.outputs;
        self.pulse.advance();
        for (device, results) in self.devices.iter_mut().zip(&mut outputs) {
            let kept = results.drain(..states.len());
            device[states.clone()].iter_mut().zip(kept).for_each(|(state, kept)| *state = Some(kept));
        }
        Ok(outputs)
    }
}

pub(super) fn upload(host: Host<'_>, local: &LocalDevice, dims: &[usize], numbers: &[i32]) -> Result<Buffer, XlaError> {
    let slice = HostSlice::new(ElementType::S32, dims, bytemuck::cast_slice(numbers));
    let buffer = slice.and_then(|slice| host.client.upload(slice, &local.device));
    buffer.map_err(|source| XlaError::Program { program: "upload of step input".to_owned(), source })
}

pub(super) fn failed(key: ProgramKey, source: pjrt::Error) -> XlaError {
    XlaError::Program { program: key.to_string(), source }
}
