//! What lives on the devices between steps, and the launches that change it.
//!
//! Door: [`State`]. States are given to each launch and come back from it, so launches run one after the other; the
//! host only starts them. A launch runs on all devices of the process; lists of buffers are `[device][buffer]`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use backend::{Batch, CachedTokens};
use model::Fingerprint;
use pjrt::{Argument, Buffer, Client, Device, ElementType, ExecuteOptions, HostSlice};

use super::bucket::{Buckets, Launch};
use super::compiler::{Compiler, Executable};
use super::launch_id;
use super::program::{CACHED_TOKENS, ProgramKey, Programs, TARGETS};
use super::report::Reports;
use super::step_input::{self, pack, set_rank};
use super::token_input::TokenInput;
use crate::error::XlaError;

/// The states of the model, and the programs that know their sizes.
#[derive(Debug)]
pub(super) struct State {
    model: Model,
    /// In the order of [`Host::devices`].
    devices: Vec<DeviceState>,
    /// On each device, the arrays that ask for nothing, by their rows; made when they are first needed.
    neutral_inputs: HashMap<(TokenInput, usize), Vec<Arc<Buffer>>>,
    /// Of what this step runs.
    fingerprint: Fingerprint,
}

/// The model's states on one device, by name. A launch takes those that it changes, and its results take their place.
type DeviceState = HashMap<String, Buffer>;

/// What a decoder leaves for the programs behind it.
#[derive(Debug, Default)]
struct Decoded {
    /// `[rows, hidden]`
    last: Vec<Buffer>,
    /// The sampler's columns.
    columns: Vec<Buffer>,
    /// Of a prefill: `[rows * tokens_per_row, hidden]`.
    hidden: Vec<Buffer>,
}

/// The programs of a model with their sizes.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) buckets: Buckets,
    pub(super) programs: Programs,
    pub(super) executables: HashMap<ProgramKey, Executable>,
    pub(super) compiler: Compiler,
}

/// The devices that a step runs on.
#[derive(Clone, Copy)]
pub(super) struct Host<'a> {
    pub(super) client: &'a Client,
    /// In the order of their ranks.
    pub(super) devices: &'a [LocalDevice],
}

/// A device of this process, and what it has.
#[derive(Debug)]
pub(super) struct LocalDevice {
    pub(super) rank: usize,
    pub(super) device: Device,
    /// By name.
    pub(super) weights: HashMap<String, Buffer>,
}

/// The hidden states of a prefill on each device, `[rows * tokens_per_row, hidden]`.
#[derive(Clone, Copy)]
struct Prompts<'a> {
    hidden: &'a [Buffer],
    rows: &'a [usize],
    tokens_per_row: usize,
}

impl State {
    /// State of zeroes.
    ///
    /// # Errors
    /// When the device has no memory for it.
    pub(super) fn new(model: Model, host: Host<'_>) -> Result<Self, XlaError> {
        let mut state =
            Self { model, devices: Vec::new(), neutral_inputs: HashMap::new(), fingerprint: Fingerprint::default() };
        state.devices.resize_with(host.devices.len(), DeviceState::new);
        state.run(ProgramKey::Clear, host.devices.iter().map(|_| Vec::new()).collect(), host)?;
        Ok(state)
    }

    /// Programs that the compiler made.
    pub(super) fn num_programs_compiled(&self) -> u64 {
        self.model.executables.values().filter(|executable| executable.is_new).count() as u64
    }

    /// Starts everything that a step needs, and the copies of what it answers.
    ///
    /// # Errors
    /// When a launch cannot be started. The state is lost then.
    pub(super) fn launch(&mut self, batch: &Batch, host: Host<'_>) -> Result<Reports, XlaError> {
        self.fingerprint = Fingerprint::default();
        let mut reports = Reports::default();
        for cached in &batch.cached_tokens {
            self.note_cached_tokens(cached, host)?;
        }
        for launch in self.model.buckets.plan(batch) {
            self.launch_rows(batch, launch, host, &mut reports)?;
        }
        reports.fingerprint = self.fingerprint;
        Ok(reports)
    }

