//! `text-generation-bench`: sends load to a text generation server and reports the latencies that clients of the server
//! see.
//!
//! The program uses only HTTP and shares no code with the server, so that it can also measure other servers. `load`
//! decides when requests start, `workload` makes their content, `client` sends a request, and `report` summarizes the
//! run. The exit status is 1 if no request succeeded or the report could not be written, 2 for invalid arguments, and
//! otherwise 0.

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
    // Ends the open streams of an interrupted run, without waiting for DNS lookups that are under way.
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
