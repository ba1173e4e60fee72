//! Causal self-attention with grouped queries and a KV cache, and with or without rotary positions.
//!
//! Entry point: [`SelfAttention`]. Ranks split the heads; [`check_heads`](super::check_heads) says which numbers of
//! ranks are possible.

use std::sync::Arc;

use super::{HeadsError, HeadsNorm, Linear, LinearSize, Norm, NormForm, WeightScope, check_heads};
use crate::graph::{
    Activation, AttentionSpec, Graph, GraphError, Input, Partition, PositionScale, RotarySpec, Slopes, StateId,
    StateSpec, Value, WeightSpec, Window,
};

/// The dimensions of a [`SelfAttention`] layer, with Hugging Face's names, and the options in which models differ.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionForm {
    pub(crate) hidden_size: usize,
    pub(crate) num_attention_heads: usize,
    pub(crate) num_key_value_heads: usize,
    pub(crate) head_dim: usize,
    /// True if the projections of queries, keys and values have biases.
    pub(crate) has_bias: bool,
    pub(crate) has_output_bias: bool,
    pub(crate) norm: QueryKeyNorm,
    /// True if each head of queries and keys is normalised after its rotation, not before it.
    pub(crate) has_norm_last: bool,
    /// The largest magnitude that elements of queries, keys and values keep before all else.
    pub(crate) clip: Option<f32>,
    /// The factor by which attention scores are multiplied.
    pub(crate) scale: f32,
    /// If set, queries are multiplied by a factor that grows with their position.
    pub(crate) query_growth: Option<PositionScale>,
    /// If set, scores become `cap · tanh(score / cap)`.
    pub(crate) soft_cap: Option<f32>,
    /// If set, scores have linear biases.
    pub(crate) slopes: Option<Slopes>,
    /// True if each head has a sink: a learned score, without a value, that takes part in the softmax.
    pub(crate) has_sinks: bool,
    /// True if there is no projection of values: a value is its key before the key is normalised and rotated.
    pub(crate) has_keys_as_values: bool,
    /// If set, each value is divided by its root mean square. The field is the number that is added to the mean of the
    /// squares.
    pub(crate) value_norm: Option<f32>,
    /// True if the output of attention is multiplied by the sigmoid of a projection of x.
    pub(crate) has_gate: bool,
}

/// The normalisation of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum QueryKeyNorm {
    None,
    /// Each head is normalised alone; all heads share one weight `[head_dim]`.
    Head(NormForm),
    /// Each head is normalised alone, with its own row of the weights `[heads, head_dim]`.
    EachHead(NormForm),
    /// As `EachHead`, with a tensor for each head, in the scopes `norms.0`, `norms.1` and so on.
    Stacked(NormForm),
    /// All heads are normalised together, by their root mean square, with a weight `[heads * head_dim]`. The field is
    /// the epsilon that is added to the mean of the squares.
    AllHeads(f32),
}

/// The settings that differ from layer to layer.
#[derive(Debug, Clone)]
pub(crate) struct AttentionLayer {
    /// The index of the layer, which is part of the names of the states of its keys and values.
    pub(crate) layer: usize,
    pub(crate) rotary: Option<Arc<RotarySpec>>,
    /// The keys that a query attends to; `None` means all keys up to its own.
    pub(crate) window: Option<Window>,
    /// The index of the earlier layer to whose keys and values this layer attends; `None` if it has its own.
    pub(crate) shares: Option<usize>,
}

/// The scopes of the weights of a [`SelfAttention`] layer.
#[derive(Debug, Clone)]
pub(crate) struct AttentionScopes {
    pub(crate) q: WeightScope,
    pub(crate) k: WeightScope,
    pub(crate) v: WeightScope,
    pub(crate) o: WeightScope,
    pub(crate) q_norm: WeightScope,
    pub(crate) k_norm: WeightScope,
    /// The scope of the tensor `sinks`.
    pub(crate) sinks: WeightScope,
    pub(crate) gate: WeightScope,
}

