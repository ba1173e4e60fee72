//! Vectors of each token that single layers read, beside the hidden state (per-layer embeddings, Gemma 3n, 2025).
//!
//! Entry points: [`LayerInputs`], which computes the vectors of all layers from the token and its embedding, and
//! [`LayerInput`], the part of a layer that reads its vector. Ranks split the table by tokens. The other matrices are
//! small, and every rank has them all.

use super::{Embedding, Linear, LinearSize, Norm, NormForm, WeightScope};
use crate::graph::{Activation, Graph, GraphError, Value};

/// The dimensions of the vectors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerInputsForm {
    pub(crate) hidden_size: usize,
    /// The size of the vector of one layer.
    pub(crate) size: usize,
    pub(crate) vocab_size: usize,
    /// The factor by which the rows of the table are multiplied.
    pub(crate) multiplier: f32,
    pub(crate) norm: NormForm,
    /// The activation of the layers' gates.
    pub(crate) activation: Activation,
}

/// The vectors of all layers: `(norm(projection(embedding) / sqrt(hidden)) + multiplier · table[token]) / sqrt(2)`.
#[derive(Debug, Clone)]
pub(crate) struct LayerInputs {
    form: LayerInputsForm,
    num_layers: usize,
    table: Embedding,
    projection: Linear,
    norm: Norm,
}

/// The part of a layer after its feed-forward network: `x + norm(projection(f(gate(x)) · vector))`.
#[derive(Debug, Clone)]
pub(crate) struct LayerInput {
    form: LayerInputsForm,
    layer: usize,
    gate: Linear,
    projection: Linear,
    norm: Norm,
}

impl LayerInputs {
    /// Returns the vectors of `num_layers` layers, with weights in `scope`.
    pub(crate) fn new(scope: &WeightScope, form: &LayerInputsForm, num_layers: usize) -> Self {
        let LayerInputsForm { hidden_size, size, vocab_size, norm, .. } = *form;
        let width = num_layers * size;
        let projected = LinearSize { num_inputs: hidden_size, num_outputs: width, has_bias: false };
        Self {
            form: *form,
            num_layers,
            table: Embedding::new(&scope.child("embed_tokens_per_layer"), vocab_size, width),
            projection: Linear::whole(&scope.child("per_layer_model_projection"), projected),
            norm: Norm::new(&scope.child("per_layer_projection_norm"), size, norm),
        }
    }

    /// tokens `[tokens]` and their embeddings `[tokens, hidden]` → `[tokens, layers * size]`
    pub(crate) fn apply(&self, graph: &mut Graph, tokens: Value, embedded: Value) -> Result<Value, GraphError> {
        let LayerInputsForm { hidden_size, size, multiplier, .. } = self.form;
        let projected = self.projection.apply(graph, embedded)?; // [tokens, layers * size]
        let projected = graph.scale(projected, (hidden_size as f32).powf(-0.5))?; // [tokens, layers * size]
        let projected = graph.reshape(projected, &[self.num_layers, size])?; // [tokens, layers, size]
        let normed = self.norm.apply(graph, projected)?; // [tokens, layers, size]
        let normed = graph.reshape(normed, &[self.num_layers * size])?; // [tokens, layers * size]
        let own = self.table.apply(graph, tokens)?; // [tokens, layers * size]
        let own = graph.scale(own, multiplier)?; // [tokens, layers * size]
        let sum = graph.add(normed, own)?; // [tokens, layers * size]
        graph.scale(sum, std::f32::consts::FRAC_1_SQRT_2) // [tokens, layers * size]
    }
}

impl LayerInput {
    /// Returns the part of layer number `layer` with weights in `scope`, the scope of the layer.
    pub(crate) fn new(scope: &WeightScope, form: &LayerInputsForm, layer: usize) -> Self {
        let LayerInputsForm { hidden_size, size, norm, .. } = *form;
        let linear = |name: &str, num_inputs: usize, num_outputs: usize| {
            Linear::whole(&scope.child(name), LinearSize { num_inputs, num_outputs, has_bias: false })
        };
        Self {
            form: *form,
            layer,
            gate: linear("per_layer_input_gate", hidden_size, size),
            projection: linear("per_layer_projection", size, hidden_size),
            norm: Norm::new(&scope.child("post_per_layer_input_norm"), hidden_size, norm),
        }
    }

    /// x `[tokens, hidden]` and the vectors of all layers `[tokens, layers * size]` → `[tokens, hidden]`
    pub(crate) fn apply(&self, graph: &mut Graph, x: Value, inputs: Value) -> Result<Value, GraphError> {
        let LayerInputsForm { size, activation, .. } = self.form;
        let gate = self.gate.apply(graph, x)?; // [tokens, size]
        let own = graph.columns(inputs, self.layer * size..(self.layer + 1) * size)?; // [tokens, size]
        let gated = graph.gated(activation, gate, own)?; // [tokens, size]
        let projected = self.projection.apply(graph, gated)?; // [tokens, hidden]
        let normed = self.norm.apply(graph, projected)?; // [tokens, hidden]
        graph.add(x, normed) // [tokens, hidden]
    }
}
