//! The memory that a compiled program needs.

#![expect(unsafe_code, reason = "calls the plugin")]

use crate::error::Error;
use crate::executable::Executable;
use crate::ffi::executable::ExecutableMemoryStats;

/// The value of a newer field before the call. A plugin that is too old to know the field leaves this value.
const UNSET: i64 = -1;

/// The memory that a program needs on each device, and on the host, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompiledMemoryStats {
    /// The size of the machine code.
    pub generated_code_bytes: i64,
    /// The size of all arguments.
    pub argument_bytes: i64,
    /// The size of all outputs, including outputs that reuse the memory of arguments.
    pub output_bytes: i64,
    /// The size of the arguments whose memory outputs reuse. Donating all of them saves this many bytes.
    pub alias_bytes: i64,
    /// The size of the scratch memory.
    pub temp_bytes: i64,
    /// The maximum number of bytes in use at one time, if the plugin reports it.
    pub peak_bytes: Option<i64>,
    /// The size of the machine code on the host.
    pub host_generated_code_bytes: i64,
    /// The size of the arguments in host memory.
    pub host_argument_bytes: i64,
    /// The size of the outputs in host memory.
    pub host_output_bytes: i64,
    /// The size of the arguments in host memory that outputs reuse.
    pub host_alias_bytes: i64,
    /// The size of the scratch memory on the host.
    pub host_temp_bytes: i64,
}

impl Executable {
    /// Queries the memory that the program needs.
    ///
    /// # Errors
    /// The plugin's error, with [`Error::is_unimplemented`] if the plugin does not report this memory.
    pub fn memory_stats(&self) -> Result<CompiledMemoryStats, Error> {
        let arguments = ExecutableMemoryStats {
            executable: self.raw(),
            generated_code: 0,
            argument: 0,
            output: 0,
            alias: 0,
            temp: 0,
            host_generated_code: 0,
            host_argument: 0,
            host_output: 0,
            host_alias: 0,
            host_temp: 0,
            peak_memory: UNSET,
            total_size: UNSET,
            total_allocation: UNSET,
            indefinite_allocations: UNSET,
            peak_unpadded_heap: UNSET,
        };
        // SAFETY: `self` owns the executable.
        let out = unsafe { self.api().call(arguments) }?;
        Ok(CompiledMemoryStats {
            generated_code_bytes: out.generated_code,
            argument_bytes: out.argument,
            output_bytes: out.output,
            alias_bytes: out.alias,
            temp_bytes: out.temp,
            peak_bytes: (out.peak_memory != UNSET).then_some(out.peak_memory),
            host_generated_code_bytes: out.host_generated_code,
            host_argument_bytes: out.host_argument,
            host_output_bytes: out.host_output,
            host_alias_bytes: out.host_alias,
            host_temp_bytes: out.host_temp,
        })
    }
}
