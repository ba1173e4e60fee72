//! Names of weights: a scope is a node in the checkpoint's tree of names.
//!
//! Entry point: [`WeightScope`]. A scope also has two properties of the whole model, the type in which weights are
//! loaded and the number of ranks that share them. For layers whose weights are not stored as they are used, a scope
//! also has the form in which they are stored.

use numbers::FloatType;

use crate::graph::{Partition, Section, Source, Stride, WeightSpec};

/// A prefix of weight names, such as `model.layers.3.self_attn`.
#[derive(Debug, Clone)]
pub(crate) struct WeightScope {
    prefix: String,
    dtype: FloatType,
    num_ranks: usize,
    section: Option<Section>,
    is_transposed: bool,
    is_gguf: bool,
}

impl WeightScope {
    /// Returns the root of a checkpoint whose weights are loaded as `dtype` and shared by `num_ranks` ranks.
    pub(crate) fn root(dtype: FloatType, num_ranks: usize) -> Self {
        Self { prefix: String::new(), dtype, num_ranks, section: None, is_transposed: false, is_gguf: false }
    }

    /// Returns this scope, but with tensors in the layout of GGUF files: matrices are `[out, in]`, those of all experts
    /// are one tensor, gate and up are two, and fused projections have all queries first, then all keys.
    pub(crate) fn of_gguf(&self) -> Self {
        Self { is_gguf: true, ..self.clone() }
    }

    /// True if the tensors have the layout of GGUF files.
    pub(crate) fn is_gguf(&self) -> bool {
        self.is_gguf
    }

    /// Returns the scope `name` inside this one.
    pub(crate) fn child(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: format!("{}{name}.", self.prefix), ..*self }
    }

    /// Returns this scope, but with weights that are only a section of their tensors.
    pub(crate) fn section(&self, section: Section) -> Self {
        Self { section: Some(section), ..self.clone() }
    }

    /// Returns this scope, but with matrices that are stored as `[in, out]`.
    pub(crate) fn transposed(&self) -> Self {
        Self { is_transposed: true, ..self.clone() }
    }

    /// Returns this scope, but with weights that are loaded as `dtype`.
    pub(crate) fn with_dtype(&self, dtype: FloatType) -> Self {
        Self { dtype, ..self.clone() }
    }

    /// The number of ranks that share the weights.
    pub(crate) fn num_ranks(&self) -> usize {
        self.num_ranks
    }

    /// Returns the weight `name` of this scope.
    pub(crate) fn weight(&self, name: &str, shape: &[usize], partition: Partition) -> WeightSpec {
        let Self { prefix, dtype, num_ranks, section, is_transposed, is_gguf: _ } = self;
        let tensor = format!("{prefix}{name}");
        let weight = section.map_or_else(|| tensor.clone(), |section| format!("{tensor}[{}..]", section.first));
        let source = match section {
            _ if *is_transposed && shape.len() == 2 => Source::Transposed { tensor, section: *section },
            Some(section) => Source::Section { tensor, section: *section },
            None => Source::Whole,
        };
        let (shape, dtype, num_ranks) = (shape.to_vec(), *dtype, *num_ranks);
        WeightSpec { name: weight, shape, dtype, partition, num_ranks, num_copies: 1, source, rounding: None }
    }

    /// Returns one weight `[num, shape..]`, the stack of the weights `name` of the child scopes `0`, `1` … `num - 1`.
    pub(crate) fn stack(&self, name: &str, num: usize, shape: &[usize], partition: Partition) -> WeightSpec {
        let Self { prefix, dtype, num_ranks, .. } = self;
        let tensors = (0..num).map(|index| format!("{prefix}{index}.{name}")).collect();
        WeightSpec {
            name: format!("{prefix}*.{name}"),
            shape: [&[num], shape].concat(),
            dtype: *dtype,
            partition,
            num_ranks: *num_ranks,
            num_copies: 1,
            source: Source::Stack(tensors),
            rounding: None,
        }
    }

    /// Returns one weight `[heads, out, in]`: rows of the matrix of each head in the tensor `weight` of this scope,
    /// `[heads * group_rows, columns]`, as `section` describes them, transposed if `is_transposed`.
    pub(crate) fn heads(&self, shape: [usize; 3], section: Section, is_transposed: bool) -> WeightSpec {
        let whole = self.weight("weight", &shape, Partition::Column);
        let name = format!("{}[{}..] of heads", whole.name, section.first);
        WeightSpec { source: Source::Heads { tensor: whole.name, section, is_transposed }, name, ..whole }
    }

    /// Returns one weight `shape`, `[experts, out, in]` or `[experts, out]`: some columns of the tensor `name` of this
    /// scope, `[experts, in, ..]` or `[experts, ..]`.
    pub(crate) fn columns(&self, name: &str, shape: &[usize], columns: Stride) -> WeightSpec {
        let whole = self.weight(name, shape, Partition::Column);
        let Stride { first, step, parts } = columns;
        let weight = if parts == 1 { whole.name.clone() } else { format!("{}[{first}::{step}]", whole.name) };
        WeightSpec { source: Source::Columns { tensor: whole.name, columns }, name: weight, ..whole }
    }
}
