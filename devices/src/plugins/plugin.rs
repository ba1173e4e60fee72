//! One plugin, its file, and the wheel that the file comes in.

use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;

/// One plugin: its file, and the wheel it comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plugin {
    /// Its value of `plugin fetch`.
    pub name: &'static str,
    /// A noun phrase for `--help`, without a full stop: what computes.
    pub help: &'static str,
    /// Name of the shared library.
    pub file_name: &'static str,
    /// Name of the Python package.
    pub package: &'static str,
    /// The pinned version of the package.
    pub version: &'static str,
    /// The pinned wheel.
    pub wheel: Wheel,
    /// Path of the shared library inside the wheel, and below site-packages once installed.
    pub path_in_wheel: &'static str,
    /// A variable of the environment that names this plugin only; it goes before
    /// [`PLUGIN_PATH_VARIABLE`](super::PLUGIN_PATH_VARIABLE).
    pub own_variable: Option<&'static str>,
    /// A sentence on terms that are not free software's, said when the wheel is fetched.
    pub licence_note: Option<&'static str>,
}

/// A wheel and the tags by which pip chooses it on any machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wheel {
    /// Name of the file.
    pub file_name: &'static str,
    /// SHA-256 of the file, 64 lower case hexadecimal digits.
    pub sha256: &'static str,
    /// Size of the file.
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
    /// `<package>-<version>`: the folder below [`cache_folder`](super::cache_folder) that holds this version.
    pub fn versioned_name(&self) -> String {
        format!("{}-{}", self.package, self.version)
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
