//! Normalisations: by the root mean square (Zhang and Sennrich, 2019), and by mean and variance (Ba et al., 2016).
//!
//! Entry points: [`Norm`], over one vector or head, and [`HeadsNorm`], over all heads together. A rank has the whole
//! weight of a norm, or the part for its own heads.

use super::WeightScope;
use crate::graph::{Binary, Graph, GraphError, Partition, Unary, Value, WeightSpec};

/// The kind of a norm and its constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NormForm {
    pub(crate) kind: NormKind,
    /// The number that is added to the mean of squares, or to the variance.
    pub(crate) eps: f32,
    /// The number that is added to the weight: 1 in models whose checkpoints store the weight minus one, otherwise 0.
    pub(crate) offset: f32,
    /// True if the checkpoint has a weight. A norm without weight has no bias either.
    pub(crate) has_weight: bool,
}

/// The formula of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NormKind {
    /// `x / sqrt(mean(x²) + eps) · (offset + weight)`; with an offset of 0, as `LlamaRMSNorm`.
    RootMeanSquare,
    /// `(x - mean(x)) / sqrt(variance(x) + eps) · (offset + weight) + bias`, with or without bias; with an offset of 0,
    /// as `torch.nn.LayerNorm`.
    Layer { has_bias: bool },
}

/// A normalisation over the last dimension.
#[derive(Debug, Clone)]
pub(crate) struct Norm {
    form: NormForm,
    weight: WeightSpec,
    bias: Option<WeightSpec>,
}

/// A root-mean-square norm over all heads of a token. Ranks split the heads, so they sum their squares.
#[derive(Debug, Clone)]
pub(crate) struct HeadsNorm {
    norm: Norm,
}

impl NormForm {
    /// Returns the form of `LlamaRMSNorm`.
    pub(crate) fn rms(eps: f64) -> Self {
        Self { kind: NormKind::RootMeanSquare, eps: eps as f32, offset: 0.0, has_weight: true }
    }

    /// Returns the form of `torch.nn.LayerNorm` with bias.
    pub(crate) fn layer(eps: f64) -> Self {
        Self { kind: NormKind::Layer { has_bias: true }, eps: eps as f32, offset: 0.0, has_weight: true }
    }
}

impl Norm {
    /// Returns a norm with the tensors `weight` and, if it has a bias, `bias` of `scope`, each with `size` elements.
    pub(crate) fn new(scope: &WeightScope, size: usize, form: NormForm) -> Self {
        Self::with_shape(scope, &[size], form, Partition::Replicated)
    }

    /// As [`Norm::new`] with weights `[num_heads, head_dim]`. Each rank has the weights of its own heads.
    pub(crate) fn each_head(scope: &WeightScope, [num_heads, head_dim]: [usize; 2], form: NormForm) -> Self {
        let num_copies = (scope.num_ranks() / num_heads).max(1);
        let Self { form, weight, bias } = Self::with_shape(scope, &[num_heads, head_dim], form, Partition::Column);
        let copied = |spec: WeightSpec| WeightSpec { num_copies, ..spec };
        Self { form, weight: copied(weight), bias: bias.map(copied) }
    }

    /// As [`Norm::each_head`], without bias, with a tensor `norms.0.weight`, `norms.1.weight` … for each head.
    pub(crate) fn stacked(scope: &WeightScope, [num_heads, head_dim]: [usize; 2], form: NormForm) -> Self {
        let num_copies = (scope.num_ranks() / num_heads).max(1);
        let weight = scope.child("norms").stack("weight", num_heads, &[head_dim], Partition::Column);
        Self { form, weight: WeightSpec { num_copies, ..weight }, bias: None }
    }

    fn with_shape(scope: &WeightScope, shape: &[usize], form: NormForm, partition: Partition) -> Self {
        let has_bias = form.kind == NormKind::Layer { has_bias: true };
        Self {
            form,
            weight: scope.weight("weight", shape, partition),
            bias: has_bias.then(|| scope.weight("bias", shape, partition)),
        }
    }

    /// x `[.., size]` → the same shape.
    pub(crate) fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let NormForm { kind, eps, offset, has_weight } = self.form;
        let weight = has_weight.then(|| graph.weight(&self.weight)); // [size]
        match kind {
            NormKind::RootMeanSquare => graph.rms_norm(x, weight, eps, offset), // as x
            NormKind::Layer { has_bias: _ } => {
                let bias = self.bias.as_ref().map(|bias| graph.weight(bias)); // [size]
                let parameters: Vec<Value> = weight.into_iter().chain(bias).collect();
                graph.layer_norm(x, &parameters, eps, offset) // as x
            }
        }
    }
}

impl HeadsNorm {
    /// Returns a norm over `num_heads` heads of size `head_dim`, with the tensor `weight` of `scope`.
    pub(crate) fn new(scope: &WeightScope, [num_heads, head_dim]: [usize; 2], eps: f32) -> Self {
        let num_copies = (scope.num_ranks() / num_heads).max(1);
        let form = NormForm { kind: NormKind::RootMeanSquare, eps, offset: 0.0, has_weight: true };
        let Norm { form, weight, bias } = Norm::with_shape(scope, &[num_heads * head_dim], form, Partition::Column);
        Self { norm: Norm { form, weight: WeightSpec { num_copies, ..weight }, bias } }
    }

    /// x `[tokens, this rank's heads * head_dim]` → the same shape.
    pub(crate) fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let spec = &self.norm.weight;
        if spec.num_ranks == 1 {
            return self.norm.apply(graph, x);
        }
        let weight = graph.weight(spec); // [heads * head_dim]
        let squares = graph.binary(Binary::Multiply, x, x)?; // [tokens, heads * head_dim]
        let part = graph.sum_columns(squares)?; // [tokens]
        let sum = graph.all_reduce(part)?; // [tokens]
        // A head of which several ranks have a copy is in the sum once for each copy.
        let mean = graph.scale(sum, 1.0 / (spec.shape[0] * spec.num_copies) as f32)?; // [tokens]
        let eps = graph.constant(self.norm.form.eps); // []
        let mean = graph.binary(Binary::Add, mean, eps)?; // [tokens]
        let factor = graph.unary(Unary::ReciprocalRoot, mean)?; // [tokens]
        let normed = graph.binary(Binary::Multiply, x, factor)?; // [tokens, heads * head_dim]
        graph.scale_columns(normed, weight) // [tokens, heads * head_dim]
    }
}
