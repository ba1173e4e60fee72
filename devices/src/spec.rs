//! The data of a device, which the file of each device fills in.

use std::path::Path;

use crate::{PlatformSpec, Quantize, Ranks};

/// A kind of device that runs models.
#[derive(Debug)]
pub struct DeviceSpec {
    /// The device's value of `--device`.
    pub name: &'static str,
    /// Other values that mean the same.
    pub aliases: &'static [&'static str],
    /// A noun phrase for `--help`, without a full stop.
    pub help: &'static str,
    /// True if help and lists of devices leave the device out.
    pub is_hidden: bool,
    /// The backend that runs models on the device.
    pub backend: BackendKind,
    /// The hardware, and how to find it. `None` if every machine has it.
    pub hardware: Option<Hardware>,
    /// The numbers of processes, and of devices in each, that may share a model.
    pub ranks: Ranks,
    /// The smaller types that weights may be converted to.
    pub quantizations: &'static [Quantize],
    /// True if the user can choose the type of keys and values.
    pub takes_kv_cache_dtype: bool,
    /// True if the device's memory is the host's.
    pub uses_host_memory: bool,
}

/// A kind of backend. The shard creates the backend from it.
#[derive(Debug, Clone, Copy)]
pub enum BackendKind {
    /// Our own kernels.
    Cpu,
    /// Arithmetic over token ids instead of a model.
    Mock,
    /// Programs that a PJRT plugin compiles.
    Plugin(&'static PlatformSpec),
}

/// Hardware that not every machine has.
#[derive(Debug)]
pub struct Hardware {
    /// The name, such as `TPU`.
    pub name: &'static str,
    /// The indefinite article of the name.
    pub article: &'static str,
    /// The message for a machine that has none.
    pub absence: &'static str,
    /// Looks for the hardware below a root directory, which is `/` except in tests.
    pub find: fn(&Path) -> Presence,
}

/// The result of a search for hardware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// The hardware is here. The text says which and how much.
    Here(String),
    /// The hardware is here, but this process cannot open it. The text says why and what to do.
    Closed(String),
    /// The machine has no such hardware.
    Absent,
}
