//! `text-generation-launcher plugin`: shows which plugins are on this machine, and fetches them. No server is started.
//!
//! Doors: [`PluginArgs`], [`run_as_process`]. `fetch` puts a plugin into the cache in order: `pip` downloads the pinned
//! wheel, `wheel` checks and unpacks it, `cache` owns the folder. What there is to fetch stands in [`devices::plugins`].
//! Results go to stdout, progress and errors to stderr.

mod cache;
mod error;
mod fetch;
mod list;
mod pip;
#[cfg(test)]
mod tests;
mod wheel;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use devices::plugins::{Plugin, Surroundings};

use crate::plugin::fetch::Fetch;

/// What to do with plugins.
#[derive(Debug, clap::Args)]
pub(crate) struct PluginArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Shows which plugins there are, and where they were found
    List,
    /// Downloads a plugin with pip, checks it and puts it into the cache
    Fetch {
        /// What computes
        #[arg(value_enum, value_name = "KIND")]
        plugin: &'static Plugin,

        /// Wheel that was downloaded elsewhere, in place of pip; must be the pinned one
        #[arg(long)]
        wheel: Option<PathBuf>,
    },
}

/// Does what the arguments say. Exit status: 0 when done, 1 after a failure, told on stderr.
pub(crate) fn run_as_process(args: &PluginArgs) -> ExitCode {
    let surroundings = Surroundings::of_process();
    let outcome = match &args.action {
        Action::List => {
            // A closed stdout is no failure: its reader has seen enough.
            let _ = io::stdout().lock().write_all(list::table(&surroundings).as_bytes());
            Ok(())
        }
        Action::Fetch { plugin, wheel } => {
            Fetch::of_process(plugin, wheel.as_deref(), &surroundings).and_then(|fetch| fetch.run())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// One line for the person who waits.
fn say(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Bytes in megabytes, as pip counts them.
fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
