//! `bench`: measures how fast a model runs on this machine's CPU, without a server.
//!
//! Entry point: [`run_as_process`]. Progress goes to stderr if stderr is a terminal; the table goes to stdout.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use shard::speed::{SpeedArgs, measure};

/// Measures the speed and prints the table. The exit status is 1 when nothing could be measured.
pub(crate) fn run_as_process(args: &SpeedArgs) -> ExitCode {
    if telemetry::init(false, "warn,shard=info").is_err() {
        return ExitCode::FAILURE;
    }
    let is_seen = std::io::stderr().is_terminal();
    let mut progress = |phase: &str, done: u64, total: u64| {
        if is_seen {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[2K{phase} {done}/{total} ");
        }
    };
    let outcome = measure(args, &mut progress);
    if is_seen {
        let _ = writeln!(std::io::stderr().lock());
    }
    match outcome {
        Ok(table) => telemetry::print_result(&table, ExitCode::SUCCESS),
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}
