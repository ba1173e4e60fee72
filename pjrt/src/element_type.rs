//! Element types and shapes of arrays.

use std::fmt;

use crate::error::Error;

/// The type of an array's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// A boolean: one byte on the host, 0 or 1.
    Pred,
    /// A signed integer of 4 bits. On the host, an element takes one byte, whose lower half is the value. In downloads,
    /// the upper half may be zero or repeat the sign bit.
    S4,
    /// A signed integer of 8 bits.
    S8,
    /// A signed integer of 32 bits.
    S32,
    /// An unsigned integer of 8 bits.
    U8,
    /// An unsigned integer of 32 bits.
    U32,
    /// A float of 8 bits, with 4 exponent bits, 3 mantissa bits and no infinities.
    F8E4M3FN,
    /// IEEE half precision.
    F16,
    /// The upper half of an IEEE single-precision float.
    Bf16,
    /// IEEE single precision.
    F32,
}

/// Each type with its number in the PJRT header, its name in StableHLO, and the bytes of an element on the host.
const ROWS: [(ElementType, i32, &str, usize); 10] = [
    (ElementType::Pred, 1, "i1", 1),
    (ElementType::S4, 21, "i4", 1),
    (ElementType::S8, 2, "i8", 1),
    (ElementType::S32, 4, "i32", 4),
    (ElementType::U8, 6, "ui8", 1),
    (ElementType::U32, 8, "ui32", 4),
    (ElementType::F8E4M3FN, 17, "f8E4M3FN", 1),
    (ElementType::F16, 10, "f16", 2),
    (ElementType::Bf16, 13, "bf16", 2),
    (ElementType::F32, 11, "f32", 4),
];

impl ElementType {
    /// Returns all element types.
    pub fn all() -> impl Iterator<Item = Self> {
        ROWS.iter().map(|row| row.0)
    }

    /// Returns the type with this number in the PJRT header.
    pub(crate) fn from_number(number: i32) -> Result<Self, Error> {
        ROWS.iter().find(|row| row.1 == number).map(|row| row.0).ok_or(Error::ElementType(number))
    }

    /// The number of the type in the PJRT header.
    pub(crate) fn number(self) -> i32 {
        ROWS[self as usize].1
    }

    /// The size of one element in host memory in bytes. A 4-bit integer takes one byte there.
    pub fn host_bytes(self) -> usize {
        ROWS[self as usize].3
    }
}

impl fmt::Display for ElementType {
    /// Writes the name in StableHLO, such as `bf16` or `ui8`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ROWS[*self as usize].2)
    }
}

/// The element type and the dimensions of an array.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The type of the elements.
    pub element_type: ElementType,
    /// The length of each dimension, outermost first. A scalar has none.
    pub dims: Vec<usize>,
}

impl Shape {
    /// The size of a dense array of this shape in host memory in bytes; `None` on overflow.
    pub fn host_bytes(&self) -> Option<usize> {
        host_bytes(self.element_type, &self.dims)
    }
}

impl fmt::Display for Shape {
    /// Writes the shape as StableHLO does: `2x3xbf16`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dims.iter().try_for_each(|dim| write!(f, "{dim}x"))?;
        self.element_type.fmt(f)
    }
}

/// Returns the size of a dense array in host memory in bytes; `None` on overflow.
pub(crate) fn host_bytes(element_type: ElementType, dims: &[usize]) -> Option<usize> {
    dims.iter().try_fold(element_type.host_bytes(), |bytes, dim| bytes.checked_mul(*dim))
}

/// Converts dimensions to the integers of the C API.
pub(crate) fn dims_to_c(dims: &[usize]) -> Result<Vec<i64>, Error> {
    let too_long = |_| Error::Arguments(format!("dimensions {dims:?} are too large: each must fit into 63 bits"));
    dims.iter().map(|dim| i64::try_from(*dim).map_err(too_long)).collect()
}

/// Converts dimensions from the integers of the C API. `function` names the C function that returned them.
pub(crate) fn dims_from_c(dims: &[i64], function: &'static str) -> Result<Vec<usize>, Error> {
    let negative = |_| Error::Contract { function, what: "a negative dimension" };
    dims.iter().map(|dim| usize::try_from(*dim).map_err(negative)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_the_types() {
        for (index, row) in ROWS.iter().enumerate() {
            assert_eq!(row.0 as usize, index);
            assert_eq!(ElementType::from_number(row.1).expect("listed"), row.0);
            assert_eq!(row.0.number(), row.1);
        }
        assert!(matches!(ElementType::from_number(5), Err(Error::ElementType(5))));
    }

    #[test]
    fn shapes_know_their_size_and_name() {
        let shape = Shape { element_type: ElementType::Bf16, dims: vec![2, 3] };
        assert_eq!(shape.host_bytes(), Some(12));
        assert_eq!(shape.to_string(), "2x3xbf16");
        assert_eq!(Shape { element_type: ElementType::Pred, dims: Vec::new() }.host_bytes(), Some(1));
        assert_eq!(Shape { element_type: ElementType::F32, dims: vec![usize::MAX] }.host_bytes(), None);
        assert_eq!(Shape { element_type: ElementType::F32, dims: vec![0, usize::MAX] }.host_bytes(), Some(0));
    }
}
