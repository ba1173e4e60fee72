//! Which extensions a plugin has.

/// Kinds of extensions, with the numbers of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtensionKind {
    /// Custom calls on GPUs.
    GpuCustomCall,
    /// Profiles.
    Profiler,
    /// Partitioners of the framework.
    CustomPartitioner,
    /// Streams of external work.
    Stream,
    /// Layouts of arrays; this crate uses it.
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
    /// An example.
    Example,
    /// Unknown by name.
    Unknown,
    /// Transfers between hosts.
    CrossHostTransfers,
    /// Facts about executables.
    ExecutableMetadata,
    /// Callbacks of the runtime.
    Callback,
    /// Allocation of host memory, the older one.
    HostAllocator,
    /// Facts about TPU topologies.
    TpuTopology,
    /// Facts about TPU executables.
    TpuExecutable,
    /// Several TPU slices.
    Megascale,
    /// Shardings of parameters and outputs.
    Shardings,
    /// Whether an executable fits a runtime.
    AbiVersion,
    /// Collectives outside of programs.
    Collectives,
    /// Configuration of several slices.
    MultiSlice,
    /// Allocation of host memory.
    HostMemoryAllocator,
    /// A number that is newer than the header.
    Other(i32),
}

/// In the order of the header, from 0.
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
