//! Plugins: shared libraries with the PJRT C API, which are distributed in Python wheels.
//!
//! Entry points: [`all`] lists the plugins of the table of devices; [`cache_folder`] returns the folder of fetched
//! plugins; [`find`] finds a plugin on this machine (`search.rs`); [`Plugin::check_libraries`] checks that it will find
//! its libraries (`libraries.rs`). No code here opens a plugin, runs Python or uses the network, because the launcher
//! fetches plugins and the `pjrt` crate loads them.

mod libraries;
mod plugin;
mod search;
mod surroundings;
#[cfg(any(test, feature = "testing"))]
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
pub mod testing;
#[cfg(test)]
mod tests;

pub use libraries::{DataFile, Driver, Libraries, Package};
pub use plugin::{Plugin, Wheel};
pub use search::{FoundPlugin, PluginError, Source, find};
pub use surroundings::{PLUGIN_PATH_VARIABLE, Surroundings, cache_folder};

use crate::TABLE;

/// Every plugin, in the order of the table of devices.
pub fn all() -> impl Iterator<Item = &'static Plugin> {
    TABLE.iter().filter_map(|device| device.plugin())
}
