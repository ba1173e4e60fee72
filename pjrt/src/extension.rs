//! The kinds of extensions of the C API.

/// The kinds of extensions, with their numbers in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtensionKind {
    /// Custom calls on GPUs.
    GpuCustomCall,
    /// Profiles.
    Profiler,
    /// Partitioners of frameworks.
    CustomPartitioner,
    /// Streams for external work.
    Stream,
    /// Layouts of arrays. This crate uses it.
    Layouts,
    /// Foreign functions in programs.
    Ffi,
    /// Memories of devices that are only described.
    MemoryDescriptions,
    /// Triton kernels.
    Triton,
    /// Buffers without shapes.
    RawBuffer,
    /// Compilation in phases.
    PhaseCompile,
    /// An example of an extension.
    Example,
    /// An extension whose name in the header is Unknown.
    Unknown,
    /// Transfers between hosts.
    CrossHostTransfers,
    /// Facts about executables.
    ExecutableMetadata,
    /// Callbacks of the runtime.
    Callback,
    /// The older allocation of host memory.
    HostAllocator,
    /// Facts about TPU topologies.
    TpuTopology,
    /// Facts about TPU executables.
    TpuExecutable,
    /// Work across several TPU slices.
    Megascale,
    /// Shardings of parameters and outputs.
    Shardings,
    /// Checks if an executable fits a runtime.
    AbiVersion,
    /// Collectives outside of programs.
    Collectives,
    /// Configuration of several slices.
    MultiSlice,
    /// Allocation of host memory.
    HostMemoryAllocator,
    /// A number that is newer than the header of this crate.
    Other(i32),
}

/// All known kinds in the order of the header, from 0.
const KINDS: [ExtensionKind; 24] = [
    ExtensionKind::GpuCustomCall,
    ExtensionKind::Profiler,
    ExtensionKind::CustomPartitioner,
    ExtensionKind::Stream,
    ExtensionKind::Layouts,
    ExtensionKind::Ffi,
    ExtensionKind::MemoryDescriptions,
    ExtensionKind::Triton,
    ExtensionKind::RawBuffer,
    ExtensionKind::PhaseCompile,
    ExtensionKind::Example,
    ExtensionKind::Unknown,
    ExtensionKind::CrossHostTransfers,
    ExtensionKind::ExecutableMetadata,
    ExtensionKind::Callback,
    ExtensionKind::HostAllocator,
    ExtensionKind::TpuTopology,
    ExtensionKind::TpuExecutable,
    ExtensionKind::Megascale,
    ExtensionKind::Shardings,
    ExtensionKind::AbiVersion,
    ExtensionKind::Collectives,
    ExtensionKind::MultiSlice,
    ExtensionKind::HostMemoryAllocator,
];

impl ExtensionKind {
    /// The kind with this number.
    pub(crate) fn from_number(number: i32) -> Self {
        let known = usize::try_from(number).ok().and_then(|index| KINDS.get(index));
        known.copied().unwrap_or(Self::Other(number))
    }
}
