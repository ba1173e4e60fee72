//! The environment that the search for plugins depends on, as a value.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment variable with the path of the plugin to use, for any device: the plugin's file, or a folder that
/// contains this file.
pub const PLUGIN_PATH_VARIABLE: &str = "PJRT_PLUGIN_LIBRARY_PATH";

/// The environment variable with flags of XLA.
pub(super) const XLA_FLAGS: &str = "XLA_FLAGS";

/// The environment variables, the path of this executable and the root of the file system. They are plain values, so
/// that tests can use a temporary folder as the root of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    /// Values by name; unset variables are absent.
    pub variables: BTreeMap<&'static str, OsString>,
    /// The file of the running program, if the system reports it.
    pub executable: Option<PathBuf>,
    /// The root directory: `/`, unless a test or `plan --sysfs-root` names another.
    pub root: PathBuf,
}

impl Surroundings {
    /// Reads the environment of this process.
    pub fn of_process() -> Self {
        let general = ["XDG_CACHE_HOME", "HOME", "VIRTUAL_ENV", XLA_FLAGS, PLUGIN_PATH_VARIABLE];
        let names = general.into_iter().chain(super::all().filter_map(|plugin| plugin.own_variable));
        Self {
            variables: names.filter_map(|name| Some((name, std::env::var_os(name)?))).collect(),
            executable: std::env::current_exe().ok(),
            root: PathBuf::from("/"),
        }
    }

    /// The value of a variable; an empty variable counts as unset.
    pub fn variable(&self, name: &str) -> Option<&Path> {
        self.variables.get(name).filter(|value| !value.is_empty()).map(Path::new)
    }
}

/// The folder that contains fetched plugins, each in its folder `<package>-<version>`: `$XDG_CACHE_HOME/hilo/plugins`,
/// else `$HOME/.cache/hilo/plugins`. `None` if neither variable is an absolute path.
pub fn cache_folder(surroundings: &Surroundings) -> Option<PathBuf> {
    let absolute = |name| surroundings.variable(name).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(absolute("HOME")?.join(".cache")));
    Some(caches?.join("hilo/plugins"))
}