/// A self-attention layer: `o(attention(rotary(norm(q(x))), rotary(norm(k(x))), v(x)))`. With a gate, the output of
/// attention is multiplied by `sigmoid(gate(x))`.
#[derive(Debug, Clone)]
pub(crate) struct SelfAttention {
    form: AttentionForm,
    layer: AttentionLayer,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    q_norm: HeadNorms,
    k_norm: HeadNorms,
    /// `[heads]`
    sinks: Option<WeightSpec>,
    gate: Option<Linear>,
}

#[derive(Debug, Clone)]
enum HeadNorms {
    None,
    Each(Norm),
    All(HeadsNorm),
}

impl SelfAttention {
    /// Returns a layer with these weights.
    ///
    /// # Errors
    /// When this number of ranks cannot share the heads.
    pub(crate) fn new(
        scopes: &AttentionScopes,
        form: &AttentionForm,
        layer: AttentionLayer,
    ) -> Result<Self, HeadsError> {
        let AttentionForm { hidden_size, num_attention_heads, num_key_value_heads, head_dim, .. } = *form;
        check_heads(num_attention_heads, num_key_value_heads, scopes.q.num_ranks())?;
        let q_width = num_attention_heads * head_dim;
        let kv_width = num_key_value_heads * head_dim;
        let inward = |num_outputs| LinearSize { num_inputs: hidden_size, num_outputs, has_bias: form.has_bias };
        let outward = LinearSize { num_inputs: q_width, num_outputs: hidden_size, has_bias: form.has_output_bias };
        let gating = LinearSize { num_inputs: hidden_size, num_outputs: q_width, has_bias: false };
        Ok(Self {
            form: *form,
            layer,
            q: Linear::heads(&scopes.q, inward(q_width), num_attention_heads),
            k: Linear::heads(&scopes.k, inward(kv_width), num_key_value_heads),
            v: Linear::heads(&scopes.v, inward(kv_width), num_key_value_heads),
            o: Linear::row(&scopes.o, outward),
            q_norm: HeadNorms::new(&scopes.q_norm, form.norm, [num_attention_heads, head_dim]),
            k_norm: HeadNorms::new(&scopes.k_norm, form.norm, [num_key_value_heads, head_dim]),
            sinks: form.has_sinks.then(|| scopes.sinks.weight("sinks", &[num_attention_heads], Partition::Column)),
            gate: form.has_gate.then(|| Linear::heads(&scopes.gate, gating, num_attention_heads)),
        })
    }

