//! Types and values of a kernel.
//!
//! Entry points: [`Type`], which prints as MLIR writes it, and [`Value`], the name of a value with its type.

use std::fmt;

/// The type of an element of an array, or of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    I1,
    I32,
    /// An index of an array in memory.
    Index,
    Bf16,
    F32,
    /// A counter of the bytes that asynchronous copies have written.
    Semaphore,
}

/// The memory that holds an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// The scalar memory of the core, for numbers that are read one by one.
    Smem,
    /// The vector memory of the core.
    Vmem,
    /// The memory of the device.
    Hbm,
    /// The memory that XLA chooses for an operand.
    Any,
    /// The memory of semaphores.
    Semaphores,
}

/// The type of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Type {
    Scalar(Element),
    Vector { dims: Vec<usize>, element: Element },
    Array { dims: Vec<usize>, element: Element, space: Space },
}

/// A value of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) name: String,
    pub(crate) ty: Type,
}

impl Element {
    /// Returns the bytes of one element in memory.
    pub(crate) fn size_bytes(self) -> usize {
        match self {
            Self::I1 => 1,
            Self::Bf16 => 2,
            Self::I32 | Self::Index | Self::F32 | Self::Semaphore => 4,
        }
    }
}

impl Type {
    /// Returns the type of vectors.
    pub(crate) fn vector(dims: impl Into<Vec<usize>>, element: Element) -> Self {
        Self::Vector { dims: dims.into(), element }
    }

    /// Returns the type of arrays in `space`.
    pub(crate) fn array(dims: impl Into<Vec<usize>>, element: Element, space: Space) -> Self {
        Self::Array { dims: dims.into(), element, space }
    }

    /// Returns the sizes; none for a scalar.
    pub(crate) fn dims(&self) -> &[usize] {
        match self {
            Self::Scalar(_) => &[],
            Self::Vector { dims, element: _ } | Self::Array { dims, element: _, space: _ } => dims,
        }
    }

    /// Returns the type of an element.
    pub(crate) fn element(&self) -> Element {
        match self {
            Self::Scalar(element) | Self::Vector { dims: _, element } | Self::Array { dims: _, element, space: _ } => {
                *element
            }
        }
    }

    /// Returns the memory of an array.
    pub(crate) fn space(&self) -> Option<Space> {
        match self {
            Self::Scalar(_) | Self::Vector { dims: _, element: _ } => None,
            Self::Array { dims: _, element: _, space } => Some(*space),
        }
    }

    /// Returns the bytes of the elements.
    pub(crate) fn size_bytes(&self) -> usize {
        self.dims().iter().product::<usize>() * self.element().size_bytes()
    }

    /// Returns the same type with other sizes.
    pub(crate) fn with_dims(&self, dims: impl Into<Vec<usize>>) -> Self {
        let element = self.element();
        match self {
            Self::Scalar(_) | Self::Vector { dims: _, element: _ } => Self::vector(dims, element),
            Self::Array { dims: _, element: _, space } => Self::array(dims, element, *space),
        }
    }

    /// Returns the same type with other elements.
    pub(crate) fn with_element(&self, element: Element) -> Self {
        match self {
            Self::Scalar(_) => Self::Scalar(element),
            Self::Vector { dims, element: _ } => Self::vector(dims.clone(), element),
            Self::Array { dims, element: _, space } => Self::array(dims.clone(), element, *space),
        }
    }
}

impl Value {
    /// Returns the sizes; none for a scalar.
    pub(crate) fn dims(&self) -> &[usize] {
        self.ty.dims()
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::I1 => "i1",
            Self::I32 => "i32",
            Self::Index => "index",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::Semaphore => "!tpu.dma_semaphore",
        })
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Smem => "smem",
            Self::Vmem => "vmem",
            Self::Hbm => "hbm",
            Self::Any => "any",
            Self::Semaphores => "semaphore_mem",
        })
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape: String = self.dims().iter().map(|size| format!("{size}x")).collect();
        match self {
            Self::Scalar(element) => write!(f, "{element}"),
            Self::Vector { dims: _, element } => write!(f, "vector<{shape}{element}>"),
            Self::Array { dims: _, element, space } => {
                write!(f, "memref<{shape}{element}, #tpu.memory_space<{space}>>")
            }
        }
    }
}
