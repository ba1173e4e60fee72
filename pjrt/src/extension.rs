//! The kinds of extensions of the C API.

/// A kind of extension. The kinds are in the order of their numbers in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtensionKind {
    /// Custom calls of programs on GPUs.
    GpuCustomCall,
    /// Profiling of programs.
    Profiler,
    /// Partitioners that frameworks register.
    CustomPartitioner,
    /// Streams for external work.
    Stream,
    /// Layouts of arrays. This crate uses this extension.
    Layouts,
    /// Foreign functions that programs call.
    Ffi,
    /// Memories of device descriptions.
    MemoryDescriptions,
    /// Triton kernels.
    Triton,
    /// Buffers without shapes.
    RawBuffer,
    /// Compilation in phases.
    PhaseCompile,
    /// An example of an extension.
    Example,
    /// The extension that the header names `Unknown`.
    Unknown,
    /// Transfers between hosts.
    CrossHostTransfers,
    /// Facts about executables.
    ExecutableMetadata,
    /// Callbacks of the runtime.
    Callback,
    /// The older extension for the allocation of host memory.
    HostAllocator,
    /// Facts about TPU topologies.
    TpuTopology,
    /// Facts about TPU executables.
    TpuExecutable,
    /// Work across several TPU slices.
    Megascale,
    /// Shardings of parameters and outputs.
    Shardings,
    /// Checks that an executable is compatible with a runtime.
    AbiVersion,
    /// Collectives outside of programs.
    Collectives,
    /// Configuration of several slices.
    MultiSlice,
    /// Allocation of host memory.
    HostMemoryAllocator,
    /// A kind with this number, which the header of this crate does not list.
    Other(i32),
}

/// All kinds that the header lists, in the order of their numbers, which start at 0.
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
    /// Returns the kind with this number in the header.
    pub(crate) fn from_number(number: i32) -> Self {
        let known = usize::try_from(number).ok().and_then(|index| KINDS.get(index));
        known.copied().unwrap_or(Self::Other(number))
    }
}
