//! The CPU of this machine, with our own kernels.

use crate::{BackendKind, Device, DeviceSpec, Quantize, Ranks};

impl Device {
    /// The CPU of this machine, with our own kernels.
    pub const CPU: Self = Self::new(&DeviceSpec {
        name: "cpu",
        aliases: &[],
        help: "This machine's CPU, with the server's own kernels",
        is_hidden: false,
        backend: BackendKind::Cpu,
        hardware: None,
        ranks: Ranks::OnePerProcess,
        quantizations: &[Quantize::Int8, Quantize::Int4],
        takes_kv_cache_dtype: true,
        uses_host_memory: true,
    });
}
