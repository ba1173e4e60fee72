//! To add a plugin: one row in [`TABLE`] and its name in [`PluginKind`].
//!
//! A plugin is a shared library that speaks the PJRT C API and comes in a Python wheel. This room says which plugins
//! there are ([`TABLE`]), where they are kept ([`cache_folder`]) and where one is found ([`find`], in `search.rs`). It
//! never opens a plugin, never runs Python and never uses the network: the launcher fetches, the `pjrt` crate loads.

mod plugin;
mod search;
mod surroundings;
#[cfg(any(test, feature = "testing"))]
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
pub mod testing;
#[cfg(test)]
mod tests;

use std::fmt;

use clap::ValueEnum;

pub use plugin::{Plugin, Wheel};
pub use search::{FoundPlugin, PluginError, Source, find};
pub use surroundings::{PLUGIN_PATH_VARIABLE, Surroundings, cache_folder};

/// What computes behind a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum PluginKind {
    /// This machine's processor, through XLA.
    Cpu,
    /// Google's TPU.
    Tpu,
    /// NVIDIA's GPUs, CUDA 13.
    Cuda13,
}

/// Every plugin there is.
pub const TABLE: [Plugin; 3] = [
    Plugin {
        kind: PluginKind::Cpu,
        file_name: "xla_cpu_pjrt.so",
        package: "xla-cpu-pjrt",
        version: "0.0.1",
        wheel: Wheel {
            file_name: "xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl",
            sha256: "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc",
            size_bytes: 63_461_052,
            platform: "manylinux_2_27_x86_64",
            python_version: "3.11",
            implementation: "py",
            abi: "none",
        },
        path_in_wheel: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
        own_variable: None,
        licence_note: None,
    },
    Plugin {
        kind: PluginKind::Tpu,
        file_name: "libtpu.so",
        package: "libtpu",
        version: "0.0.51",
        wheel: Wheel {
            file_name: "libtpu-0.0.51-cp311-cp311-manylinux_2_31_x86_64.whl",
            sha256: "ba67ddbfdbac61c8da1fafc26cd51b93e9fe4d298016e2882eb986b1718cba34",
            size_bytes: 204_805_508,
            platform: "manylinux_2_31_x86_64",
            python_version: "3.11",
            implementation: "cp",
            abi: "cp311",
        },
        path_in_wheel: "libtpu/libtpu.so",
        own_variable: Some("TPU_LIBRARY_PATH"),
        licence_note: Some("libtpu is Google's: its terms, in the wheel's LICENSE, apply to its use"),
    },
    Plugin {
        kind: PluginKind::Cuda13,
        file_name: "xla_cuda_plugin.so",
        package: "jax-cuda13-pjrt",
        version: "0.12.0.1",
        wheel: Wheel {
            file_name: "jax_cuda13_pjrt-0.12.0.1-py3-none-manylinux_2_27_x86_64.whl",
            sha256: "5899bb6177eda86ea532afb9a26794f2bdd04966f6a01f9028266b16c2b6cf90",
            size_bytes: 134_922_808,
            platform: "manylinux_2_27_x86_64",
            python_version: "3.11",
            implementation: "py",
            abi: "none",
        },
        path_in_wheel: "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
        own_variable: None,
        licence_note: None,
    },
];

impl PluginKind {
    /// This kind's row of [`TABLE`].
    pub fn plugin(self) -> &'static Plugin {
        const ROWS: &[Plugin] = &TABLE;
        ROWS.iter().find(|plugin| plugin.kind == self).expect("every kind has a row: a test looks")
    }
}

impl fmt::Display for PluginKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}
