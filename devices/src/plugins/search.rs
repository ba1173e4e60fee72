//! The search for a plugin's file. If the user has set the flag or an environment variable, only its path is searched,
//! and the search fails if the plugin is not there. Otherwise fixed places are searched in order, and the first that
//! has the file wins.

use std::cmp::Reverse;
use std::fmt;
use std::path::{Path, PathBuf};

use super::{PLUGIN_PATH_VARIABLE, Plugin, Surroundings, cache_folder};
use crate::ownership::{self, Code};

/// Folders of system libraries, relative to the root.
const SYSTEM_FOLDERS: [&str; 4] = ["lib", "usr/lib", "usr/local/lib", "usr/lib/x86_64-linux-gnu"];

/// A plugin on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPlugin {
    /// The shared library, which was a file at the time of the search.
    pub path: PathBuf,
    /// How the search found it.
    pub source: Source,
}

/// How a plugin was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The path in the flag `--plugin-path`.
    Flag,
    /// The path in this environment variable.
    Variable(&'static str),
    /// The folder of the running executable.
    Executable,
    /// The cache that `plugin fetch` fills.
    Cache,
    /// An installed Python package.
    SitePackages,
    /// A folder of system libraries.
    System,
}

/// The reason why no plugin can be used.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The user named a file or folder that does not exist or does not hold the plugin.
    #[error("{} is {path:?}, which is neither a file nor a folder that contains {file_name}", name(*.source_of_path))]
    Named {
        /// The flag or the environment variable that names the path.
        source_of_path: Source,
        /// The value of the flag or variable.
        path: PathBuf,
        /// The file name that was looked for in a folder.
        file_name: &'static str,
    },
    /// No place that was searched has the file.
    #[error(
        "the {name} plugin ({file_name}) was not found: run `text-generation-launcher plugin fetch {name}` or pass \
         --plugin-path; looked for {}",
        .looked_at.join(", ")
    )]
    NotFound {
        /// The name of the plugin.
        name: &'static str,
        /// The file name that was looked for.
        file_name: &'static str,
        /// Every path that was tried; `python3*` stands for any version of Python.
        looked_at: Vec<String>,
    },
    /// The plugin is in the cache, where another user can write it or replace it.
    #[error("the {name} plugin in the cache is not used: {reason}")]
    Untrusted {
        /// The name of the plugin.
        name: &'static str,
        /// The file or folder, its owner or mode, and the things that the user can do.
        reason: std::io::Error,
    },
    /// The plugin was found, but files that it needs were not.
    #[error("the {name} plugin {} lacks {}; {}", .path.display(), .missing.join("; "), .remedies.join("; "))]
    Libraries {
        /// The name of the plugin.
        name: &'static str,
        /// The plugin's file.
        path: PathBuf,
        /// Each missing file, its package, and the reason or the folders that were searched.
        missing: Vec<String>,
        /// The things that the user can do.
        remedies: Vec<String>,
    },
}

/// A folder to search. A path that contains `python3*` stands for the folders of all Python 3 versions.
struct Place {
    source: Source,
    folder: PathBuf,
    /// The path of the file relative to the folder.
    file: PathBuf,
}

/// Finds the file of a plugin. `given` is the value of `--plugin-path`.
///
/// Of `given`, the plugin's own variable and [`PLUGIN_PATH_VARIABLE`], the first one that is set decides. If none is
/// set, these places are searched in order: the folder of the executable, the cache, Python's site-packages, system
/// folders.
///
/// # Errors
/// [`PluginError::Named`] when the flag or variable that decides names a path without the plugin,
/// [`PluginError::NotFound`] when none is set and no place has the file, [`PluginError::Untrusted`] when it is in the
/// cache and another user can write it.
pub fn find(plugin: &Plugin, given: Option<&Path>, surroundings: &Surroundings) -> Result<FoundPlugin, PluginError> {
    let variables = plugin.own_variable.into_iter().chain([PLUGIN_PATH_VARIABLE]);
    let values = variables.filter_map(|name| Some((Source::Variable(name), surroundings.variable(name)?)));
    if let Some((source, path)) = given.map(|path| (Source::Flag, path)).into_iter().chain(values).next() {
        return named(plugin, source, path);
    }
    let places = places(plugin, surroundings);
    for place in &places {
        if let Some(path) = place.files().into_iter().find(|path| path.is_file()) {
            if place.source == Source::Cache {
                let cache = cache_folder(surroundings).unwrap_or_default();
                check_users(&path, &cache).map_err(|reason| PluginError::Untrusted { name: plugin.name, reason })?;
            }
            return Ok(FoundPlugin { path, source: place.source });
        }
    }
    let looked_at = places.iter().map(|place| place.folder.join(&place.file).display().to_string()).collect();
    Err(PluginError::NotFound { name: plugin.name, file_name: plugin.file_name, looked_at })
}

