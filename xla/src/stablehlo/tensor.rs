//! Tensor types and values of StableHLO text.
//!
//! Doors: [`Type`], which prints as `tensor<2x3xf32>`, and [`Tensor`], the name of a value with its type.

use std::fmt;

use model::graph::DType;
use numbers::FloatType;

/// Sizes and element type of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) dims: Vec<usize>,
    pub(crate) dtype: DType,
}

/// A value of a function: its name in the text, and its type.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(super) name: String,
    pub(super) ty: Type,
    /// Of integers that stand for floats: what those of each output are multiplied with, f32.
    pub(super) scale: Option<Box<Tensor>>,
    /// Of those of four bits: what each group of them is multiplied with, i8.
    pub(super) factors: Option<Box<Tensor>>,
}

impl Type {
    /// The type of tensors of these sizes.
    pub(crate) fn new(dims: impl Into<Vec<usize>>, dtype: DType) -> Self {
        Self { dims: dims.into(), dtype }
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Bytes of its elements, one after the other.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.len() as u64 * self.dtype.size_bytes()
    }
}

impl Tensor {
    /// The value of this name.
    pub(super) fn new(name: String, ty: Type) -> Self {
        Self { name, ty, scale: None, factors: None }
    }

    /// A weight of some arrays: its numbers, the scales that make floats of them if they are integers, and factors if these have four bits.
    /// Only linear layers and experts take such weights, embeddings those without factors.
    pub(crate) fn weight(arrays: impl IntoIterator<Item = Self>) -> Self {
        let mut arrays = arrays.into_iter();
        let numbers = arrays.next().expect("a weight has numbers");
        Self { scale: arrays.next().map(Box::new), factors: arrays.next().map(Box::new), ..numbers }
    }

    /// Its type.
    pub(crate) fn ty(&self) -> &Type {
        &self.ty
    }

    /// Its sizes.
    pub(super) fn dims(&self) -> &[usize] {
        &self.ty.dims
    }

    /// Its element type.
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

/// StableHLO's name of an element type.
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
