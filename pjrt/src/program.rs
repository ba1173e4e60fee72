//! Programs as the C API takes them.

use crate::ffi::Struct;
use crate::ffi::values::Program;

const FORMAT: &str = "mlir";

/// A StableHLO program, text or bytecode, for one call that only reads it. The caller keeps `code` alive during the
/// call.
pub(crate) fn mlir_program(code: &[u8]) -> Struct<Program> {
    Struct::new(Program {
        code: code.as_ptr().cast_mut().cast(),
        code_size: code.len(),
        format: FORMAT.as_ptr().cast(),
        format_size: FORMAT.len(),
    })
}
