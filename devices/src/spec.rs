//! The data of a device, which the file of each device fills in.

use std::path::Path;

use crate::{PlatformSpec, Quantize, Ranks};

/// A kind of device that runs models.
#[derive(Debug)]
pub struct DeviceSpec {
    /// The device's value of `--device`.
    pub name: &'static str,
    /// Other values of `--device` that select the same device.
    pub aliases: &'static [&'static str],
    /// A noun phrase for `--help`, without a full stop.
    pub help: &'static str,
    /// True if help and lists of devices leave the device out.
    pub is_hidden: bool,
    /// The backend that runs models on the device.
    pub backend: BackendKind,
    /// The hardware, and how to find it. `None` if every machine has it.
    pub hardware: Option<Hardware>,
    /// The numbers of processes, and of devices per process, that may share a model.
    pub ranks: Ranks,
    /// The smaller types that weights may be converted to.
    pub quantizations: &'static [Quantize],
    /// True if the user can choose the type of keys and values.
    pub takes_kv_cache_dtype: bool,
    /// True if the device computes in the memory of the host.
    pub uses_host_memory: bool,
}

/// A kind of backend, from which the shard creates the backend.
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
    /// The message for a machine without this hardware.
    pub absence: &'static str,
    /// Looks for the hardware below a root directory: `/`, or the directory of `plan --sysfs-root`, or a test's.
    pub find: fn(&Path) -> Presence,
}

/// The result of a search for hardware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// The machine has the hardware. The text says which hardware, and how much of it.
    Here(String),
    /// The machine has the hardware, but this process cannot open it. The text says why and what to do.
    Closed(String),
    /// The machine has no such hardware.
    Absent,
}
