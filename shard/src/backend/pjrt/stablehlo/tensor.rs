//! Tensor types and values of StableHLO text.
//!
//! Doors: [`Type`], which prints as `tensor<2x3xf32>`, and [`Tensor`], the name of a value with its type.

use std::fmt;

use crate::graph::DType;

/// Sizes and element type of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend::pjrt) struct Type {
    pub(in crate::backend::pjrt) dims: Vec<usize>,
    pub(in crate::backend::pjrt) dtype: DType,
}

/// A value of a function: its name in the text, and its type.
#[derive(Debug, Clone)]
pub(in crate::backend::pjrt) struct Tensor {
    pub(super) name: String,
    pub(super) ty: Type,
    /// Of integers that stand for floats: what each row of the last dimension is multiplied with, f32.
    pub(super) scale: Option<Box<Tensor>>,
}

impl Type {
    /// The type of tensors of these sizes.
    pub(in crate::backend::pjrt) fn new(dims: impl Into<Vec<usize>>, dtype: DType) -> Self {
        Self { dims: dims.into(), dtype }
    }

    /// Number of elements.
    pub(in crate::backend::pjrt) fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Bytes of its elements, one after the other.
    pub(in crate::backend::pjrt) fn size_bytes(&self) -> u64 {
        self.len() as u64 * self.dtype.size_bytes()
    }
}

impl Tensor {
    /// The value of this name.
    pub(super) fn new(name: String, ty: Type) -> Self {
        Self { name, ty, scale: None }
    }

    /// Integers that stand for floats, by a scale for each row of the last dimension. Only linear layers, experts and embeddings take them.
    pub(in crate::backend::pjrt) fn with_scale(self, scale: Self) -> Self {
        Self { scale: Some(Box::new(scale)), ..self }
    }

    /// Its type.
    pub(in crate::backend::pjrt) fn ty(&self) -> &Type {
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
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::Bf16 => "bf16",
        DType::I8 => "i8",
        DType::I32 => "i32",
        DType::U32 => "ui32",
        DType::Bool => "i1",
    }
}
