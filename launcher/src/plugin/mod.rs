//! `text-generation-launcher plugin`: shows the plugins on this machine, and fetches them. It starts no server.
//!
//! Entry points: [`PluginArgs`], [`run_as_process`]. `fetch` puts a plugin into the cache: `pip` downloads the pinned
//! wheels unless the user names them, `wheel` checks and unpacks them, and `cache` owns the folder. `list` prints the
//! table of plugins on stdout. All other lines go to stderr.

mod cache;
mod error;
mod fetch;
mod list;
mod notice;
mod pip;
#[cfg(test)]
mod tests;
mod wheel;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use devices::plugins::{Plugin, Surroundings};

use crate::plugin::fetch::Fetch;
use crate::plugin::notice::say;

/// The arguments of `plugin`.
#[derive(Debug, clap::Args)]
pub(crate) struct PluginArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Lists all plugins, and where each was found
    List,
    /// Downloads a plugin with pip, checks it and puts it into the cache
    Fetch {
        /// Plugin to download
        #[arg(value_enum, value_name = "KIND")]
        plugin: &'static Plugin,

        /// Wheel file, or folder with wheel files, to use instead of a download with pip; may be given several times.
        /// The wheels must be the pinned versions
        #[arg(long, value_name = "PATH")]
        wheel: Vec<PathBuf>,
    },
}

/// Runs the command. Exit status: 0 on success, 1 after a failure, with the error on stderr.
pub(crate) fn run_as_process(args: &PluginArgs) -> ExitCode {
    let surroundings = Surroundings::of_process();
    let outcome = match &args.action {
        Action::List => return telemetry::print_result(&list::table(&surroundings), ExitCode::SUCCESS),
        Action::Fetch { plugin, wheel } => {
            Fetch::of_process(plugin, wheel, &surroundings).and_then(|fetch| fetch.run())
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
