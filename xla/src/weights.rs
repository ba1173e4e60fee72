//! Loads weights onto the devices.
//!
//! Entry points: [`upload`], and [`arrays`] for the programs that read the weights. The part of a tensor that belongs
//! to a rank is copied to the rank's device: unchanged, or converted if the model is loaded in another type, or
//! quantized (`rounded_rows`). Tensors are copied one at a time, so that the host needs little more memory than the
//! size of the largest tensor.

use std::collections::HashMap;

use backend::{Membership, ModelGraphs, Stays};
use model::graph::{DType, WeightSpec};
use model::weights::{Checkpoint, TensorPart};
use numbers::{FloatType, floats};
use pjrt::{Buffer, Client, Device, ElementType, HostSlice};

use super::rounded_rows::{self, RoundedRows};
use super::stablehlo::Type;
use crate::error::XlaError;

/// The maximum number of floats that are quantized at a time, unless a single row has more.
const FLOATS_AT_ONCE: usize = 1 << 20;

/// A checkpoint, and the shards that read it.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    /// The shards of this host, which load in turns if the host's memory is short.
    pub(super) membership: &'a Membership,
}

/// Copies every weight of `graphs` to `devices`, each with its rank, and returns the arrays of each device by name.
/// `progress` is called for each weight with the number of finished weights and the total.
///
/// # Errors
/// When a weight is missing or malformed, or a device has no memory for it.
pub(super) fn upload(
    graphs: &ModelGraphs,
    source: Source<'_>,
    client: &Client,
    devices: &[(usize, Device)],
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Vec<HashMap<String, Buffer>>, XlaError> {
    let Source { checkpoint, membership } = source;
    let specs = graphs.weights();
    let total = specs.len() as u64;
    let mut buffers: Vec<HashMap<String, Buffer>> =
        devices.iter().map(|_| HashMap::with_capacity(specs.len())).collect();
    let max_at_once = membership.max_loading(&specs, Stays::OnDevice)?;
    for (done, spec) in (0..).zip(specs) {
        progress(done, total);
        let _turn = membership.take_turn(max_at_once, &mut || progress(done, total))?;
        for ((rank, device), buffers) in devices.iter().zip(&mut buffers) {
            let upload = |ty: &Type, bytes: &[u8]| {
                let slice = HostSlice::new(element_type(ty.dtype), &ty.dims, bytes);
                let buffer = slice.and_then(|slice| client.upload(slice, device));
                let failed = |source| XlaError::Program { program: format!("upload of weight {}", spec.name), source };
                buffer.map_err(failed)
            };
            let uploaded = checkpoint.read(spec, *rank, |stored| match spec.rounding {
                None => {
                    let rows = stored.all();
                    let bytes = floats::convert(&rows.bytes, stored.dtype, spec.dtype);
                    Ok(vec![upload(&Type::new(spec.local_shape(), DType::Float(spec.dtype)), &bytes)?])
                }
                Some(_) => {
                    let arrays = arrays(spec).into_iter().zip(rounded_part(stored, spec));
                    arrays.map(|((_, ty), bytes)| upload(&ty, &bytes)).collect::<Result<Vec<_>, XlaError>>()
                }
            })?;
            let names = arrays(spec).into_iter().map(|(name, _)| name);
            buffers.extend(names.zip(uploaded));
        }
    }
    progress(total, total);
    Ok(buffers)
}

/// Returns the name and the type of each array of a rank's part of a weight: the values, then the scales if the weight
/// is quantized, then the factors if it is int4. No other weight has arrays with these names.
pub(super) fn arrays(spec: &WeightSpec) -> Vec<(String, Type)> {
    let numbers = Type::new(spec.local_shape(), DType::Float(spec.dtype));
    let types =
        spec.rounding.map_or_else(|| vec![numbers], |rounding| rounded_rows::types(rounding, &spec.local_shape()));
    let names = ["", ".scale", ".factor"].map(|suffix| format!("{}{suffix}", spec.name));
    names.into_iter().zip(types).collect()
}

/// Quantizes a rank's part of a weight, some rows at a time, and returns the bytes of its arrays.
fn rounded_part(part: &TensorPart<'_>, spec: &WeightSpec) -> Vec<Vec<u8>> {
    let shape = spec.local_shape();
    let row_floats: usize = shape[1..].iter().product();
    let rows_at_once = (FLOATS_AT_ONCE / row_floats.max(1)).max(1);
    let mut rounded = RoundedRows::new(spec);
    let mut values = Vec::new();
    for first in (0..shape[0]).step_by(rows_at_once) {
        let rows = part.rows(first..(first + rows_at_once).min(shape[0]));
        values.clear();
        floats::read(&rows.bytes, part.dtype, &mut values);
        rounded.append(&values);
    }
    rounded.into_arrays()
}

/// Returns PJRT's name of an element type.
pub(super) fn element_type(dtype: DType) -> ElementType {
    match dtype {
        DType::Float(FloatType::F32) => ElementType::F32,
        DType::Float(FloatType::F16) => ElementType::F16,
        DType::Float(FloatType::Bf16) => ElementType::Bf16,
        DType::F8 => ElementType::F8E4M3FN,
        DType::I4 => ElementType::S4,
        DType::I8 => ElementType::S8,
        DType::I32 => ElementType::S32,
        DType::U32 => ElementType::U32,
        DType::Bool => ElementType::Pred,
    }
}