    /// x `[tokens, hidden]` → the same shape.
    pub(crate) fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        // The projections come first, so that a backend can compute them together.
        let q = self.q.apply(graph, x)?; // [tokens, heads * head_dim]
        let projected = match self.layer.shares {
            Some(_) => None,
            None => Some(self.project(graph, x)?), // twice [tokens, kv_heads * head_dim]
        };
        let gate = self.gate.as_ref().map(|gate| gate.apply(graph, x)).transpose()?; // [tokens, heads * head_dim]
        let q = self.clipped(graph, q)?; // [tokens, heads * head_dim]
        let q = self.heads(graph, q, &self.q_norm)?; // [tokens, heads, head_dim]
        let own = projected.map(|projected| self.keys_and_values(graph, projected)).transpose()?;
        let q = match self.form.query_growth {
            Some(growth) => {
                let positions = graph.input(Input::Positions); // [tokens]
                graph.scale_by_position(q, positions, growth)? // [tokens, heads, head_dim]
            }
            None => q,
        };
        let AttentionForm { scale, soft_cap, slopes, .. } = self.form;
        let [keys, values] = ["keys", "values"].map(|name| self.state(graph, name));
        let spec = AttentionSpec { keys, values: values.into(), scale, window: self.layer.window, soft_cap, slopes };
        let attended = match own {
            Some([k, v]) => {
                let sinks = self.sinks.as_ref().map(|sinks| graph.weight(sinks)); // [heads]
                graph.paged_attention([q, k, v], sinks, spec)? // [tokens, heads, head_dim]
            }
            None => graph.shared_attention(q, spec)?, // [tokens, heads, head_dim]
        };
        let attended = graph.reshape(attended, &[self.q.num_local_outputs()])?; // [tokens, heads * head_dim]
        let attended = match gate {
            Some(gate) => graph.gated(Activation::Sigmoid, gate, attended)?, // [tokens, heads * head_dim]
            None => attended,
        };
        self.o.apply(graph, attended) // [tokens, hidden]
    }

    /// Returns the projections of x `[tokens, hidden]` to keys and values, each `[tokens, kv_heads * head_dim]`.
    fn project(&self, graph: &mut Graph, x: Value) -> Result<[Value; 2], GraphError> {
        let k = self.k.apply(graph, x)?; // [tokens, kv_heads * head_dim]
        let v = if self.form.has_keys_as_values { k } else { self.v.apply(graph, x)? };
        Ok([k, v])
    }

    /// Returns the keys and values of these projections, each `[tokens, kv_heads, head_dim]`.
    fn keys_and_values(&self, graph: &mut Graph, [k, v]: [Value; 2]) -> Result<[Value; 2], GraphError> {
        let k = self.clipped(graph, k)?; // [tokens, kv_heads * head_dim]
        let v = self.clipped(graph, v)?; // [tokens, kv_heads * head_dim]
        let k = self.heads(graph, k, &self.k_norm)?; // [tokens, kv_heads, head_dim]
        let v = graph.reshape(v, &self.cached_shape())?; // [tokens, kv_heads, head_dim]
        let v = match self.form.value_norm {
            Some(eps) => graph.rms_norm(v, None, eps, 0.0)?, // [tokens, kv_heads, head_dim]
            None => v,
        };
        Ok([k, v])
    }

    fn clipped(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        self.form.clip.map_or(Ok(x), |limit| graph.clip(x, limit)) // as x
    }

    /// Returns this rank's number of KV heads, and the size of a key or value.
    fn cached_shape(&self) -> [usize; 2] {
        let head_dim = self.form.head_dim;
        [self.k.num_local_outputs() / head_dim, head_dim]
    }

    /// Declares the state of the keys or values to which the layer attends, and returns its id.
    fn state(&self, graph: &mut Graph, name: &str) -> StateId {
        let AttentionLayer { layer, rotary: _, window, shares } = &self.layer;
        let (layer, shape) = (shares.unwrap_or(*layer), self.cached_shape());
        graph.state(&StateSpec::of_tokens(format!("layers.{layer}.{name}"), &shape, window.map(Window::num_keys)))
    }

    /// Normalises and rotates queries or keys: `[tokens, heads * head_dim]` → `[tokens, heads, head_dim]`.
    fn heads(&self, graph: &mut Graph, x: Value, norm: &HeadNorms) -> Result<Value, GraphError> {
        let head_dim = self.form.head_dim;
        let x = if let HeadNorms::All(norm) = norm { norm.apply(graph, x)? } else { x }; // [tokens, heads * head_dim]
        let num_heads = graph.node(x).shape.last_size().unwrap_or_default() / head_dim;
        let x = graph.reshape(x, &[num_heads, head_dim])?; // [tokens, heads, head_dim]
        let x = if self.form.has_norm_last { x } else { norm.of_heads(graph, x)? }; // [tokens, heads, head_dim]
        let x = match &self.layer.rotary {
            Some(rotary) => {
                let positions = graph.input(Input::Positions); // [tokens]
                graph.rotary(x, positions, rotary)? // [tokens, heads, head_dim]
            }
            None => x,
        };
        if self.form.has_norm_last { norm.of_heads(graph, x) } else { Ok(x) } // [tokens, heads, head_dim]
    }
}

impl HeadNorms {
    /// Normalises each head of x `[tokens, heads, head_dim]`, if each has a norm of its own.
    fn of_heads(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        if let Self::Each(norm) = self { norm.apply(graph, x) } else { Ok(x) } // [tokens, heads, head_dim]
    }

    fn new(scope: &WeightScope, norm: QueryKeyNorm, [num_heads, head_dim]: [usize; 2]) -> Self {
        match norm {
            QueryKeyNorm::None => Self::None,
            QueryKeyNorm::Head(form) => Self::Each(Norm::new(scope, head_dim, form)),
            QueryKeyNorm::EachHead(form) => Self::Each(Norm::each_head(scope, [num_heads, head_dim], form)),
            QueryKeyNorm::Stacked(form) => Self::Each(Norm::stacked(scope, [num_heads, head_dim], form)),
            QueryKeyNorm::AllHeads(eps) => Self::All(HeadsNorm::new(scope, [num_heads, head_dim], eps)),
        }
    }
}
