//! The files of other packages that a plugin needs: which they are, and the check that the plugin will find them.

use std::path::{Path, PathBuf};

use super::surroundings::XLA_FLAGS;
use super::{FoundPlugin, Plugin, PluginError, Source, Surroundings, Wheel, search};

/// The files that a plugin needs beside its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Libraries {
    /// The packages that contain them.
    pub packages: &'static [Package],
    /// The folders in which the plugin looks for libraries before the loader looks in the system's, relative to the
    /// plugin's folder.
    pub folders: &'static [&'static str],
    /// The libraries that come with the driver.
    pub driver: Driver,
    /// The file that the plugin's compiler reads.
    pub data: DataFile,
}

/// A Python package with libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Package {
    /// The name.
    pub name: &'static str,
    /// The pinned version.
    pub version: &'static str,
    /// The pinned wheel.
    pub wheel: Wheel,
    /// The paths in the wheel of the files that are needed. Below site-packages and below the plugin's cache folder the
    /// paths are the same.
    pub files: &'static [&'static str],
    /// The file names of the libraries that the plugin itself opens. Libraries open the others.
    pub opened: &'static [&'static str],
    /// True if the plugin opens the libraries only when a process uses several devices.
    pub is_for_several_devices: bool,
}

/// The driver of the plugin's devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Driver {
    /// The file names of the driver's libraries that the plugin opens.
    pub opened: &'static [&'static str],
    /// The name of the driver.
    pub name: &'static str,
    /// The remedy for a missing driver.
    pub remedy: &'static str,
}

/// A file that is no library, and the folders in which the plugin's compiler looks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataFile {
    /// The path of the file below each of the folders.
    pub path: &'static str,
    /// The folders that are searched first, relative to the root.
    pub system_folders: &'static [&'static str],
    /// The folders that are searched next, relative to the plugin's folder.
    pub folders: &'static [&'static str],
    /// The flag in the environment variable `XLA_FLAGS` that names another folder, with the equals sign.
    pub flag: &'static str,
}

/// Files that were not found, and the package that contains them.
struct Missing {
    package: &'static str,
    text: String,
}

impl Plugin {
    /// Checks that the plugin in `found` will find the files that it needs in a process that uses `num_devices` devices
    /// of the plugin.
    ///
    /// `load` loads a library, which is a path, or a file name for the loader to find. Libraries stay loaded: that is
    /// the only check that includes the libraries which they need themselves.
    ///
    /// # Errors
    /// [`PluginError::Libraries`], which names every missing file.
    pub fn check_libraries(
        &self,
        found: &FoundPlugin,
        num_devices: usize,
        surroundings: &Surroundings,
        mut load: impl FnMut(&Path) -> Result<(), String>,
    ) -> Result<(), PluginError> {
        let Some(libraries) = self.libraries else { return Ok(()) };
        let folder = found.path.parent().unwrap_or(Path::new("/"));
        let is_needed = |package: &&Package| num_devices > 1 || !package.is_for_several_devices;
        let mut missing = Vec::new();
        let driver = libraries.driver;
        let opened = libraries.packages.iter().filter(is_needed).map(|package| (package.name, package.opened));
        for (package, opened) in opened.chain([(driver.name, driver.opened)]) {
            for file_name in opened {
                let path = libraries.find(folder, file_name).unwrap_or_else(|| PathBuf::from(file_name));
                if let Err(reason) = load(&path) {
                    missing.push(Missing { package, text: format!("{file_name} of {package} ({reason})") });
                }
            }
        }
        missing.extend(libraries.missing_data(folder, surroundings));
        if missing.is_empty() {
            return Ok(());
        }
        Err(PluginError::Libraries {
            name: self.name,
            path: found.path.clone(),
            remedies: self.remedies(&driver, &missing, found.source),
            missing: missing.into_iter().map(|missing| missing.text).collect(),
        })
    }

    fn remedies(&self, driver: &Driver, missing: &[Missing], source: Source) -> Vec<String> {
        let mut packages: Vec<&str> = missing.iter().map(|missing| missing.package).collect();
        packages.dedup();
        let is_driver = packages.contains(&driver.name);
        packages.retain(|package| *package != driver.name);
        let mut remedies = Vec::new();
        if !packages.is_empty() {
            let leave = match source {
                Source::Flag | Source::Variable(_) => format!(", and start without {}", search::name(source)),
                Source::Executable => ", and remove the plugin next to the executable".to_owned(),
                Source::Cache | Source::SitePackages | Source::System => String::new(),
            };
            remedies.push(format!(
                "run `text-generation-launcher plugin fetch {}`{leave}, or install {} where this plugin looks",
                self.name,
                packages.join(", ")
            ));
        }
        remedies.extend(is_driver.then(|| driver.remedy.to_owned()));
        remedies
    }
}

impl Libraries {
    /// Returns the path of a library in the first of the plugin's folders that has it.
    fn find(&self, plugin_folder: &Path, file_name: &str) -> Option<PathBuf> {
        let paths = self.folders.iter().map(|folder| plugin_folder.join(folder).join(file_name));
        paths.into_iter().find(|path| path.is_file())
    }

    /// Returns the data file if the compiler will not find it. The compiler takes the first folder in which the file's
    /// folder exists.
    fn missing_data(&self, plugin_folder: &Path, surroundings: &Surroundings) -> Option<Missing> {
        let DataFile { path, system_folders, folders, flag } = self.data;
        let flags = surroundings.variable(XLA_FLAGS).and_then(Path::to_str).unwrap_or_default();
        let named = flags.split_whitespace().filter_map(|word| word.strip_prefix(flag)).map(PathBuf::from);
        let system = system_folders.iter().map(|folder| surroundings.root.join(folder));
        let own = folders.iter().map(|folder| plugin_folder.join(folder));
        let candidates: Vec<PathBuf> = named.chain(system).chain(own).map(|folder| folder.join(path)).collect();
        let taken = candidates.iter().find(|candidate| candidate.parent().is_some_and(Path::is_dir));
        if taken.is_some_and(|taken| taken.is_file()) {
            return None;
        }
        let has_file = |package: &&Package| package.files.iter().any(|file| Path::new(file).ends_with(path));
        let package = self.packages.iter().find(has_file).map_or("", |package| package.name);
        let looked_at: Vec<String> = match taken {
            Some(taken) => vec![taken.display().to_string()],
            None => candidates.iter().map(|candidate| candidate.display().to_string()).collect(),
        };
        let file_name = Path::new(path).file_name().unwrap_or_default().display();
        Some(Missing { package, text: format!("{file_name} of {package} (looked for {})", looked_at.join(", ")) })
    }
}
