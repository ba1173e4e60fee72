//! One process for one or more devices: loads a model, keeps its KV cache, and computes the steps that the router
//! requests.
//!
//! Entry points: [`ShardArgs`], [`run`], [`run_as_process`]. Life of a step: `server` reads a command → `engine` checks
//! it with `rows` and makes a [`backend::Batch`] → a backend ([`cpu`], [`xla`]) executes the graphs of the model and of
//! the rows' samplers ([`model`]) → `engine` makes the reply → `server` sends it.
//!
//! **Invariant**: the shard has no policy. It never chooses which row runs, and never ends a sequence on its own.
//! **Invariant**: a model file names no device, and a backend file names no model.

mod args;
pub mod compile;
mod engine;
pub mod probe;
mod rows;
mod server;
pub mod speed;

use std::process::ExitCode;

use proto::exit_status;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

pub use args::{
    Dtype, KvCacheDtype, KvCacheDtypeError, ModelArgs, PeerSockets, PeerSocketsError, QuantizeError, ShardArgs,
    ThreadsError,
};

/// The error that ended a shard.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ShardRunError(#[from] server::ServerError);

/// Serves one model until the client sends `Leave`.
///
/// # Errors
/// When the shard ends without `Leave`: for example, the model cannot be loaded, the device fails, or the client is
/// gone after warm-up.
pub fn run(args: &ShardArgs) -> Result<(), ShardRunError> {
    Ok(server::run(args)?)
}

/// The reason why a shard with the checked arguments cannot serve.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct CheckError(#[from] engine::EngineError);

/// Looks for a reason why a shard with these arguments cannot serve, without reading weights. `wishes` are the sizes
/// that the router will request.
///
/// # Errors
/// The first reason found.
pub fn check(args: &ShardArgs, wishes: &proto::Warmup) -> Result<(), CheckError> {
    Ok(engine::check(args, wishes)?)
}

/// Returns the numbers of devices, from 1 to `most`, that the model can be split over: for example, each device needs
/// the same number of heads. `None` if the model's configuration cannot be read.
pub fn device_counts(model_id: &str, most: u32) -> Option<Vec<u32>> {
    engine::device_counts(model_id, most)
}

/// Calls [`run`] as the main function of a process. Starts logging, makes the kernel kill the process when its parent
/// dies (process `parent_pid`, if that is known), and logs the error of the run as the last line. The exit status is
/// one of [`proto::exit_status`].
pub fn run_as_process(args: &ShardArgs, parent_pid: Option<i32>) -> ExitCode {
    if let Err(error) = telemetry::init(args.json_output, &args.log_level) {
        let _ = clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{error}\n")).print();
        return ExitCode::from(exit_status::CONFIGURATION);
    }
    // A shard that outlives a killed launcher could keep its device.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::warn!(%error, "this shard will not end if its parent process is killed");
    }
    // If the parent died before the call above, there is no signal.
    if parent_pid.is_some_and(|pid| getppid().map(Pid::as_raw_pid) != Some(pid)) {
        telemetry::fatal("the process that started this shard is gone");
        return ExitCode::from(exit_status::FAILURE);
    }
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            telemetry::fatal(&error.to_string());
            ExitCode::from(error.0.exit_status())
        }
    }
}
