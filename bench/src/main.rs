//! `text-generation-bench`: sends load to a text generation server and reports the latencies that its clients see.
//!
//! It uses only HTTP and shares no code with the server, so that the same program can measure other servers. `load`
//! decides when requests start, `workload` makes their content, `client` sends one, and `report` summarizes. The exit
//! status is 0 when a request succeeded, 1 when none did or the report could not be written, 2 for invalid arguments.

#![forbid(unsafe_code)]

mod api;
mod args;
mod client;
mod load;
mod report;
mod sse;
mod statistics;
#[cfg(test)]
mod tests;
mod workload;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser};

use crate::args::{Args, Plan};
use crate::report::Report;

fn main() -> ExitCode {
    let args = Args::parse();
    let plan = match args.plan() {
        Ok(plan) => plan,
        Err(error) => Args::command().error(clap::error::ErrorKind::ValueValidation, error).exit(),
    };
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let report = runtime.block_on(measure(args.clone(), plan));
    // Open streams of an interrupted run end with the runtime, without waiting for name lookups that are under way.
    runtime.shutdown_background();
    let typed = || std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    let text = if args.json { report.to_json() } else { format!("text-generation-bench {}\n\n{report}", typed()) };
    let is_written = std::io::stdout().lock().write_all(text.as_bytes()).is_ok();
    if is_written && report.num_succeeded > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn measure(args: Args, plan: Plan) -> Report {
    let Plan { client, workload, load } = plan;
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let run = load::run(load, Arc::new(workload), Arc::new(client), interrupted).await;
    Report::new(args, &run)
}
