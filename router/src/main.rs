//! `text-generation-router`: the router alone, for those who start the shards themselves.
//!
//! Exit status: 0 after a clean stop, 1 when something failed, 2 for bad arguments.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

/// Serves text generation over HTTP for shards that run already.
#[derive(Debug, Parser)]
#[command(name = "text-generation-router", version)]
struct Args {
    #[command(flatten)]
    router: router::RouterArgs,
}

fn main() -> ExitCode {
    router::run_as_process(&Args::parse().router)
}
