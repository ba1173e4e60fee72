//! Plugins for tests: the one place that decides between running, skipping aloud and failing.

use std::path::PathBuf;

use super::{PluginKind, Surroundings, find};

/// The plugin, if it is on this machine; says so aloud when it is not. Fails instead where `HILO_REQUIRE_PLUGINS=1` promises it.
pub(crate) fn plugin_path(kind: PluginKind) -> Option<PathBuf> {
    match find(kind, None, &Surroundings::of_process()) {
        Ok(found) => Some(found.path),
        Err(error) => {
            assert!(std::env::var_os("HILO_REQUIRE_PLUGINS").is_none_or(|value| value != "1"), "{error}");
            println!("skipped: {error}");
            None
        }
    }
}
