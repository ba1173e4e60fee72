//! `text-generation-launcher`: starts a text-generation server.
//!
//! One executable plays all three parts: without a subcommand it is the launcher, which runs itself again as
//! `shard` and `router`; `plugin` shows and fetches plugins and starts no server. Exit status: 0 after a clean stop,
//! 1 when something failed, 2 for bad arguments.

#![forbid(unsafe_code)]

mod ahead;
mod args;
mod banner;
mod error;
mod event;
mod plan;
mod plugin;
mod preflight;
mod process;
mod readiness;
mod shared_memory;
mod supervisor;
mod terminal;

use std::process::ExitCode;

use clap::Parser;
use shard::Device;
use shard::devices::{self, Choice};
use shard::plugins::Surroundings;

use crate::args::{Ahead, Args, Part};
use crate::error::LauncherError;
use crate::plan::{LaunchPlan, Place};
use crate::shared_memory::SharedMemory;

fn main() -> ExitCode {
    let args = Args::parse();
    match args.part {
        Some(Part::Router(args)) => router::run_as_process(&args),
        Some(Part::Shard(args)) => shard::run_as_process(&args),
        Some(Part::Compile(args)) => ahead::run_as_process(&Ahead::Compile(args)),
        Some(Part::Fit(args)) => ahead::run_as_process(&Ahead::Fit(args)),
        Some(Part::FitModel(args)) => ahead::run_as_child(&Ahead::Fit(args)),
        Some(Part::CompilePrograms(args)) => ahead::run_as_child(&Ahead::Compile(args)),
        Some(Part::Plugin(args)) => plugin::run_as_process(&args),
        None => {
            if let Err(error) = telemetry::init(args.launch.log.json_output, &args.launch.log.log_level) {
                let _ = clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{error}\n")).print();
                return ExitCode::from(2);
            }
            match launch(&args.launch) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    let status = error.exit_status();
                    tracing::error!("{:#}", anyhow::Error::new(error));
                    ExitCode::from(status)
                }
            }
        }
    }
}

fn launch(args: &args::LaunchArgs) -> Result<(), LauncherError> {
    let sockets = preflight::check(args)?;
    let mut args = args.clone();
    let model = &mut args.model;
    let Choice { device, reason } =
        devices::choose(model.device, model.plugin_path.as_deref(), &Surroundings::of_process());
    if model.device == Device::Auto {
        tracing::info!(%device, reason, "device");
        model.device = device;
    }
    let memory = SharedMemory::for_launch(&args)?;
    let place =
        Place { shard_uds_path: sockets.shard_uds_path(), collective_path: memory.as_ref().map(SharedMemory::path) };
    let plan = LaunchPlan::new(&args, &place)?;
    supervisor::run(&plan)
}
