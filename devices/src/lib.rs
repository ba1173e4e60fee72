//! To add a device:
//! 1. One file beside this one, as `cuda.rs`, with a constant: [`DeviceSpec`] has a field for each thing that is known.
//! 2. A `mod` line and a row in [`TABLE`]. Flags, help, checks, the search for plugins, `plugin fetch`, the variables of
//!    its processes and the programs that are compiled for it follow from the row.
//! 3. Only for a device without a PJRT plugin: a crate with an `impl Backend` (`backend/src/lib.rs`), a variant of
//!    [`BackendKind`], and the match arms that the compiler then asks for.
//! 4. The conformance tests of `shard/src/engine/tests` on the device: the references, and rows that do not see each
//!    other. Operations that are compiled are compared with the CPU's in `xla/src/tests`.
//! 5. A row in `docs/plugins.md`.
//!
//! Doors: [`Device`], one row; [`choose`], the device that `--device` stands for; [`missing`], what a device needs and
//! this machine lacks; [`Device::check_ranks`] and [`Device::check_quantize`], what a device refuses; [`plugins::find`];
//! [`tpu::find`], chips. All of them look at files only; no plugin is opened.

mod choice;
mod cpu;
mod cuda;
mod device;
mod help;
mod mock;
mod platform;
pub mod plugins;
mod quantize;
mod ranks;
mod spec;
pub mod tpu;
pub mod xla_cpu;

pub use choice::{Choice, choose, missing};
pub use device::{Asked, Device, listed};
pub use help::{device_help, quantize_help};
pub use platform::{ClientOption, CompilerFlag, HeadForm, KvCacheForm, PlatformSpec};
pub use quantize::{NoQuantizeError, Quantize};
pub use ranks::{Ranks, RanksError};
pub use spec::{BackendKind, ChildVariable, DeviceSpec, Hardware, Presence};

/// Every device, in the order in which help names them. Of those with [`Hardware`], `--device auto` takes the first that
/// is here.
pub const TABLE: &[Device] = &[Device::CPU, Device::XLA_CPU, Device::TPU, Device::CUDA, Device::MOCK];
