//! Weights on the device.
//!
//! Doors: [`upload`]; [`array_names`], [`array_type`] and [`scale_type`] for the programs that read them. Each rank's part of a
//! tensor goes to its device as it lies in the file, or converted if the model is loaded in another type, or as integers with
//! their scales; one at a time, so that the host needs little more than the largest.

use std::borrow::Cow;
use std::collections::HashMap;

use ::pjrt::{Buffer, Client, Device, ElementType, HostSlice};
use half::{bf16, f16};
use kernels::floats::{self, FloatType};

use super::stablehlo::Type;
use crate::backend::{BackendError, Membership, ModelGraphs, Stays};
use crate::graph::{DType, Integers, WeightSpec};
use crate::weights::{Checkpoint, TensorPart};

/// Floats that become integers at a time, at least a row.
const FLOATS_AT_ONCE: usize = 1 << 20;
/// A row whose largest magnitude is less becomes zeros, as in the programs.
const LEAST_MAGNITUDE: f32 = 1e-30;

/// Copies every weight of `graphs` to `devices`, whose ranks begin with `first_rank`: for each, its parts by name. Shards
/// of one host take turns where its memory is short. `progress` hears of each weight: (done, total).
///
/// # Errors
/// When a weight is missing or malformed, or a device has no memory for it.
pub(super) fn upload(
    graphs: &ModelGraphs,
    (checkpoint, first_rank, membership): (&Checkpoint, usize, &Membership),
    (client, devices): (&Client, &[Device]),
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Vec<HashMap<String, Buffer>>, BackendError> {
    let specs = graphs.weights();
    let total = specs.len() as u64;
    let mut buffers: Vec<HashMap<String, Buffer>> =
        devices.iter().map(|_| HashMap::with_capacity(specs.len())).collect();
    let max_at_once = membership.max_loading(&specs, Stays::OnDevice)?;
    for (done, spec) in (0..).zip(specs) {
        progress(done, total);
        let _turn = membership.take_turn(max_at_once, &mut || progress(done, total))?;
        for ((rank, device), buffers) in (first_rank..).zip(devices).zip(&mut buffers) {
            let upload = |ty: &Type, bytes: &[u8]| {
                let slice = HostSlice::new(element_type(ty.dtype), &ty.dims, bytes);
                let buffer = slice.and_then(|slice| client.upload(slice, device));
                let failed = |source| BackendError::Program { program: format!("upload {}", spec.name), source };
                buffer.map_err(failed)
            };
            let arrays = checkpoint.read(spec, rank, |stored| match scale_type(spec) {
                None => {
                    let rows = stored.all();
                    let bytes = convert(&rows.bytes, stored.dtype, spec.dtype);
                    Ok::<_, BackendError>(vec![upload(&array_type(spec), &bytes)?])
                }
                Some(scale_type) => {
                    let (integers, scales) = integers_of_part(stored, spec);
                    Ok(vec![upload(&array_type(spec), &integers)?, upload(&scale_type, &scales)?])
                }
            })?;
            buffers.extend(array_names(spec).zip(arrays));
        }
    }
    progress(total, total);
    Ok(buffers)
}

/// Names of the arrays that a device has of a weight: its own, and that of its scales if it has some.
pub(super) fn array_names(spec: &WeightSpec) -> impl Iterator<Item = String> + use<> {
    let scale = spec.integers.map(|_| spec.scale_name());
    std::iter::once(spec.name.clone()).chain(scale)
}

/// Type of a device's part of a weight.
pub(super) fn array_type(spec: &WeightSpec) -> Type {
    let dtype = match spec.integers {
        None => spec.dtype,
        Some(Integers::Int8) => DType::I8,
        Some(Integers::Int4) => unreachable!("the engine refuses integers of four bits here"),
    };
    Type::new(spec.local_shape(), dtype)
}

/// Type of the scales of that, if it has some.
pub(super) fn scale_type(spec: &WeightSpec) -> Option<Type> {
    spec.scale_shape().map(|shape| Type::new(shape, DType::F32))
}

/// A rank's part of a weight as integers, and the bytes of their scales: some rows at a time.
fn integers_of_part(part: &TensorPart<'_>, spec: &WeightSpec) -> (Vec<u8>, Vec<u8>) {
    let shape = spec.local_shape();
    let row_floats: usize = shape[1..].iter().product();
    let row_len = shape.last().copied().unwrap_or(1);
    let rows_at_once = (FLOATS_AT_ONCE / row_floats.max(1)).max(1);
    let mut integers = Vec::with_capacity(shape[0] * row_floats);
    let mut scales = Vec::with_capacity(shape[0] * row_floats / row_len * size_of::<f32>());
    let mut values = Vec::new();
    for first in (0..shape[0]).step_by(rows_at_once) {
        let rows = part.rows(first..(first + rows_at_once).min(shape[0]));
        values.clear();
        floats::read_f32(&rows.bytes, float_type(part.dtype), &mut values);
        for row in values.chunks(row_len) {
            scales.extend(append_int8(row, &mut integers).to_le_bytes());
        }
    }
    (integers, scales)
}

/// Appends a row as integers from -127 to 127, and answers what they are multiplied with. As `kernels/src/integers.rs` does it, so
/// that all devices have the same.
pub(super) fn append_int8(row: &[f32], integers: &mut Vec<u8>) -> f32 {
    let largest = row.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let (scale, inverse) = if largest < LEAST_MAGNITUDE { (0.0, 0.0) } else { (largest / 127.0, 127.0 / largest) };
    integers.extend(row.iter().map(|value| ((value * inverse).round_ties_even() as i8).cast_unsigned()));
    scale
}

/// The kernels' name of a type of floats.
fn float_type(dtype: DType) -> FloatType {
    match dtype {
        DType::F16 => FloatType::F16,
        DType::Bf16 => FloatType::Bf16,
        DType::F32 => FloatType::F32,
        DType::I8 | DType::I32 | DType::U32 | DType::Bool => unreachable!("checkpoints are read as floats only"),
    }
}

/// PJRT's name of an element type.
pub(super) fn element_type(dtype: DType) -> ElementType {
    match dtype {
        DType::F32 => ElementType::F32,
        DType::F16 => ElementType::F16,
        DType::Bf16 => ElementType::Bf16,
        DType::I8 => ElementType::S8,
        DType::I32 => ElementType::S32,
        DType::U32 => ElementType::U32,
        DType::Bool => ElementType::Pred,
    }
}

/// Little-endian floats in another type, rounded to the nearest.
fn convert(bytes: &[u8], from: DType, to: DType) -> Cow<'_, [u8]> {
    if from == to {
        return Cow::Borrowed(bytes);
    }
    let pair = |bytes: &[u8]| [bytes[0], bytes[1]];
    let read = |bytes: &[u8]| match from {
        DType::F16 => f16::from_le_bytes(pair(bytes)).to_f32(),
        DType::Bf16 => bf16::from_le_bytes(pair(bytes)).to_f32(),
        DType::F32 | DType::I8 | DType::I32 | DType::U32 | DType::Bool => {
            f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        }
    };
    let values = bytes.chunks_exact(from.size_bytes() as usize).map(read);
    Cow::Owned(match to {
        DType::F16 => values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
        DType::Bf16 => values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
        DType::F32 | DType::I8 | DType::I32 | DType::U32 | DType::Bool => values.flat_map(f32::to_le_bytes).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_integers_with_a_scale() {
        let mut integers = Vec::new();
        assert_eq!(append_int8(&[0.0, -127.0, 2.5, 3.5, 126.4], &mut integers), 1.0);
        assert_eq!(append_int8(&[1e-31, 0.0], &mut integers), 0.0);
        assert_eq!(append_int8(&[-0.5, 0.25], &mut integers), 0.5 / 127.0);
        let integers: Vec<i8> = integers.into_iter().map(u8::cast_signed).collect();
        assert_eq!(integers, [0, -127, 2, 4, 126, 0, 0, -127, 64]);
    }

    #[test]
    fn floats_are_converted_to_the_nearest() {
        let values = [1.0_f32, -2.5, 0.123_456_7];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let short = convert(&bytes, DType::F32, DType::Bf16);
        let expected: Vec<u8> = values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect();
        assert_eq!(*short, expected);
        let back = convert(&short, DType::Bf16, DType::F16);
        let expected: Vec<u8> =
            values.iter().flat_map(|value| f16::from_f32(bf16::from_f32(*value).to_f32()).to_le_bytes()).collect();
        assert_eq!(*back, expected);
        assert!(matches!(convert(&bytes, DType::F32, DType::F32), Cow::Borrowed(_)));
    }
}
