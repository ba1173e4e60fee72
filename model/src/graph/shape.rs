//! Shapes and element types of a graph's values, which are known when the graph is built.
//!
//! A dimension that changes from step to step has a name instead of a number: a backend uses its actual size, or pads
//! it to the size of a bucket. Builders return a [`GraphError`] if shapes or types do not fit each other.

use std::fmt;

use numbers::{FloatType, Rounding};

/// The size of one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A size that the model fixes.
    Fixed(usize),
    /// The tokens of a step: those of all rows, one row after the other.
    Tokens,
    /// The rows of logits: one for each row of a step that samples, or for each prompt token whose logprob is
    /// requested.
    Rows,
    /// The tokens reported by [`Op::TopTokens`](super::Op::TopTokens): as many as the row requests, and some that tie.
    TopTokens,
}

/// The element type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// Floats.
    Float(FloatType),
    /// Quantized values: int8, int4 or fp8.
    Rounded(Rounding),
    I32,
    U32,
    Bool,
}

/// The dimensions of a value in row-major order, so the last one varies fastest. A scalar has none.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Shape(Vec<Dim>);

/// The error of an operation whose operands or parameters do not fit it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{op} of {operands}: {expected}")]
pub struct GraphError {
    /// The name of the operation.
    pub(crate) op: &'static str,
    /// The shapes and types of the operands.
    pub(crate) operands: String,
    /// The operands that the operation expects.
    pub(crate) expected: String,
}

impl Shape {
    /// A shape with these dimensions.
    pub fn new(dims: impl Into<Vec<Dim>>) -> Self {
        Self(dims.into())
    }

    /// A shape whose dimensions the model fixes.
    pub fn fixed(sizes: &[usize]) -> Self {
        Self(sizes.iter().copied().map(Dim::Fixed).collect())
    }

    /// The dimensions.
    pub fn dims(&self) -> &[Dim] {
        &self.0
    }

    /// The size of the last dimension, if the model fixes it.
    pub fn last_size(&self) -> Option<usize> {
        match self.0.last() {
            Some(Dim::Fixed(size)) => Some(*size),
            Some(Dim::Tokens | Dim::Rows | Dim::TopTokens) | None => None,
        }
    }

    /// Returns this shape with another last dimension.
    pub(crate) fn with_last(&self, dim: Dim) -> Self {
        let mut dims = self.0.clone();
        dims.pop();
        dims.push(dim);
        Self(dims)
    }

    /// Returns the product of the fixed dimensions, which is the number of elements per token or row.
    pub fn fixed_len(&self) -> usize {
        let size = |dim: &Dim| match dim {
            Dim::Fixed(size) => *size,
            Dim::Tokens | Dim::Rows | Dim::TopTokens => 1,
        };
        self.0.iter().map(size).product()
    }
}

impl DType {
    /// Single-precision floats.
    pub const F32: Self = Self::Float(FloatType::F32);
    /// Signed integers of 8 bits.
    pub const I8: Self = Self::Rounded(Rounding::Int8);
    /// Signed integers of 4 bits.
    pub const I4: Self = Self::Rounded(Rounding::Int4);
    /// Floats of 8 bits: E4M3 without infinities.
    pub const F8: Self = Self::Rounded(Rounding::Fp8);

    /// True for f32, f16 and bf16, the types that weights in a graph can have.
    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::Float(_))
    }

    /// Bytes of one element on the host. Devices may store two elements of [`I4`](Self::I4) in a byte.
    pub fn size_bytes(self) -> u64 {
        match self {
            Self::Float(float) => float.size_bytes() as u64,
            Self::I32 | Self::U32 => 4,
            Self::Rounded(_) | Self::Bool => 1,
        }
    }

    /// The name of the type in messages and printed graphs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float(float) => float.name(),
            Self::Rounded(Rounding::Fp8) => "float8_e4m3fn",
            Self::Rounded(Rounding::Int4) => "int4",
            Self::Rounded(Rounding::Int8) => "int8",
            Self::I32 => "int32",
            Self::U32 => "uint32",
            Self::Bool => "bool",
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size}"),
            Self::Tokens => f.write_str("tokens"),
            Self::Rows => f.write_str("rows"),
            Self::TopTokens => f.write_str("top_tokens"),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.0.iter().map(Dim::to_string).collect();
        write!(f, "[{}]", dims.join(", "))
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
