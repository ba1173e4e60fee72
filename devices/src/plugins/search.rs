//! Where a plugin is found. What the user named goes first and is never passed over: a flag or a variable that names
//! nothing is an error. After that, places in a fixed order; the first that holds the file wins.

use std::cmp::Reverse;
use std::fmt;
use std::path::{Path, PathBuf};

use super::{PLUGIN_PATH_VARIABLE, Plugin, Surroundings, cache_folder};

/// System folders, below the root.
const SYSTEM_FOLDERS: [&str; 4] = ["lib", "usr/lib", "usr/local/lib", "usr/lib/x86_64-linux-gnu"];

/// A plugin on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPlugin {
    /// The shared library; a file when it was looked at.
    pub path: PathBuf,
    /// What led to it.
    pub source: Source,
}

/// How a plugin was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The flag `--plugin-path`.
    Flag,
    /// This variable of the environment.
    Variable(&'static str),
    /// It lies next to the executable.
    Executable,
    /// `plugin fetch` put it into the cache.
    Cache,
    /// A Python package is installed.
    SitePackages,
    /// It lies in a folder of system libraries.
    System,
}

/// Why there is no plugin to use.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The user named something that is not there.
    #[error("{} is {path:?}, which is neither a file nor a folder that holds {file_name}", name(*.source_of_path))]
    Named {
        /// The flag or variable.
        source_of_path: Source,
        /// Its value.
        path: PathBuf,
        /// The file wanted in a folder.
        file_name: &'static str,
    },
    /// No place has it.
    #[error(
        "no {name} plugin ({file_name}): run `text-generation-launcher plugin fetch {name}` or pass --plugin-path; \
         looked for {}",
        .looked_at.join(", ")
    )]
    NotFound {
        /// The plugin.
        name: &'static str,
        /// The file wanted.
        file_name: &'static str,
        /// Every place looked at; `*` stands for any version of Python.
        looked_at: Vec<String>,
    },
}

/// A folder to look into, or several whose name holds a `*`.
struct Place {
    source: Source,
    folder: PathBuf,
    /// The file, below the folder.
    file: PathBuf,
}

/// Finds a plugin: `given` (the flag `--plugin-path`), the plugin's own variable,
/// [`PLUGIN_PATH_VARIABLE`], next to the executable, the cache, Python's site-packages, system folders.
///
/// # Errors
/// [`PluginError::Named`] when a flag or variable names what is not there, [`PluginError::NotFound`] otherwise.
pub fn find(plugin: &Plugin, given: Option<&Path>, surroundings: &Surroundings) -> Result<FoundPlugin, PluginError> {
    let variables = plugin.own_variable.into_iter().chain([PLUGIN_PATH_VARIABLE]);
    let values = variables.filter_map(|name| Some((Source::Variable(name), surroundings.variable(name)?)));
    if let Some((source, path)) = given.map(|path| (Source::Flag, path)).into_iter().chain(values).next() {
        return named(plugin, source, path);
    }
    let places = places(plugin, surroundings);
    for place in &places {
        if let Some(path) = place.files().into_iter().find(|path| path.is_file()) {
            return Ok(FoundPlugin { path, source: place.source });
        }
    }
    let looked_at = places.iter().map(|place| place.folder.join(&place.file).display().to_string()).collect();
    Err(PluginError::NotFound { name: plugin.name, file_name: plugin.file_name, looked_at })
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

fn places(plugin: &Plugin, surroundings: &Surroundings) -> Vec<Place> {
    let file = |source, folder: PathBuf| Place { source, folder, file: plugin.file_name.into() };
    let mut places = Vec::new();
    if let Some(folder) = surroundings.executable.as_deref().and_then(Path::parent) {
        places.push(file(Source::Executable, folder.to_path_buf()));
    }
    if let Some(cache) = cache_folder(surroundings) {
        places.push(file(Source::Cache, cache.join(plugin.versioned_name())));
    }
    places.extend(site_packages(surroundings).into_iter().map(|folder| Place {
        source: Source::SitePackages,
        folder,
        file: plugin.path_in_wheel.into(),
    }));
    places.extend(SYSTEM_FOLDERS.map(|folder| file(Source::System, surroundings.root.join(folder))));
    places
}

/// Folders of Python packages; a `*` stands for the version.
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
    /// The files this place may have, those of the newest Python first.
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

/// 11 for `python3.11` and `python3.11t`, 0 for `python3`; `None` for other names.
fn minor_version(name: &std::ffi::OsStr) -> Option<u32> {
    let rest = name.to_str()?.strip_prefix("python3")?;
    let digits: String = rest.trim_start_matches('.').chars().take_while(char::is_ascii_digit).collect();
    Some(digits.parse().unwrap_or(0))
}

fn name(source: Source) -> &'static str {
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