/// Checks that only this user and root can write the file at `path`, its folder, and those above it up to `cache`.
fn check_users(path: &Path, cache: &Path) -> std::io::Result<()> {
    let up_to_cache = path.ancestors().take_while(|above| above.starts_with(cache));
    up_to_cache.into_iter().try_for_each(|place| ownership::check(Code::Plugins, place, &place.metadata()?))
}

fn named(plugin: &Plugin, source: Source, path: &Path) -> Result<FoundPlugin, PluginError> {
    let candidates = [path.to_path_buf(), path.join(plugin.file_name)];
    match candidates.into_iter().find(|candidate| candidate.is_file()) {
        Some(path) => Ok(FoundPlugin { path, source }),
        None => {
            Err(PluginError::Named { source_of_path: source, path: path.to_path_buf(), file_name: plugin.file_name })
        }
    }
}

/// Returns the places to search, in order. Beside the executable and in the cache, a plugin with libraries is in the
/// folders that it has in the wheel; without its folders, as older versions put it into the cache, it finds only
/// libraries of the system.
fn places(plugin: &Plugin, surroundings: &Surroundings) -> Vec<Place> {
    let has_libraries = plugin.libraries.is_some();
    let file = |source, folder: PathBuf| Place { source, folder, file: plugin.file_name.into() };
    let with_folders = |source, folder: PathBuf| Place { source, folder, file: plugin.path_in_wheel.into() };
    let mut places = Vec::new();
    if let Some(folder) = surroundings.executable.as_deref().and_then(Path::parent) {
        places.extend(has_libraries.then(|| with_folders(Source::Executable, folder.to_path_buf())));
        places.push(file(Source::Executable, folder.to_path_buf()));
    }
    if let Some(cache) = cache_folder(surroundings) {
        let folder = cache.join(plugin.versioned_name());
        places.extend(has_libraries.then(|| with_folders(Source::Cache, folder.clone())));
        places.push(file(Source::Cache, folder));
    }
    places.extend(site_packages(surroundings).into_iter().map(|folder| with_folders(Source::SitePackages, folder)));
    places.extend(SYSTEM_FOLDERS.map(|folder| file(Source::System, surroundings.root.join(folder))));
    places
}

/// Returns the folders of Python packages. In their paths, `python3*` stands for any Python 3 version.
fn site_packages(surroundings: &Surroundings) -> Vec<PathBuf> {
    let root = &surroundings.root;
    let user = |name, below: &str| surroundings.variable(name).map(|folder| folder.join(below));
    let folders = [
        user("VIRTUAL_ENV", "lib/python3*/site-packages"),
        Some(root.join("usr/lib/python3/dist-packages")),
        Some(root.join("usr/local/lib/python3*/site-packages")),
        Some(root.join("usr/local/lib/python3*/dist-packages")),
        user("HOME", ".local/lib/python3*/site-packages"),
    ];
    folders.into_iter().flatten().collect()
}

impl Place {
    /// The candidate files of this place, the newest Python version first.
    fn files(&self) -> Vec<PathBuf> {
        let parts: Vec<_> = self.folder.iter().collect();
        let Some(star) = parts.iter().position(|part| *part == "python3*") else {
            return vec![self.folder.join(&self.file)];
        };
        let parent: PathBuf = parts[..star].iter().collect();
        let rest: PathBuf = parts[star + 1..].iter().collect();
        let entries = std::fs::read_dir(&parent).into_iter().flatten().flatten();
        let mut versions: Vec<(u32, PathBuf)> =
            entries.filter_map(|entry| Some((minor_version(&entry.file_name())?, entry.path()))).collect();
        versions.sort_by_key(|(minor, path)| (Reverse(*minor), path.clone()));
        versions.into_iter().map(|(_, path)| path.join(&rest).join(&self.file)).collect()
    }
}

/// Returns the minor version in the name of a folder: 11 for `python3.11` and `python3.11t`, 0 for `python3`. `None` if
/// the name does not start with `python3`.
fn minor_version(name: &std::ffi::OsStr) -> Option<u32> {
    let rest = name.to_str()?.strip_prefix("python3")?;
    let digits: String = rest.trim_start_matches('.').chars().take_while(char::is_ascii_digit).collect();
    Some(digits.parse().unwrap_or(0))
}

pub(super) fn name(source: Source) -> &'static str {
    match source {
        Source::Flag => "--plugin-path",
        Source::Variable(name) => name,
        Source::Executable | Source::Cache | Source::SitePackages | Source::System => "the place",
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag | Self::Variable(_) => write!(f, "given by {}", name(*self)),
            Self::Executable => f.write_str("next to the executable"),
            Self::Cache => f.write_str("in the cache"),
            Self::SitePackages => f.write_str("in Python's site-packages"),
            Self::System => f.write_str("in a system folder"),
        }
    }
}
