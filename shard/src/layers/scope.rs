//! Names of weights: a place in the checkpoint's tree of names.
//!
//! Door: [`WeightScope`]. It also carries what is one for the whole model: the type that weights are loaded in, and the number
//! of ranks that share them.

use crate::graph::{DType, Partition, WeightSpec};

/// A prefix of weight names, such as `model.layers.3.self_attn`.
#[derive(Debug, Clone)]
pub(crate) struct WeightScope {
    prefix: String,
    dtype: DType,
    world_size: usize,
}

impl WeightScope {
    /// The root of a checkpoint whose weights are loaded as `dtype` and shared by `world_size` ranks.
    pub(crate) fn root(dtype: DType, world_size: usize) -> Self {
        Self { prefix: String::new(), dtype, world_size }
    }

    /// The scope `name` inside of this one.
    pub(crate) fn child(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: format!("{}{name}.", self.prefix), ..*self }
    }

    /// Ranks that share the weights.
    pub(crate) fn world_size(&self) -> usize {
        self.world_size
    }

    /// The weight `name` of this scope.
    pub(crate) fn weight(&self, name: &str, shape: &[usize], partition: Partition) -> WeightSpec {
        let Self { prefix, dtype, world_size } = self;
        let name = format!("{prefix}{name}");
        WeightSpec { name, shape: shape.to_vec(), dtype: *dtype, partition, world_size: *world_size, num_copies: 1 }
    }
}
