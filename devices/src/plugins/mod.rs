//! Plugins: shared libraries that speak the PJRT C API and come in Python wheels.
//!
//! Doors: [`all`], the plugins of the table of devices; [`cache_folder`], where fetched ones are kept; [`find`], where one
//! is found (`search.rs`). No plugin is opened here, no Python runs and no network is used: the launcher fetches, the
//! `pjrt` crate loads.

mod plugin;
mod search;
mod surroundings;
#[cfg(any(test, feature = "testing"))]
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
pub mod testing;
#[cfg(test)]
mod tests;

pub use plugin::{Plugin, Wheel};
pub use search::{FoundPlugin, PluginError, Source, find};
pub use surroundings::{PLUGIN_PATH_VARIABLE, Surroundings, cache_folder};

use crate::TABLE;

/// Every plugin, in the order of the table of devices.
pub fn all() -> impl Iterator<Item = &'static Plugin> {
    TABLE.iter().filter_map(|device| device.plugin())
}
