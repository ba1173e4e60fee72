//! The device `mock`: arithmetic over token ids instead of a model, for tests.

use crate::{BackendKind, Device, DeviceSpec, Ranks};

impl Device {
    /// Arithmetic over token ids instead of a model, for tests.
    pub const MOCK: Self = Self::new(&DeviceSpec {
        name: "mock",
        aliases: &[],
        help: "Arithmetic over token ids instead of a model, for tests",
        is_hidden: true,
        backend: BackendKind::Mock,
        hardware: None,
        ranks: Ranks::Any,
        quantizations: &[],
        takes_kv_cache_dtype: false,
        uses_host_memory: false,
    });
}
