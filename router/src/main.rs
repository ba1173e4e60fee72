//! `text-generation-router`: the router alone, for users who start the shards themselves.
//!
//! Exit status: 0 after a clean stop, 2 for bad arguments, model files, limits or addresses, 17 when a shard failed, 1
//! for anything else (`proto::exit_status`).

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Serves text generation over HTTP, with shards that are already running.
#[derive(Debug, Parser)]
#[command(name = "text-generation-router", version, args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    task: Option<Task>,
    #[command(flatten)]
    router: router::RouterArgs,
}

/// A task other than serving.
#[derive(Debug, Subcommand)]
enum Task {
    /// Prints the OpenAPI document of the HTTP API
    PrintSchema,
    /// Compiles the grammar of a request for the router, with limits of time and memory.
    #[command(hide = true)]
    TryGrammar(router::GrammarTrialArgs),
    /// Renders conversations for the router, with limits of time and memory.
    #[command(hide = true)]
    RenderChats(router::ChatRendererArgs),
}

fn main() -> ExitCode {
    let Args { task, router } = Args::parse();
    let status = match task {
        Some(Task::PrintSchema) => router::print_schema(),
        Some(Task::TryGrammar(args)) => router::try_grammar_as_process(&args),
        Some(Task::RenderChats(args)) => router::render_chats_as_process(&args),
        None => router::run_as_process(&router, None, None),
    };
    telemetry::flush();
    status
}
