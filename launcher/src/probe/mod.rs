//! `probe`: tries a device through its plugin, and prints a page to paste into an issue.
//!
//! Entry points: [`run_as_process`] starts children with the environment of a shard and prints the page;
//! [`run_as_child`] runs the probes. If a probe hangs, `relay` ends the child. After a probe that hangs or ends its
//! process, `relay` starts another child for the next probe, unless the others need the one that failed.

mod relay;
mod surroundings;

use std::io::{self, Write as _};
use std::process::{Command, ExitCode};

use devices::plugins::Surroundings;
use devices::{Asked, Choice, Device};
use proto::exit_status;
use rustix::process::{Signal, set_parent_process_death_signal};
use shard::probe::{NoPluginError, PROBES, ProbeArgs};

use crate::error::{self, LauncherError};
use crate::identity;
use crate::probe::relay::{Relay, encode};
use crate::variables::{Variable, without_secrets};

/// The arguments of a child.
#[derive(Debug, clap::Args)]
pub(crate) struct ChildArgs {
    #[command(flatten)]
    probe: ProbeArgs,

    /// Index of the first probe to run
    #[arg(long)]
    first: usize,
}

/// Prints the page. Exit status: 0 if every probe succeeds, 1 if one fails; 2 and 3 as for a launch.
pub(crate) fn run_as_process(args: &ProbeArgs) -> ExitCode {
    match run(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(exit_status::FAILURE),
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "error: {}", error::text(&error));
            ExitCode::from(error.exit_status())
        }
    }
}

/// Runs the probes, and prints their events for the parent.
pub(crate) fn run_as_child(args: &ChildArgs) -> ExitCode {
    if telemetry::init(false, "warn").is_err() {
        return ExitCode::FAILURE;
    }
    // A child that outlived a killed parent would keep its device.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::warn!(%error, "this process will not end if its parent process is killed");
    }
    let Asked::Device(device) = args.probe.device else { return ExitCode::from(exit_status::CONFIGURATION) };
    let mut report = |event| {
        let mut stdout = io::stdout().lock();
        // A parent that is gone reads nothing; the signal above ends this process.
        let _ = writeln!(stdout, "{}", encode(&event)).and_then(|()| stdout.flush());
    };
    match shard::probe::run(device, &args.probe, args.first, &mut report) {
        Ok(()) => ExitCode::SUCCESS,
        Err(NoPluginError { .. }) => ExitCode::from(exit_status::CONFIGURATION),
    }
}

/// Runs all probes and prints their lines. Returns true if none failed.
fn run(args: &ProbeArgs) -> Result<bool, LauncherError> {
    let surroundings = Surroundings::of_process();
    let Choice { device, reason } = devices::choose(args.device, args.plugin_path.as_deref(), &surroundings);
    if device.platform().is_none() {
        return Err(LauncherError::Arguments(vec![NoPluginError { device }.to_string()]));
    }
    if let Some(missing) = devices::missing(device, args.plugin_path.as_deref(), &surroundings) {
        return Err(LauncherError::Device { device, reasons: vec![missing] });
    }
    let found = surroundings::look(device, args, &surroundings.root)?;
    let executable =
        std::env::current_exe().map_err(|source| LauncherError::Spawn { name: "probe".to_owned(), source })?;
    let stdout = &mut io::stdout().lock();
    let mut relay = Relay::new(&PROBES, stdout);
    relay.line("version", &identity::build().to_string());
    relay.line("device", &format!("{device} ({reason})"));
    for warning in &found.warnings {
        relay.line("warning", warning);
    }
    for Variable { name, value, is_yours, reason: _ } in &found.variables {
        relay.line(&format!("variable {name}"), &format!("{value}{}", if *is_yours { " (yours)" } else { "" }));
    }
    Ok(relay.run(|first| {
        let mut child = without_secrets(&executable);
        let ours = found.variables.iter().filter(|variable| !variable.is_yours);
        child.envs(ours.map(|variable| (variable.name, &variable.value)));
        add_arguments(&mut child, device, args, first);
        child
    }))
}

fn add_arguments(child: &mut Command, device: Device, args: &ProbeArgs, first: usize) {
    child.args(["probe-device", "--device", device.name, "--first", &first.to_string()]);
    if let Some(path) = &args.plugin_path {
        child.arg("--plugin-path").arg(path);
    }
    if let Some(number) = args.num_devices {
        child.args(["--num-devices", &number.to_string()]);
    }
}
