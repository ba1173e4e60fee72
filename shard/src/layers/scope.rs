//! Names of weights: a place in the checkpoint's tree of names.
//!
//! Door: [`WeightScope`]. It also carries the type that weights are loaded in, which is one for the whole model.

use crate::graph::{DType, Partition, WeightSpec};

/// A prefix of weight names, such as `model.layers.3.self_attn`.
#[derive(Debug, Clone)]
pub(crate) struct WeightScope {
    prefix: String,
    dtype: DType,
}

impl WeightScope {
    /// The root of a checkpoint whose weights are loaded as `dtype`.
    pub(crate) fn root(dtype: DType) -> Self {
        Self { prefix: String::new(), dtype }
    }

    /// The scope `name` inside of this one.
    pub(crate) fn child(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: format!("{}{name}.", self.prefix), dtype: self.dtype }
    }

    /// The weight `name` of this scope.
    pub(crate) fn weight(&self, name: &str, shape: &[usize], partition: Partition) -> WeightSpec {
        WeightSpec { name: format!("{}{name}", self.prefix), shape: shape.to_vec(), dtype: self.dtype, partition }
    }
}
