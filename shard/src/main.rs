//! `text-generation-shard`: one shard as a process of its own, for users who start shards and router themselves.
//!
//! The launcher runs the same code as a hidden subcommand of its own executable.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let status = shard::run_as_process(&shard::ShardArgs::parse(), None);
    telemetry::flush();
    status
}
