//! From the checkpoint to weights as the kernels want them.
//!
//! Door: [`load`]. How a weight is kept follows from the operations that use it: packed for linear layers (and read row by
//! row where an embedding shares it), a table in its own type for embeddings, f32 for norms and biases. One tensor is
//! converted at a time, so that loading takes little more memory than the loaded weights.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{CpuStorage, Device, Tensor};
use kernels::linear::{PackedWeight, WeightData};

use super::host::{self, View};
use super::membership::Membership;
use crate::backend::BackendError;
use crate::graph::{Graph, Op, WeightSpec};
use crate::weights::{Checkpoint, TensorPart};

/// A weight in memory.
#[derive(Debug, Clone)]
pub(super) enum Weight {
    /// Of a linear layer, maybe also of an embedding.
    Packed(Arc<PackedWeight>),
    /// Of an embedding `[vocab, hidden]`, in its own type; or of anything else, f32.
    Tensor(Tensor),
}

/// What an operation does with a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Vector,
    Table,
    Matrix,
}

/// Loads what a rank has of every weight of `graphs`, by name. Ranks that share the host's memory take turns where it is
/// short. `progress` hears of each weight: (done, total).
///
/// # Errors
/// When a weight is missing or malformed, or another rank does not come.
pub(super) fn load(
    graphs: &[&Arc<Graph>],
    (checkpoint, membership): (&Checkpoint, &Membership),
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<HashMap<String, Weight>, BackendError> {
    let wanted = uses(graphs);
    let specs: Vec<&WeightSpec> = wanted.iter().map(|(spec, _)| *spec).collect();
    let max_at_once = membership.max_loading(&specs)?;
    let total = wanted.len() as u64;
    let mut weights = HashMap::with_capacity(wanted.len());
    for (done, (spec, used_as)) in (0..).zip(wanted) {
        progress(done, total);
        let _turn = membership.take_turn(max_at_once, &mut || progress(done, total))?;
        let part = checkpoint.part(spec, membership.rank())?;
        weights.insert(spec.name.clone(), load_weight(spec, used_as, part)?);
    }
    progress(total, total);
    Ok(weights)
}

/// Each weight once, in the order of the graphs, with its most demanding use.
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

fn load_weight(spec: &WeightSpec, used_as: Use, stored: TensorPart<'_>) -> Result<Weight, BackendError> {
    let stored_type = host::float_type(stored.dtype);
    let tensor = Tensor::from_raw_buffer(&stored.bytes, stored_type, &spec.local_shape(), &Device::Cpu)?;
    // Its pages go back before there is another copy.
    drop(stored);
    let tensor = match used_as {
        Use::Vector => tensor.to_dtype(host::float_type(spec.dtype))?.to_dtype(candle_core::DType::F32)?,
        Use::Table | Use::Matrix => tensor.to_dtype(host::float_type(spec.dtype))?,
    };
    match used_as {
        Use::Vector | Use::Table => Ok(Weight::Tensor(tensor)),
        Use::Matrix => Ok(Weight::Packed(Arc::new(pack(&tensor)?))),
    }
}

fn pack(tensor: &Tensor) -> Result<PackedWeight, BackendError> {
    let (num_outputs, num_inputs) = tensor.dims2()?;
    let view = View::new(tensor)?;
    let (storage, range) = view.storage();
    let data = match storage {
        CpuStorage::F32(elements) => WeightData::F32(&elements[range]),
        CpuStorage::BF16(elements) => WeightData::Bf16(&elements[range]),
        CpuStorage::F16(elements) => WeightData::F16(&elements[range]),
        _ => unreachable!("weights are converted to a type of floats"),
    };
    Ok(PackedWeight::pack(num_outputs, num_inputs, data))
}
