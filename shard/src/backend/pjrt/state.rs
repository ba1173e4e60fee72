//! What lives on the device between steps, and the launches that change it.
//!
//! Door: [`State`]. Caches and history are given to each launch and come back from it, so launches run one after the other; the
//! host only starts them.

use std::collections::HashMap;

use ::pjrt::{Argument, Buffer, Client, Device, ElementType, ExecuteOptions, HostSlice};

use super::bucket::{Buckets, Launch};
use super::compiler::{Compiler, Executable};
use super::program::{ProgramKey, Programs, TARGETS};
use super::report::Reports;
use super::step_input::pack;
use crate::backend::BackendError;
use crate::batch::Batch;

/// One process has one device until ranks share a model.
const RANK: u32 = 0;

/// KV caches, token history, and the programs that know their sizes.
#[derive(Debug)]
pub(super) struct State {
    model: Model,
    /// Keys and values of each layer.
    caches: Vec<Buffer>,
    history: Option<Buffer>,
}

/// The programs of a model with their sizes.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) buckets: Buckets,
    pub(super) programs: Programs,
    pub(super) executables: HashMap<ProgramKey, Executable>,
    pub(super) compiler: Compiler,
}

/// The device that a step runs on, and what it has.
#[derive(Clone, Copy)]
pub(super) struct Host<'a> {
    pub(super) client: &'a Client,
    pub(super) device: &'a Device,
    /// By name.
    pub(super) weights: &'a HashMap<String, Buffer>,
}

/// The hidden states of a prefill, `[rows * tokens_per_row, hidden]`.
#[derive(Clone, Copy)]
struct Prompts<'a> {
    hidden: &'a Buffer,
    rows: &'a [usize],
    tokens_per_row: usize,
}

impl State {
    /// State of zeroes.
    ///
    /// # Errors
    /// When the device has no memory for it.
    pub(super) fn new(model: Model, host: Host<'_>) -> Result<Self, BackendError> {
        let mut state = Self { model, caches: Vec::new(), history: None };
        let mut results = state.run(ProgramKey::Clear, Vec::new(), host)?;
        state.history = results.pop();
        state.caches = results;
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
    pub(super) fn launch(&mut self, batch: &Batch, host: Host<'_>) -> Result<Reports, BackendError> {
        let mut reports = Reports::default();
        for launch in self.model.buckets.plan(batch) {
            self.launch_rows(batch, launch, host, &mut reports)?;
        }
        Ok(reports)
    }

    fn launch_rows(
        &mut self,
        batch: &Batch,
        launch: Launch,
        host: Host<'_>,
        reports: &mut Reports,
    ) -> Result<(), BackendError> {
        let Launch { rows, bucket_rows, tokens_per_row, sampler } = launch;
        let shape = self.model.programs.step_shape(bucket_rows, tokens_per_row);
        let packed = upload(host, &[shape.len()], &pack(batch, &rows, shape, RANK))?;
        let donated = std::mem::take(&mut self.caches).into_iter().chain(self.history.take());
        let arguments = donated.map(Argument::Donate).chain([Argument::Donate(packed)]).collect();
        let key = ProgramKey::Decoder { rows: bucket_rows, tokens_per_row };
        let mut results = self.run(key, arguments, host)?;
        let hidden = if tokens_per_row > 1 { results.pop() } else { None };
        let (columns, last) = (results.pop(), results.pop());
        self.history = results.pop();
        self.caches = results;
        if let Some(sampler) = sampler {
            let key = ProgramKey::Sampler { rows: bucket_rows, sampler };
            let donated = [self.history.take(), last, columns];
            let arguments = donated.into_iter().flatten().map(Argument::Donate).collect();
            let mut results = self.run(key, arguments, host)?;
            let report = results.pop().expect("samplers answer two results");
            self.history = results.pop();
            let download = report.to_host().map_err(|source| failed(key, source))?;
            reports.push_samples(rows.clone(), bucket_rows, download);
        }
        match hidden {
            Some(hidden) => {
                let prompts = Prompts { hidden: &hidden, rows: &rows, tokens_per_row };
                self.launch_targets(batch, prompts, host, reports)
            }
            None => Ok(()),
        }
    }

    /// Log-probabilities of the targets among the rows of a prefill.
    fn launch_targets(
        &mut self,
        batch: &Batch,
        prompts: Prompts<'_>,
        host: Host<'_>,
        reports: &mut Reports,
    ) -> Result<(), BackendError> {
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
        let key = ProgramKey::Targets { tokens: hidden.dims()[0] };
        for wanted in wanted.chunks(TARGETS) {
            let mut packed = vec![0; 2 * TARGETS]; // [2, targets]
            for (index, (target, place)) in wanted.iter().enumerate() {
                packed[index] = *place;
                packed[TARGETS + index] = batch.targets.token_ids[*target];
            }
            let packed = upload(host, &[2, TARGETS], &packed)?;
            let results = self.run(key, vec![Argument::Keep(hidden), Argument::Keep(&packed)], host)?;
            let download = results[0].to_host().map_err(|source| failed(key, source))?;
            reports.push_targets(wanted.iter().map(|(target, _)| *target).collect(), download);
        }
        Ok(())
    }

    /// Starts a program on `arguments` and its weights.
    fn run<'a>(
        &mut self,
        key: ProgramKey,
        mut arguments: Vec<Argument<'a>>,
        host: Host<'a>,
    ) -> Result<Vec<Buffer>, BackendError> {
        if !self.model.executables.contains_key(&key) {
            tracing::warn!(program = %key, "a program is compiled after warm-up");
            let executable = self.model.compiler.compile_one(host.client, &self.model.programs.print(key)?)?;
            self.model.executables.insert(key, executable);
        }
        let executable = &self.model.executables[&key];
        arguments.extend(executable.weights.iter().map(|name| Argument::Keep(&host.weights[name])));
        let mut execution = executable
            .loaded
            .execute(vec![arguments], &ExecuteOptions::default())
            .map_err(|source| failed(key, source))?;
        Ok(execution.outputs.remove(0))
    }
}

fn upload(host: Host<'_>, dims: &[usize], numbers: &[i32]) -> Result<Buffer, BackendError> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let slice = HostSlice::new(ElementType::S32, dims, &bytes);
    let buffer = slice.and_then(|slice| host.client.upload(slice, host.device));
    buffer.map_err(|source| BackendError::Program { program: "step input".to_owned(), source })
}

fn failed(key: ProgramKey, source: ::pjrt::Error) -> BackendError {
    BackendError::Program { program: key.to_string(), source }
}
