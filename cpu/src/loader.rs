//! Converts a checkpoint to weights in the form that the kernels need.
//!
//! Entry points: [`load`], and [`size_bytes`], which predicts the memory that it takes. The form of a weight depends on
//! the operations that use it. Weights of linear layers and of experts are packed. An embedding that shares a packed
//! weight reads single rows of it. Other embeddings are tables in the type of their spec, and norms and biases are f32.
//! Matrices and tables that a GGUF file stores in blocks are packed in blocks. One tensor is converted at a time, and
//! large ones in parts, so that loading takes little more memory than the loaded weights.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use backend::{Membership, Stays};
use candle_core::Tensor;
use half::{bf16, f16};
use kernels::linear::{PackedWeight, WeightType};
use model::graph::{Graph, Op, WeightSpec};
use model::weights::{Checkpoint, TensorPart};
use numbers::blocks::BlockType;
use numbers::floats::{self, Float};
use numbers::{FloatType, Rounding, mxfp4};

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

/// Returns the bytes that this rank's part of the weights of `graphs` takes when it is loaded. Of quantized weights,
/// only the scales are read; of others, nothing.
///
/// # Errors
/// When a weight is missing or malformed.
pub(super) fn size_bytes(graphs: &[&Arc<Graph>], checkpoint: &Checkpoint, rank: usize) -> Result<u64, CpuError> {
    let mut bytes = 0;
    for (spec, used_as) in uses(graphs) {
        bytes += checkpoint.read(spec, rank, |part| Ok::<_, CpuError>(loaded_bytes(spec, used_as, part)))?;
    }
    Ok(bytes)
}

fn loaded_bytes(spec: &WeightSpec, used_as: Use, part: &TensorPart<'_>) -> u64 {
    let shape = spec.local_shape();
    let num_elements = shape.iter().product::<usize>();
    let bytes = match Form::of(spec, used_as, part) {
        Form::Blocks(kind) => {
            let num_columns = shape[shape.len() - 1];
            PackedWeight::bytes_of_blocks([num_elements / num_columns, num_columns], kind)
        }
        Form::Packed(WeightType::Mxfp4) => mxfp4::num_bytes(num_elements),
        Form::Packed(_) | Form::Table => return spec.local_bytes(),
        Form::Vector => num_elements * size_of::<f32>(),
    };
    bytes as u64
}

/// The form of a weight in memory.
enum Form {
    Vector,
    Table,
    Packed(WeightType),
    Blocks(BlockType),
}

impl Form {
    fn of(spec: &WeightSpec, used_as: Use, part: &TensorPart<'_>) -> Self {
        // The numbers are the same as in bf16.
        let is_kept = spec.rounding.is_none() && spec.dtype == FloatType::Bf16;
        match (used_as, part.blocks()) {
            (Use::Vector, _) => Self::Vector,
            (_, Some(kind)) if is_kept => Self::Blocks(kind),
            (Use::Table, _) => Self::Table,
            (Use::Experts, _) if is_kept && part.is_mxfp4() => Self::Packed(WeightType::Mxfp4),
            (Use::Matrix | Use::Experts, _) => Self::Packed(weight_type(spec)),
        }
    }
}

fn load_weight((spec, used_as): (&WeightSpec, Use), part: &TensorPart<'_>) -> Result<Weight, CpuError> {
    let shape = spec.local_shape();
    Ok(match (Form::of(spec, used_as, part), used_as) {
        (Form::Vector, _) => Weight::Tensor(host::shaped(vector(spec, part), shape)?),
        (Form::Table, _) => Weight::Tensor(match spec.dtype {
            FloatType::F16 => host::shaped(table::<f16>(part, shape[0]), shape)?,
            FloatType::Bf16 => host::shaped(table::<bf16>(part, shape[0]), shape)?,
            FloatType::F32 => host::shaped(table::<f32>(part, shape[0]), shape)?,
        }),
        (Form::Blocks(kind), _) => in_blocks(kind, used_as, &shape, part),
        (Form::Packed(packed), Use::Experts) => {
            let row_bytes = shape[2] * part.dtype.size_bytes();
            let expert = |index: usize| {
                let matrix = part.rows(index..index + 1);
                let rows = |rows: Range<usize>, take: &mut dyn FnMut(&[u8])| {
                    take(&matrix.bytes[rows.start * row_bytes..rows.end * row_bytes]);
                };
                PackedWeight::pack([shape[1], shape[2]], part.dtype, packed, &rows)
            };
            Weight::Experts((0..shape[0]).map(expert).collect())
        }
        (Form::Packed(packed), _) => {
            let rows = |rows, take: &mut dyn FnMut(&[u8])| take(&part.rows(rows).bytes);
            Weight::Packed(Arc::new(PackedWeight::pack([shape[0], shape[1]], part.dtype, packed, &rows)))
        }
    })
}

