//! Converts a checkpoint to weights in the form that the kernels need.
//!
//! Entry point: [`load`]. The operations that use a weight decide its form: packed for linear layers and experts (an
//! embedding that shares a packed weight reads single rows of it), a table in the type of its spec for other
//! embeddings, f32 for norms and biases. One tensor is converted at a time, and large ones in parts, so that loading
//! takes little more memory than the loaded weights.

use std::collections::HashMap;
use std::sync::Arc;

use backend::{Membership, Stays};
use candle_core::Tensor;
use half::{bf16, f16};
use kernels::linear::{PackedWeight, WeightType};
use model::graph::{Graph, Op, WeightSpec};
use model::weights::{Checkpoint, TensorPart};
use numbers::floats::{self, Float};
use numbers::{FloatType, Rounding};

use super::host;
use crate::error::CpuError;

/// At most this many rows of a table are read at a time.
const TABLE_ROWS: usize = 256;

/// A weight in memory.
#[derive(Debug, Clone)]
pub(super) enum Weight {
    /// A weight of a linear layer, which an embedding may share.
    Packed(Arc<PackedWeight>),
    /// An embedding `[vocab, hidden]` in the type of its spec, or any other weight in f32.
    Tensor(Tensor),
    /// One weight per expert, or per head.
    Experts(Arc<[PackedWeight]>),
}

/// The use of a weight by an operation. If several operations use one weight, the use that comes last in this list
/// decides the weight's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Vector,
    Table,
    Matrix,
    Experts,
}

impl Weight {
    /// Returns the memory that the weight takes, in bytes.
    pub(super) fn size_bytes(&self) -> u64 {
        let bytes = match self {
            Self::Packed(weight) => weight.size_bytes(),
            Self::Tensor(tensor) => tensor.elem_count() * tensor.dtype().size_in_bytes(),
            Self::Experts(experts) => experts.iter().map(PackedWeight::size_bytes).sum(),
        };
        bytes as u64
    }
}

/// Loads this rank's part of every weight of `graphs`, and returns them by name. If the host's memory is too small for
/// all ranks at once, the ranks take turns. `progress` receives the number of loaded weights and the total.
///
/// # Errors
/// When a weight is missing or malformed, or another rank does not join in time or fails.
pub(super) fn load(
    graphs: &[&Arc<Graph>],
    (checkpoint, membership): (&Checkpoint, &Membership),
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<HashMap<String, Weight>, CpuError> {
    let wanted = uses(graphs);
    let specs: Vec<&WeightSpec> = wanted.iter().map(|(spec, _)| *spec).collect();
    let max_at_once = membership.max_loading(&specs, Stays::OnHost)?;
    let total = wanted.len() as u64;
    let mut weights = HashMap::with_capacity(wanted.len());
    for (done, (spec, used_as)) in (0..).zip(wanted) {
        progress(done, total);
        let _turn = membership.take_turn(max_at_once, &mut || progress(done, total))?;
        let weight = checkpoint.read(spec, membership.rank(), |part| load_weight((spec, used_as), part))?;
        weights.insert(spec.name.clone(), weight);
    }
    progress(total, total);
    Ok(weights)
}

/// Returns each weight once, in the order of the graphs, with the use that decides its form.
fn uses<'a>(graphs: &[&'a Arc<Graph>]) -> Vec<(&'a WeightSpec, Use)> {
    let mut order: Vec<(&WeightSpec, Use)> = Vec::new();
    let mut indices: HashMap<&str, usize> = HashMap::new();
    for graph in graphs {
        for node in graph.nodes() {
            for (position, operand) in node.operands.iter().enumerate() {
                let Op::Weight(spec) = &graph.node(*operand).op else {
                    continue;
                };
                let used_as = match (&node.op, position) {
                    (Op::Linear, 1) => Use::Matrix,
                    (Op::Embedding, 0) => Use::Table,
                    (Op::Experts(_), 2..=4) | (Op::HeadLinear, 1) => Use::Experts,
                    _ => Use::Vector,
                };
                let index = *indices.entry(&spec.name).or_insert(order.len());
                match order.get_mut(index) {
                    Some((_, known)) => *known = used_as.max(*known),
                    None => order.push((spec, used_as)),
                }
            }
        }
    }
    order
}

fn load_weight((spec, used_as): (&WeightSpec, Use), part: &TensorPart<'_>) -> Result<Weight, CpuError> {
    let shape = spec.local_shape();
    Ok(match used_as {
        Use::Vector => Weight::Tensor(host::shaped(vector(spec, part), shape)?),
        Use::Table => Weight::Tensor(match spec.dtype {
            FloatType::F16 => host::shaped(table::<f16>(part, shape[0]), shape)?,
            FloatType::Bf16 => host::shaped(table::<bf16>(part, shape[0]), shape)?,
            FloatType::F32 => host::shaped(table::<f32>(part, shape[0]), shape)?,
        }),
        Use::Matrix => {
            let rows = |rows, take: &mut dyn FnMut(&[u8])| take(&part.rows(rows).bytes);
            Weight::Packed(Arc::new(PackedWeight::pack([shape[0], shape[1]], part.dtype, weight_type(spec), &rows)))
        }
        Use::Experts => {
            // The numbers are the same as in bf16.
            let is_kept = part.is_mxfp4() && spec.rounding.is_none() && spec.dtype == FloatType::Bf16;
            let packed = if is_kept { WeightType::Mxfp4 } else { weight_type(spec) };
            let row_bytes = shape[2] * part.dtype.size_bytes();
            let expert = |index: usize| {
                let matrix = part.rows(index..index + 1);
                let rows = |rows: std::ops::Range<usize>, take: &mut dyn FnMut(&[u8])| {
                    take(&matrix.bytes[rows.start * row_bytes..rows.end * row_bytes]);
                };
                PackedWeight::pack([shape[1], shape[2]], part.dtype, packed, &rows)
            };
            Weight::Experts((0..shape[0]).map(expert).collect())
        }
    })
}

/// Returns all elements as f32, after rounding each to the type of `spec`.
fn vector(spec: &WeightSpec, part: &TensorPart<'_>) -> Vec<f32> {
    let mut floats: Vec<f32> = Vec::new();
    floats::read(&part.all().bytes, part.dtype, &mut floats);
    floats.iter_mut().for_each(|float| *float = spec.dtype.round(*float));
    floats
}

/// Returns all elements as `T`. They are read a few rows at a time.
fn table<T: Float>(part: &TensorPart<'_>, num_rows: usize) -> Vec<T> {
    let mut floats = Vec::new();
    for first in (0..num_rows).step_by(TABLE_ROWS) {
        let rows = part.rows(first..(first + TABLE_ROWS).min(num_rows));
        if first == 0 {
            let row_bytes = rows.bytes.len() / TABLE_ROWS.min(num_rows);
            floats.reserve_exact(num_rows * row_bytes / part.dtype.size_bytes());
        }
        floats::read(&rows.bytes, part.dtype, &mut floats);
    }
    floats
}

/// Returns the type to which the weights of a linear layer are converted.
fn weight_type(spec: &WeightSpec) -> WeightType {
    match spec.rounding {
        Some(Rounding::Int8) => return WeightType::Int8,
        Some(Rounding::Int4) => return WeightType::Int4,
        Some(Rounding::Fp8) => unreachable!("the engine refuses fp8 weights on the CPU"),
        None => {}
    }
    match spec.dtype {
        FloatType::F16 => WeightType::F16,
        FloatType::Bf16 => WeightType::Bf16,
        FloatType::F32 => WeightType::F32,
    }
}
