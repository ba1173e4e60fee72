//! Finds plugins for tests: with an environment variable, or in the cache of `plugin fetch`. Without its plugin, a test
//! is skipped, or fails if all plugins are required.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment variable with which a missing plugin makes a test fail. Set it to 1 where all plugins must exist.
const REQUIRE: &str = "HILO_REQUIRE_PLUGINS";

/// A plugin that a test needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// The environment variable with the path of the plugin's file.
    pub(crate) variable: &'static str,
    /// The name of the plugin's file in the cache.
    pub(crate) file_name: &'static str,
}

/// Returns the path of the plugin's file. If none is known, prints that the test is skipped and returns `None`.
///
/// # Panics
/// When none is known, but the environment variable [`REQUIRE`] is 1.
pub(crate) fn path(wanted: Wanted) -> Option<PathBuf> {
    let Wanted { variable, file_name } = wanted;
    let found = match std::env::var_os(variable) {
        Some(path) => Some(PathBuf::from(path)),
        None => cache_folder().and_then(|folder| in_folder(&folder, file_name)),
    };
    if found.is_none() {
        test_support::skipped_unless_required(REQUIRE, &format!("no plugin {file_name} (set {variable})"));
    }
    found
}

fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("hilo/plugins"))
}

/// Finds the file in the folders of the cache, one per version. Returns the file in the folder whose name sorts last.
fn in_folder(cache: &Path, file_name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(cache).ok()?.filter_map(Result::ok);
    entries.map(|entry| entry.path().join(file_name)).filter(|path| path.is_file()).max()
}
