//! The commands `compile` and `fit`, which work for a TPU slice on a machine without a TPU, and for `xla-cpu`. They run
//! in a child with the environment that the plugin needs.
//!
//! Entry points: [`run_as_process`] starts the child with the same arguments; [`run_as_child`] executes the command in
//! the child.

use std::io::Write as _;
use std::process::ExitCode;

use devices::Device;

use crate::args::Ahead;
use crate::variables::{Setting, environment, variables, without_secrets};

/// Runs this executable again with the command's hidden name, and returns the child's exit status.
pub(crate) fn run_as_process(ahead: &Ahead) -> ExitCode {
    let arguments = std::env::args_os().skip(2);
    let topology = match ahead {
        Ahead::Compile(args) => &args.plan.topology,
        Ahead::Fit(args) => &args.topology,
    };
    // A server finds a compiled program only under the flags with which it was compiled, so a child that compiles for
    // this machine gets the same variables as a shard.
    let setting = Device::attached(topology).map_or(Setting::Ahead, |(device, _)| Setting::Shard(device));
    let variables = variables(&setting, &environment()).into_iter();
    let ours = variables.filter(|variable| !variable.is_yours).map(|variable| (variable.name, variable.value));
    let child = std::env::current_exe().and_then(|executable| {
        without_secrets(&executable).arg(ahead.hidden_name()).args(arguments).envs(ours).status()
    });
    match child {
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        Err(error) => {
            let _ = writeln!(
                std::io::stderr().lock(),
                "error: a second process of this executable cannot be started: {error}"
            );
            ExitCode::FAILURE
        }
    }
}

/// Executes the command. Progress goes to stderr, the result to stdout. The exit status is 1 after an error, and if
/// `fit` finds that the model does not fit.
pub(crate) fn run_as_child(ahead: &Ahead) -> ExitCode {
    if telemetry::init(false, "warn").is_err() {
        return ExitCode::FAILURE;
    }
    let start = std::time::Instant::now();
    let mut progress = |phase: &str, done: u64, total: u64| {
        let seconds = start.elapsed().as_secs();
        let _ = write!(std::io::stderr().lock(), "\r{phase} {done}/{total}, {seconds} s ");
    };
    let outcome = match ahead {
        Ahead::Compile(args) => shard::compile::run(args, &mut progress).map(|text| (text, true)),
        Ahead::Fit(args) => shard::compile::fit(args, &mut progress).map(|report| (report.text, report.fits)),
    };
    let _ = writeln!(std::io::stderr().lock());
    match outcome {
        Ok((text, is_good)) => {
            let status = if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE };
            telemetry::print_result(&text, status)
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}