/// Returns a matrix, or the matrices of experts, that stays in the blocks of a GGUF file.
fn in_blocks(kind: BlockType, used_as: Use, shape: &[usize], part: &TensorPart<'_>) -> Weight {
    if used_as != Use::Experts {
        let rows = |rows, take: &mut dyn FnMut(&[u8])| take(&part.rows_of_blocks(kind, rows).bytes);
        return Weight::Packed(Arc::new(PackedWeight::of_blocks([shape[0], shape[1]], kind, &rows)));
    }
    let row_bytes = shape[2] / kind.block_len() * kind.block_bytes();
    let expert = |index: usize| {
        let matrix = part.rows_of_blocks(kind, index..index + 1);
        let rows = |rows: Range<usize>, take: &mut dyn FnMut(&[u8])| {
            take(&matrix.bytes[rows.start * row_bytes..rows.end * row_bytes]);
        };
        PackedWeight::of_blocks([shape[1], shape[2]], kind, &rows)
    };
    Weight::Experts((0..shape[0]).map(expert).collect())
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

#[cfg(test)]
mod tests {
    use model::graph::{Partition, Source};
    use model_files::Gguf;

    use super::*;
    use crate::error::CpuError;

    /// Returns a file of `integration-tests/fixtures/gguf`.
    fn checkpoint(name: &str) -> Checkpoint {
        let file = checkpoints::file(&format!("gguf/{name}/model.gguf"));
        Checkpoint::of_gguf(&Gguf::open(&file).unwrap()).unwrap()
    }

    fn spec(name: &str, shape: [usize; 2], partition: Partition, num_ranks: usize) -> WeightSpec {
        WeightSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype: FloatType::Bf16,
            partition,
            num_ranks,
            num_copies: 1,
            source: Source::Whole,
            rounding: None,
        }
    }

    /// Returns the rows of a weight that was loaded, and the bytes that it takes in memory.
    fn loaded(checkpoint: &Checkpoint, spec: &WeightSpec, rank: usize, used_as: Use) -> (Vec<Vec<f32>>, usize) {
        let load = |part: &TensorPart<'_>| load_weight((spec, used_as), part);
        let Weight::Packed(weight) = checkpoint.read::<_, CpuError>(spec, rank, load).unwrap() else {
            panic!("{} is not packed", spec.name)
        };
        let row_of = |output: usize| {
            let mut row = vec![f32::NAN; weight.num_inputs()];
            weight.copy_row(output, &mut row);
            row
        };
        ((0..weight.num_outputs()).map(row_of).collect(), weight.size_bytes())
    }

    /// Returns the rows of the part of a rank, rounded to bf16.
    fn in_bf16(checkpoint: &Checkpoint, spec: &WeightSpec, rank: usize) -> Vec<Vec<f32>> {
        let floats = checkpoint.read::<_, CpuError>(spec, rank, |part| Ok(vector(spec, part))).unwrap();
        floats.chunks(spec.local_shape()[1]).map(<[f32]>::to_vec).collect()
    }

    #[test]
    fn weights_in_blocks_keep_their_size_and_are_those_of_bf16() {
        let large = checkpoint("llama-k");
        let small = checkpoint("llama-q4");
        let tables = checkpoint("llama-iq4");
        let up = "model.layers.0.mlp.up_proj.weight";
        let (embedding, key) = ("model.embed_tokens.weight", "model.layers.0.self_attn.k_proj.weight");
        let cases = [
            (&large, spec(up, [256, 256], Partition::Column, 1), Use::Matrix),
            (&large, spec(embedding, [320, 256], Partition::Vocab, 2), Use::Table),
            (&small, spec(up, [96, 64], Partition::Column, 2), Use::Matrix),
            (&small, spec(up, [96, 64], Partition::Row, 2), Use::Matrix),
            (&tables, spec(up, [256, 256], Partition::Column, 1), Use::Matrix),
            (&tables, spec(key, [128, 256], Partition::Column, 2), Use::Matrix),
        ];
        for (checkpoint, spec, used_as) in cases {
            for rank in 0..spec.num_ranks {
                let (rows, size) = loaded(checkpoint, &spec, rank, used_as);
                assert_eq!(rows, in_bf16(checkpoint, &spec, rank), "{spec:?}, rank {rank}");
                // A panel has 32 rows.
                let [num_rows, num_columns] = [spec.local_shape()[0].next_multiple_of(32), spec.local_shape()[1]];
                assert!(size < num_rows * num_columns * 9 / 8, "{spec:?}: {size} bytes");
                let predicted = |part: &TensorPart<'_>| Ok::<_, CpuError>(loaded_bytes(&spec, used_as, part));
                assert_eq!(checkpoint.read(&spec, rank, predicted).unwrap(), size as u64, "{spec:?}");
            }
        }
    }

    /// A rank that has a part of a block has bf16, as has a weight that is requested in another type.
    #[test]
    fn weights_that_cannot_stay_in_blocks_become_floats() {
        let large = checkpoint("llama-k");
        let up = "model.layers.0.mlp.up_proj.weight";
        let cut = spec(up, [256, 256], Partition::Row, 2);
        let floats = WeightSpec { dtype: FloatType::F32, ..spec(up, [256, 256], Partition::Column, 1) };
        for (spec, bytes) in [(cut, 2), (floats, 4)] {
            for rank in 0..spec.num_ranks {
                let (rows, size) = loaded(&large, &spec, rank, Use::Matrix);
                assert_eq!(rows, in_bf16(&large, &spec, rank), "{spec:?}, rank {rank}");
                assert_eq!(size, spec.local_shape().iter().product::<usize>() * bytes, "{spec:?}");
            }
        }
    }
}
