//! To add a device:
//! 1. Beside this file, add a file with a constant [`DeviceSpec`], as in `cuda.rs`. Each field says one fact about the
//!    device.
//! 2. Add a `mod` line and a row in [`TABLE`]. Flags, help, checks, the search for plugins, `plugin fetch`, the
//!    variables of its processes and the programs compiled for it follow from the row.
//! 3. Only for a device without a PJRT plugin: add a crate with an `impl Backend` (`backend/src/lib.rs`), a variant of
//!    [`BackendKind`], and the match arms that the compiler then asks for.
//! 4. Run the conformance tests of `shard/src/engine/tests` on the device: they compare with references and check that
//!    rows do not affect each other. `xla/src/tests` compares compiled operations with the CPU's.
//! 5. Add a row to `docs/plugins.md`.
//!
//! Doors: [`Device`] is a row; [`choose`] returns the device that `--device` means; [`missing`] names the hardware or
//! plugin that this machine lacks; [`Device::check_ranks`] and [`Device::check_quantize`] refuse unsupported requests;
//! [`plugins::find`] finds plugins; [`tpu::find`] finds chips. All of them only look at files; none opens a plugin.

mod check;
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

pub use check::{NoQuantizeError, RanksError};
pub use choice::{Choice, choose, missing};
pub use device::{Asked, Device, listed};
pub use help::{device_help, quantize_help};
pub use platform::{ChildVariable, ClientOption, CompilerFlag, DeviceKind, HeadForm, KvCacheForm, PlatformSpec};
pub use quantize::Quantize;
pub use ranks::Ranks;
pub use spec::{BackendKind, DeviceSpec, Hardware, Presence};

/// Every device, in the order in which help lists them. `--device auto` takes the first one whose [`Hardware`] is here.
pub const TABLE: &[Device] = &[Device::CPU, Device::XLA_CPU, Device::TPU, Device::CUDA, Device::MOCK];
