//! `text-generation-launcher`: starts a text-generation server.
//!
//! One executable plays every part. Without a subcommand it is the launcher, which runs itself again as `shard` and
//! `router`; the router runs itself again as `try-grammar` and `render-chats`. The other subcommands start no server;
//! `--help` lists them. Exit status: 0 after a clean stop, 2 for bad arguments or configuration, 3 when the device is
//! missing, is in use or has no plugin, 17 when a shard failed, 1 for anything else (`docs/exit-codes.md`).

#![forbid(unsafe_code)]

mod ahead;
mod args;
mod banner;
mod child_logs;
mod command_line;
mod download;
mod environment;
mod error;
mod event;
mod exit;
mod foreign;
mod health;
mod hidden_keys;
mod hosts;
mod identity;
mod init;
mod launch;
mod plan;
mod plugin;
mod preflight;
mod probe;
mod process;
mod readiness;
mod shared_memory;
mod socket_place;
mod speed;
mod stop;
mod supervisor;
mod terminal;
mod tpu;
mod variables;

use std::ffi::OsStr;
use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use proto::exit_status;
use signal_hook::iterator::Signals;

use crate::args::{Ahead, Args, Part};

/// The allocator of every process on x86-64. Its background thread returns freed memory to the system; glibc's
/// allocator would keep most of it.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    if is_launch(std::env::args_os().nth(1).as_deref()) {
        hidden_keys::leave_command_line();
    }
    if init::is_first_process() {
        return init::run();
    }
    // Before anything else, so that a signal during the first milliseconds of a launch stops it like a later one. Other
    // subcommands and children have their own handlers, or none.
    let signals = is_launch(std::env::args_os().nth(1).as_deref()).then(download::watch_signals);
    let args = match command_line::parse(std::env::args_os()) {
        Ok(args) => args,
        Err(error) if error.kind() == ErrorKind::DisplayVersion => {
            return telemetry::print_result(&identity::page(), ExitCode::SUCCESS);
        }
        Err(error) => {
            // A closed stream is not a failure: its reader has seen enough.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(exit_status::CONFIGURATION) } else { ExitCode::SUCCESS };
        }
    };
    let status = run(args, signals);
    telemetry::flush();
    status
}

/// True if the first argument is that of a launch: a flag, or none. A subcommand comes before all flags.
fn is_launch(first: Option<&OsStr>) -> bool {
    first.is_none_or(|word| word.as_encoded_bytes().starts_with(b"-"))
}

fn run(args: Args, signals: Option<io::Result<Signals>>) -> ExitCode {
    match args.part {
        Some(Part::Router(args)) => router::run_as_process(&args.part, args.parent_pid, Some(identity::build())),
        Some(Part::Shard(args)) => shard::run_as_process(&args.part, args.parent_pid),
        Some(Part::TryGrammar(args)) => router::try_grammar_as_process(&args),
        Some(Part::RenderChats(args)) => router::render_chats_as_process(&args),
        Some(Part::Compile(args)) => ahead::run_as_process(&Ahead::Compile(args)),
        Some(Part::Fit(args)) => ahead::run_as_process(&Ahead::Fit(args)),
        Some(Part::FitModel(args)) => ahead::run_as_child(&Ahead::Fit(args)),
        Some(Part::CompilePrograms(args)) => ahead::run_as_child(&Ahead::Compile(args)),
        Some(Part::Plan(args)) => launch::show(&args),
        Some(Part::Probe(args)) => probe::run_as_process(&args),
        Some(Part::ProbeDevice(args)) => probe::run_as_child(&args),
        Some(Part::DownloadWeights(args)) => download::run_as_process(&args),
        Some(Part::Bench(args)) => speed::run_as_process(&args),
        Some(Part::Health(args)) => health::run_as_process(&args),
        Some(Part::PrintSchema) => router::print_schema(),
        Some(Part::Plugin(args)) => plugin::run_as_process(&args),
        None => launch::run_as_process(&args.launch, signals.unwrap_or_else(download::watch_signals)),
    }
}
