//! The size of an array in bytes, and the memory that contains it.
//!
//! Entry point: [`arrays`].

use super::proto;

/// `PrimitiveType` of a tuple.
const TUPLE: i32 = 13;
/// The number of the device's memory, HBM on a TPU.
const MAIN_MEMORY: i64 = 0;

/// One array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Array {
    /// Size with the padding of its tiles.
    pub(super) bytes: u64,
    /// True if the array is in HBM, false if it is in another memory, such as one on the chip or the host's.
    pub(super) in_main_memory: bool,
}

/// Returns the arrays of `shape`: one array, or those of a tuple, flattened and in order.
pub(super) fn arrays(shape: &proto::Shape) -> Vec<Array> {
    if is_tuple(shape) { shape.tuple_shapes.iter().flat_map(arrays).collect() } else { vec![array(shape)] }
}

/// True for a tuple, whose own bytes are only pointers.
pub(super) fn is_tuple(shape: &proto::Shape) -> bool {
    shape.element_type == TUPLE || !shape.tuple_shapes.is_empty()
}

fn array(shape: &proto::Shape) -> Array {
    let no_layout = proto::Layout::default();
    let layout = shape.layout.as_ref().unwrap_or(&no_layout);
    let elements = padded_dims(shape, layout).into_iter().fold(1, u64::saturating_mul);
    let bits = match layout.element_size_in_bits {
        0 => bits_of(shape.element_type),
        bits => size(bits),
    };
    Array { bytes: elements.saturating_mul(bits).div_ceil(8), in_main_memory: layout.memory_space == MAIN_MEMORY }
}

/// Returns the padded sizes of the dimensions, minor to major. The first tile pads the most minor dimensions; the other
/// tiles subdivide the first and pad nothing.
fn padded_dims(shape: &proto::Shape, layout: &proto::Layout) -> Vec<u64> {
    let order = &layout.minor_to_major;
    let of = |dim: &i64| usize::try_from(*dim).ok().and_then(|dim| shape.dimensions.get(dim)).copied().unwrap_or(1);
    let mut dims: Vec<u64> = match order.len() == shape.dimensions.len() {
        true => order.iter().map(of).map(size).collect(),
        false => shape.dimensions.iter().rev().copied().map(size).collect(),
    };
    if let Some(tile) = layout.tiles.first() {
        for (dim, tile) in dims.iter_mut().zip(tile.dimensions.iter().rev()) {
            // A negative tile size joins dimensions and pads nothing.
            *dim = dim.checked_next_multiple_of(size(*tile).max(1)).unwrap_or(*dim);
        }
    }
    dims
}

fn size(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Returns the bits of an element of a `PrimitiveType` that the layout does not pack.
fn bits_of(element_type: i32) -> u64 {
    match element_type {
        // s16, u16, f16, bf16.
        3 | 7 | 10 | 16 => 16,
        // s32, u32, f32.
        4 | 8 | 11 => 32,
        // s64, u64, f64, c64.
        5 | 9 | 12 | 15 => 64,
        // c128.
        18 => 128,
        // Types without bytes: invalid, tuple, opaque, token.
        0 | TUPLE | 14 | 17 => 0,
        // pred, s8, u8, all f8 types, and shorter types.
        _ => 8,
    }
}
