//! A plugin: its shared library, and the pinned wheels that contain it and the libraries that it needs.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::{Libraries, Package};

/// A plugin and where to get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plugin {
    /// The plugin's name as an argument of `plugin fetch`.
    pub name: &'static str,
    /// The hardware that the plugin drives: a noun phrase for `--help`, without a full stop.
    pub help: &'static str,
    /// The file name of the shared library.
    pub file_name: &'static str,
    /// The name of the Python package.
    pub package: &'static str,
    /// The pinned version of the package.
    pub version: &'static str,
    /// The pinned wheel.
    pub wheel: Wheel,
    /// The path of the shared library inside the wheel. The path below site-packages after installation is the same.
    pub path_in_wheel: &'static str,
    /// The libraries of other packages that the plugin needs; `None` if it needs only the system's.
    pub libraries: Option<Libraries>,
    /// An environment variable that names the file of this plugin, or its folder. It takes precedence over
    /// [`PLUGIN_PATH_VARIABLE`](super::PLUGIN_PATH_VARIABLE).
    pub own_variable: Option<&'static str>,
    /// A sentence about a licence that is not a free software licence, shown when the wheel is fetched.
    pub licence_note: Option<&'static str>,
}

/// A wheel, and the tags that make pip choose this wheel on any machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wheel {
    /// The name of the file.
    pub file_name: &'static str,
    /// The SHA-256 of the file as 64 lower-case hexadecimal digits.
    pub sha256: &'static str,
    /// The size of the file in bytes.
    pub size_bytes: u64,
    /// pip's `--platform`.
    pub platform: &'static str,
    /// pip's `--python-version`.
    pub python_version: &'static str,
    /// pip's `--implementation`.
    pub implementation: &'static str,
    /// pip's `--abi`.
    pub abi: &'static str,
}

impl Plugin {
    /// The name of the folder below [`cache_folder`](super::cache_folder) that holds this version:
    /// `<package>-<version>`.
    pub fn versioned_name(&self) -> String {
        format!("{}-{}", self.package, self.version)
    }

    /// The path of the shared library below the folder of [`Self::versioned_name`]. A plugin with libraries keeps its
    /// path in the wheel, because it looks for its libraries in folders relative to its own.
    pub fn cached_path(&self) -> &'static Path {
        Path::new(if self.libraries.is_some() { self.path_in_wheel } else { self.file_name })
    }

    /// The packages of the plugin's libraries.
    pub fn library_packages(&self) -> &'static [Package] {
        self.libraries.map_or(&[], |libraries| libraries.packages)
    }

    /// All pinned wheels: the plugin's own, then those of its libraries.
    pub fn wheels(&'static self) -> impl Iterator<Item = &'static Wheel> {
        std::iter::once(&self.wheel).chain(self.library_packages().iter().map(|package| &package.wheel))
    }

    /// Returns the folder that contains the wheels' files if the plugin's file is `path`. `None` if the plugin is not
    /// in the folders that it has in the wheel.
    pub fn site_folder(&self, path: &Path) -> Option<PathBuf> {
        let in_wheel = Path::new(self.path_in_wheel);
        path.ends_with(in_wheel).then(|| path.ancestors().nth(in_wheel.iter().count()).map(PathBuf::from)).flatten()
    }
}

impl ValueEnum for &'static Plugin {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<&Plugin>> = LazyLock::new(|| super::all().collect());
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name).help(self.help))
    }
}
