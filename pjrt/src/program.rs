//! Programs in the form that the C API accepts.

use crate::ffi::Struct;
use crate::ffi::values::Program;

const FORMAT: &str = "mlir";

/// Returns a StableHLO program, as text or bytecode, for one call that only reads the program. The caller must keep
/// `code` alive until the call returns.
pub(crate) fn mlir_program(code: &[u8]) -> Struct<Program> {
    Struct::new(Program {
        code: code.as_ptr().cast_mut().cast(),
        code_size: code.len(),
        format: FORMAT.as_ptr().cast(),
        format_size: FORMAT.len(),
    })
}