    /// Writes tokens that no decoder will read into the history.
    fn note_cached_tokens(&mut self, cached: &CachedTokens, host: Host<'_>) -> Result<(), XlaError> {
        let key = ProgramKey::CachedTokens;
        let layout = self.model.programs.layout();
        let nowhere = (layout.num_slots * layout.max_total_tokens) as i32;
        for (index, token_ids) in cached.token_ids.chunks(CACHED_TOKENS).enumerate() {
            let first = cached.slot * layout.max_total_tokens + index * CACHED_TOKENS;
            let mut packed = vec![nowhere; 2 * CACHED_TOKENS]; // [2, cached_tokens]
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

    fn launch_rows(
        &mut self,
        batch: &Batch,
        launch: Launch,
        host: Host<'_>,
        reports: &mut Reports,
    ) -> Result<(), XlaError> {
        let Launch { rows, bucket_rows, tokens_per_row, sampler } = launch;
        let Decoded { last, columns, hidden } = self.decode(batch, (&rows, bucket_rows, tokens_per_row), host)?;
        if let Some(sampler) = sampler {
            let key = ProgramKey::Sampler { rows: bucket_rows, sampler };
            let token_inputs = if sampler.reads_token_inputs() {
                self.token_inputs(batch, (&rows, bucket_rows), host)?
            } else {
                Vec::new()
            };
            let lists = last.into_iter().zip(columns).enumerate().map(|(device, (last, columns))| {
                let donated = [last, columns].into_iter().map(Argument::Donate);
                donated.chain(token_inputs.iter().map(|input| Argument::Keep(&input[device]))).collect()
            });
            let arguments = lists.collect();
            let results = self.run(key, arguments, host)?;
            // All devices answer the same.
            let report = results.into_iter().flatten().next().expect("samplers report on at least one device");
            let download = report.to_host().map_err(|source| failed(key, source))?;
            reports.push_samples(rows.clone(), bucket_rows, download);
        }
        if hidden.is_empty() {
            return Ok(());
        }
        let prompts = Prompts { hidden: &hidden, rows: &rows, tokens_per_row };
        self.launch_targets(batch, prompts, host, reports)
    }

    /// Starts a decoder for the rows at `rows`.
    fn decode(
        &mut self,
        batch: &Batch,
        (rows, bucket_rows, tokens_per_row): (&[usize], usize, usize),
        host: Host<'_>,
    ) -> Result<Decoded, XlaError> {
        let shape = self.model.programs.step_shape(bucket_rows, tokens_per_row);
        let mut packed = pack(batch, rows, shape);
        self.fingerprint = step_input::fingerprint(self.fingerprint, &packed, shape);
        let mut arguments = Vec::with_capacity(host.devices.len());
        for local in host.devices {
            set_rank(&mut packed, shape, local.rank);
            arguments.push(vec![Argument::Donate(upload(host, local, &[shape.len()], &packed)?)]);
        }
        let key = ProgramKey::Decoder { rows: bucket_rows, tokens_per_row };
        let mut decoded = Decoded::default();
        for mut results in self.run(key, arguments, host)? {
            decoded.hidden.extend(if tokens_per_row > 1 { results.pop() } else { None });
            decoded.columns.extend(results.pop());
            decoded.last.extend(results.pop());
        }
        Ok(decoded)
    }

    /// The arrays of tokens for the rows at `rows`, in the order of the sampler's arguments, on each device.
    fn token_inputs(
        &mut self,
        batch: &Batch,
        (rows, bucket_rows): (&[usize], usize),
        host: Host<'_>,
    ) -> Result<Vec<Vec<Arc<Buffer>>>, XlaError> {
        let sizes = self.model.programs.token_sizes(bucket_rows);
        let mut inputs = Vec::with_capacity(TokenInput::ALL.len());
        for input in TokenInput::ALL {
            let send = |numbers: &[i32]| {
                let send = |local: &LocalDevice| upload(host, local, &input.dims(sizes), numbers).map(Arc::new);
                host.devices.iter().map(send).collect::<Result<Vec<_>, _>>()
            };
            inputs.push(match input.pack(batch, rows, sizes) {
                Some(packed) => {
                    let numbers = packed.iter().map(|number| u64::from(number.cast_unsigned()));
                    self.fingerprint = self.fingerprint.numbers(numbers);
                    send(&packed)?
                }
                None => match self.neutral_inputs.entry((input, bucket_rows)) {
                    Entry::Occupied(known) => known.get().clone(),
                    Entry::Vacant(new) => new.insert(send(&input.neutral(sizes))?).clone(),
                },
            });
        }
        Ok(inputs)
    }

    /// Reports of the targets among the rows of a prefill.
    fn launch_targets(
        &mut self,
        batch: &Batch,
        prompts: Prompts<'_>,
        host: Host<'_>,
        reports: &mut Reports,
    ) -> Result<(), XlaError> {
        let Prompts { hidden, rows, tokens_per_row } = prompts;
        let mut wanted: Vec<(usize, i32)> = Vec::new();
        for (target, token_index) in batch.targets.token_indices.iter().enumerate() {
            let place = rows.iter().enumerate().find_map(|(place, row)| {
                let row = &batch.rows[*row];
                let offset = (*token_index as usize).checked_sub(row.first_token)?;
                (offset < row.num_tokens).then_some(place * tokens_per_row + offset)
            });
            wanted.extend(place.map(|place| (target, place as i32)));
        }
        let key = ProgramKey::Targets { tokens: hidden[0].dims()[0] };
        for wanted in wanted.chunks(TARGETS) {
            let mut packed = vec![0; 3 * TARGETS]; // [3, targets]
            for (index, (target, place)) in wanted.iter().enumerate() {
                packed[index] = *place;
                packed[TARGETS + index] = batch.targets.token_ids[*target];
                packed[2 * TARGETS + index] = batch.targets.top_n[*target];
            }
            self.fingerprint = self.fingerprint.numbers(packed.iter().map(|number| u64::from(number.cast_unsigned())));
            let upload = |local: &LocalDevice| upload(host, local, &[3, TARGETS], &packed);
            let packed = host.devices.iter().map(upload).collect::<Result<Vec<_>, _>>()?;
            let pairs = hidden.iter().zip(&packed);
            let arguments =
                pairs.map(|(hidden, packed)| vec![Argument::Keep(hidden), Argument::Keep(packed)]).collect();
            let results = self.run(key, arguments, host)?;
            let download = results[0][0].to_host().map_err(|source| failed(key, source))?;
            reports.push_targets(wanted.iter().map(|(target, _)| *target).collect(), download);
        }
        Ok(())
    }

    /// Starts a program on each device's states, `arguments` and weights, and returns each device's other results.
    fn run<'a>(
        &mut self,
        key: ProgramKey,
        mut arguments: Vec<Vec<Argument<'a>>>,
        host: Host<'a>,
    ) -> Result<Vec<Vec<Buffer>>, XlaError> {
        if !self.model.executables.contains_key(&key) {
            tracing::warn!(program = %key, "a program is compiled after warm-up");
            let executable = self.model.compiler.compile_one(host.client, &self.model.programs.print(key)?)?;
            self.model.executables.insert(key, executable);
        }
        let executable = &self.model.executables[&key];
        self.fingerprint = self.fingerprint.number(executable.fingerprint);
        let states: Vec<&str> = self.model.programs.states(key).iter().map(|state| state.name.as_str()).collect();
        for ((arguments, local), device) in arguments.iter_mut().zip(host.devices).zip(&mut self.devices) {
            // The first program of all has none to take.
            let donated = states.iter().filter_map(|name| device.remove(*name)).map(Argument::Donate);
            arguments.splice(0..0, donated);
            arguments.extend(executable.weights.iter().map(|name| Argument::Keep(&local.weights[name])));
        }
        let options = ExecuteOptions { launch_id: launch_id::next(), device: None };
        let execution = executable.loaded.execute(arguments, &options);
        let mut outputs = execution.map_err(|source| failed(key, source))?.outputs;
        for (device, results) in self.devices.iter_mut().zip(&mut outputs) {
            let kept = results.drain(..states.len());
            device.extend(states.iter().map(|name| (*name).to_owned()).zip(kept));
        }
        Ok(outputs)
    }
}

fn upload(host: Host<'_>, local: &LocalDevice, dims: &[usize], numbers: &[i32]) -> Result<Buffer, XlaError> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let slice = HostSlice::new(ElementType::S32, dims, &bytes);
    let buffer = slice.and_then(|slice| host.client.upload(slice, &local.device));
    buffer.map_err(|source| XlaError::Program { program: "step input".to_owned(), source })
}

fn failed(key: ProgramKey, source: pjrt::Error) -> XlaError {
    XlaError::Program { program: key.to_string(), source }
}
