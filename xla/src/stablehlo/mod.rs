//! Programs as StableHLO text, printed from graphs.
//!
//! Entry points: [`Lowering`], which turns a graph into operations, and [`module`], which wraps them in a function with
//! arguments. `emitter` knows the syntax of each operation; `model_ops`, `activation`, `attention`, `experts`,
//! `history`, `selection`, `state`, `token_inputs` and `threefry` compose our operations from these, and `mosaic` has
//! kernels. The same graph and
//! sizes always print the same bytes, because the cache of compiled programs relies on that.

mod activation;
mod attention;
mod emitter;
mod experts;
mod history;
mod inputs;
mod lower;
mod model_ops;
mod mosaic;
mod selection;
mod state;
mod tensor;
mod threefry;
mod token_inputs;

use std::fmt::Write;

use model::graph::DType;

pub(super) use attention::{MAX_CHUNK_BLOCKS, QUERY_TILE, decode_chunk_tokens};
pub(super) use emitter::Emitter;
pub(super) use inputs::{RowInputs, SampledInputs, Sizes};
pub(super) use lower::Lowering;
#[cfg(test)]
pub(super) use mosaic::carry_out;
pub(super) use state::state_type;
pub(super) use tensor::{Tensor, Type};

/// An argument of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parameter {
    pub(super) ty: Type,
    /// The index of the result that takes over the argument's memory; `None` if the argument keeps its memory.
    pub(super) donated_to: Option<usize>,
}

/// Returns the text of the program `name` that computes `results`, the last values of `emitter`, from `parameters`.
pub(super) fn module(
    name: &str,
    num_devices: usize,
    parameters: &[Parameter],
    mut emitter: Emitter,
    results: &[Tensor],
) -> String {
    emitter.return_values(results);
    let mut text = String::new();
    let mut write = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("writing to a string succeeds");
    write(format_args!(
        "module @{name} attributes {{mhlo.num_partitions = {num_devices} : i32, mhlo.num_replicas = 1 : i32}} {{"
    ));
    let parameters: Vec<String> = parameters.iter().enumerate().map(|(index, p)| p.print(index)).collect();
    let types: Vec<String> = results.iter().map(|result| result.ty().to_string()).collect();
    write(format_args!("  func.func public @main({}) -> ({}) {{", parameters.join(", "), types.join(", ")));
    write(format_args!("{}  }}\n}}", emitter.finish()));
    text
}

impl Parameter {
    /// Returns a parameter that keeps its memory.
    pub(super) fn kept(ty: Type) -> Self {
        Self { ty, donated_to: None }
    }

    /// Returns a parameter whose memory becomes that of the result number `result`.
    pub(super) fn donated(ty: Type, result: usize) -> Self {
        Self { ty, donated_to: Some(result) }
    }

    fn print(&self, index: usize) -> String {
        let Self { ty, donated_to } = self;
        match donated_to {
            Some(result) => format!("%arg{index}: {ty} {{tf.aliasing_output = {result} : i32}}"),
            None => format!("%arg{index}: {ty}"),
        }
    }
}

/// Packs `parts`, each `[rows, n]` of 32-bit elements, into one array `[rows, ..]` i32.
pub(super) fn pack_bits(emitter: &mut Emitter, parts: &[Tensor]) -> Tensor {
    let parts: Vec<Tensor> = parts.iter().map(|part| emitter.bitcast(part, DType::I32)).collect();
    emitter.concatenate(&parts.iter().collect::<Vec<_>>(), 1) // [rows, ..]
}
