//! Tensor types and values of StableHLO text.
//!
//! Entry points: [`Type`], which prints as `tensor<2x3xf32>`, and [`Tensor`], the name of a value with its type.

use std::fmt;

use model::graph::DType;
use numbers::FloatType;

/// Sizes and element type of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) dims: Vec<usize>,
    pub(crate) dtype: DType,
}

/// A value of a function: its name in the text and its type, with the scales and factors if it is a quantized weight.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(super) name: String,
    pub(super) ty: Type,
    /// The scale of each output, f32, if this is a quantized weight.
    pub(super) scale: Option<Box<Tensor>>,
    /// The factor of each group of inputs of each output, i8, if this is an int4 weight.
    pub(super) factors: Option<Box<Tensor>>,
}

impl Type {
    /// Returns the type of tensors with the sizes `dims`.
    pub(crate) fn new(dims: impl Into<Vec<usize>>, dtype: DType) -> Self {
        Self { dims: dims.into(), dtype }
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Returns the bytes of the elements on the host.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.len() as u64 * self.dtype.size_bytes()
    }
}

impl Tensor {
    /// Returns the value `name`.
    pub(super) fn new(name: String, ty: Type) -> Self {
        Self { name, ty, scale: None, factors: None }
    }

    /// Returns a weight made of these arrays: its values, then the scales if it is quantized, then the factors if it is
    /// int4. Only linear layers, experts and embeddings accept quantized weights, and embeddings no int4 weights.
    pub(crate) fn weight(arrays: impl IntoIterator<Item = Self>) -> Self {
        let mut arrays = arrays.into_iter();
        let numbers = arrays.next().expect("a weight has numbers");
        Self { scale: arrays.next().map(Box::new), factors: arrays.next().map(Box::new), ..numbers }
    }

    /// Returns the type.
    pub(crate) fn ty(&self) -> &Type {
        &self.ty
    }

    /// Returns the sizes.
    pub(super) fn dims(&self) -> &[usize] {
        &self.ty.dims
    }

    /// Returns the element type.
    pub(super) fn dtype(&self) -> DType {
        self.ty.dtype
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<")?;
        for size in &self.dims {
            write!(f, "{size}x")?;
        }
        write!(f, "{}>", element(self.dtype))
    }
}

/// Returns StableHLO's name of an element type.
fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::Float(FloatType::F32) => "f32",
        DType::Float(FloatType::F16) => "f16",
        DType::Float(FloatType::Bf16) => "bf16",
        DType::F8 => "f8E4M3FN",
        DType::I4 => "i4",
        DType::I8 => "i8",
        DType::I32 => "i32",
        DType::U32 => "ui32",
        DType::Bool => "i1",
    }
}
