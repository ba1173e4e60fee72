//! Programs as StableHLO text.
//!
//! Entry points: [`Lowering`], which turns a graph into operations, and [`module`], which wraps them in a function with
//! arguments. `emitter` knows the syntax of StableHLO's operations, `lower` finds the function that composes an
//! operation of a graph from these, and `mosaic` has a kernel. The cache of compiled programs relies on this: the same
//! graph and sizes always print the same bytes.

mod activation;
mod attention;
mod attention_plan;
mod chunk_list;
mod emitter;
mod expert_plan;
mod experts;
mod history;
mod inputs;
mod kv_cache;
mod lower;
mod model_ops;
mod mosaic;
pub(crate) mod probes;
mod selection;
mod state;
mod tensor;
mod threefry;
mod token_inputs;

use std::fmt::Write;

use model::graph::DType;

pub(super) use attention_plan::{Heads, MAX_CHUNK_BLOCKS, Plan, QUERY_TILE, Rounds};
pub(super) use emitter::{Combine, Emitter};
pub(super) use expert_plan::ExpertPlan;
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
    pub(super) layout: Layout,
}

/// The order in which the elements of an argument or result lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// The compiler's default for the type.
    Default,
    /// Elements that are neighbours along the last dimension are neighbours in memory.
    RowMajor,
}

/// Returns the text of the program `name` that computes `results`, values of `emitter`, from `parameters`. The first
/// results have the layouts `layouts`, the others the default layout.
pub(super) fn module(
    name: &str,
    num_devices: usize,
    parameters: &[Parameter],
    mut emitter: Emitter,
    (results, layouts): (&[Tensor], &[Layout]),
) -> String {
    emitter.return_values(results);
    let mut text = String::new();
    let mut write = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("writing to a string succeeds");
    write(format_args!(
        "module @{name} attributes {{mhlo.num_partitions = {num_devices} : i32, mhlo.num_replicas = 1 : i32}} {{"
    ));
    let parameters: Vec<String> = parameters.iter().enumerate().map(|(index, p)| p.print(index)).collect();
    let layouts = layouts.iter().chain(std::iter::repeat(&Layout::Default));
    let types: Vec<String> =
        results.iter().zip(layouts).map(|(result, layout)| layout.print_result(result.ty())).collect();
    write(format_args!("  func.func public @main({}) -> ({}) {{", parameters.join(", "), types.join(", ")));
    write(format_args!("{}  }}\n}}", emitter.finish()));
    text
}

impl Parameter {
    /// Returns a parameter that keeps its memory.
    pub(super) fn kept(ty: Type) -> Self {
        Self { ty, donated_to: None, layout: Layout::Default }
    }

    /// Returns a parameter whose memory becomes that of the result number `result`.
    pub(super) fn donated(ty: Type, result: usize) -> Self {
        Self { ty, donated_to: Some(result), layout: Layout::Default }
    }

    fn print(&self, index: usize) -> String {
        let Self { ty, donated_to, layout } = self;
        let alias = donated_to.map(|result| format!("tf.aliasing_output = {result} : i32"));
        let attributes: Vec<String> = layout.attribute(ty).into_iter().chain(alias).collect();
        match attributes.as_slice() {
            [] => format!("%arg{index}: {ty}"),
            attributes => format!("%arg{index}: {ty} {{{}}}", attributes.join(", ")),
        }
    }
}

impl Layout {
    /// Returns the attribute of an argument or result of type `ty`; `None` for the default.
    fn attribute(self, ty: &Type) -> Option<String> {
        let minor_to_major = || (0..ty.dims.len()).rev().map(|dim| dim.to_string()).collect::<Vec<_>>().join(",");
        (self == Self::RowMajor).then(|| format!("mhlo.layout_mode = \"{{{}}}\"", minor_to_major()))
    }

    fn print_result(self, ty: &Type) -> String {
        self.attribute(ty).map_or_else(|| ty.to_string(), |attribute| format!("{ty} {{{attribute}}}"))
    }
}

/// Packs `parts`, each `[rows, n]` of 32-bit elements, into one array `[rows, ..]` i32.
pub(super) fn pack_bits(emitter: &mut Emitter, parts: &[Tensor]) -> Tensor {
    let parts: Vec<Tensor> = parts.iter().map(|part| emitter.bitcast(part, DType::I32)).collect();
    emitter.concatenate(&parts.iter().collect::<Vec<_>>(), 1) // [rows, ..]
}
