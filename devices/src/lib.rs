//! To add a device:
//! 1. Beside this file, add a file with a constant [`Device`] and its [`DeviceSpec`], as in `cuda.rs`. Each field says
//!    one fact about the device.
//! 2. Add a `mod` line and a row in [`TABLE`]. Flags, help, checks, the search for plugins, `plugin fetch`, the
//!    environment variables of its processes and the programs compiled for it follow from the row.
//! 3. Only for a device without a PJRT plugin: add a crate with an `impl Backend` (`backend/src/lib.rs`), a variant of
//!    [`BackendKind`], and the match arms whose absence the compiler then reports.
//! 4. Run the conformance tests of `shard/src/engine/tests` on the device: they compare outputs with references and
//!    check that rows do not affect each other. `xla/src/tests` compares compiled operations with those of the CPU.
//! 5. Add a row to `docs/plugins.md`.
//!
//! Entry points: [`Device`] is a row; [`choose`] returns the device that `--device` means; [`missing`] says why a
//! device cannot be used on this machine; [`Device::check_ranks`], [`Device::check_quantize`] and
//! [`Device::check_attention`] refuse unsupported requests; [`plugins::find`] finds plugins; [`tpu::find`] finds chips.
//! None of these functions opens a plugin or a device: the searches only look at files.

mod check;
mod choice;
mod cpu;
mod cuda;
mod device;
mod help;
mod mock;
pub mod ownership;
mod platform;
pub mod plugins;
mod quantize;
mod ranks;
mod spec;
pub mod tpu;
pub mod xla_cpu;

pub use check::{NoAttentionError, NoQuantizeError, RanksError};
pub use choice::{Choice, choose, missing};
pub use device::{Asked, Device, listed};
pub use help::{device_help, quantize_help};
pub use platform::{
    ChildVariable, ClientOption, CompilerFlag, DecodeAttention, DecodeLoop, DeviceKind, HeadForm, KvCacheForm,
    PlatformSpec,
};
pub use quantize::Quantize;
pub use ranks::Ranks;
pub use spec::{BackendKind, DeviceSpec, Hardware, Presence};

/// All devices, in the order in which the help text lists them. `--device auto` takes the first device that needs
/// [`Hardware`] and whose hardware and plugin this machine has, else the CPU.
pub const TABLE: &[Device] = &[Device::CPU, Device::XLA_CPU, Device::TPU, Device::CUDA, Device::MOCK];
