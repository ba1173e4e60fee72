//! A device as data: the fields that the file of each device fills in.

use std::path::Path;

use crate::{PlatformSpec, Quantize, Ranks};

/// A kind of device that computes.
#[derive(Debug)]
pub struct DeviceSpec {
    /// Its value of `--device`.
    pub name: &'static str,
    /// Other values that mean the same.
    pub aliases: &'static [&'static str],
    /// A noun phrase for `--help`, without a full stop.
    pub help: &'static str,
    /// Left out of help and of lists of devices.
    pub is_hidden: bool,
    /// The backend that runs models on it.
    pub backend: BackendKind,
    /// How it is found; `None` where every machine has it.
    pub hardware: Option<Hardware>,
    /// The numbers of processes, and of devices in each, that may share a model.
    pub ranks: Ranks,
    /// The smaller types that weights may become.
    pub quantizations: &'static [Quantize],
    /// The type of keys and values can be chosen.
    pub takes_kv_cache_dtype: bool,
    /// Its memory is the host's.
    pub uses_host_memory: bool,
}

/// A kind of backend, of which the shard makes one.
#[derive(Debug, Clone, Copy)]
pub enum BackendKind {
    /// Kernels of our own.
    Cpu,
    /// Arithmetic over token ids instead of a model.
    Mock,
    /// Programs that a PJRT plugin compiles.
    Plugin(&'static PlatformSpec),
}

/// Hardware that not every machine has.
#[derive(Debug)]
pub struct Hardware {
    /// Such as `TPU`.
    pub name: &'static str,
    /// Its indefinite article.
    pub article: &'static str,
    /// A sentence for a machine that has none.
    pub absence: &'static str,
    /// Looks for it below a root directory, which is `/` except in tests.
    pub find: fn(&Path) -> Presence,
}

/// How much of some hardware a machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// As much as this text says.
    Here(String),
    /// It is there, but this process cannot open it: why, and what to do.
    Closed(String),
    /// Nothing.
    Absent,
}

/// A variable that a process needs in its environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildVariable {
    /// Its name.
    pub name: &'static str,
    /// Its value; the user's own goes before it.
    pub value: &'static str,
    /// Why it is needed.
    pub reason: &'static str,
}
