//! Causal self-attention with rotary positions, grouped queries and a KV cache.
//!
//! Door: [`SelfAttention`]. Ranks split the heads; [`check_heads`](super::check_heads) says how.

use std::sync::Arc;

use super::{HeadsError, Linear, LinearSize, WeightScope, check_heads};
use crate::graph::{AttentionSpec, Graph, GraphError, Input, RotarySpec, Value};

/// Dimensions of a [`SelfAttention`] layer, with Hugging Face's names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionSize {
    pub(crate) hidden_size: usize,
    pub(crate) num_attention_heads: usize,
    pub(crate) num_key_value_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) has_bias: bool,
}

/// `o(attention(rotary(q(x)), rotary(k(x)), v(x)))`
#[derive(Debug, Clone)]
pub(crate) struct SelfAttention {
    size: AttentionSize,
    rotary: Arc<RotarySpec>,
    layer: usize,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
}

impl SelfAttention {
    /// Layers `q_proj`, `k_proj`, `v_proj` and `o_proj` of `scope`, with the KV cache number `layer`.
    ///
    /// # Errors
    /// When so many ranks cannot share the heads.
    pub(crate) fn new(
        scope: &WeightScope,
        size: AttentionSize,
        rotary: &Arc<RotarySpec>,
        layer: usize,
    ) -> Result<Self, HeadsError> {
        let AttentionSize { hidden_size, num_attention_heads, num_key_value_heads, head_dim, has_bias } = size;
        check_heads(num_attention_heads, num_key_value_heads, scope.world_size())?;
        let q_width = num_attention_heads * head_dim;
        let kv_width = num_key_value_heads * head_dim;
        let inward = |num_outputs| LinearSize { num_inputs: hidden_size, num_outputs, has_bias };
        let outward = LinearSize { num_inputs: q_width, num_outputs: hidden_size, has_bias };
        Ok(Self {
            size,
            rotary: Arc::clone(rotary),
            layer,
            q: Linear::heads(&scope.child("q_proj"), inward(q_width), num_attention_heads),
            k: Linear::heads(&scope.child("k_proj"), inward(kv_width), num_key_value_heads),
            v: Linear::heads(&scope.child("v_proj"), inward(kv_width), num_key_value_heads),
            o: Linear::row(&scope.child("o_proj"), outward),
        })
    }

    /// x `[tokens, hidden]` → the same shape.
    pub(crate) fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let head_dim = self.size.head_dim;
        let num_attention_heads = self.q.num_local_outputs() / head_dim;
        let num_key_value_heads = self.k.num_local_outputs() / head_dim;
        let positions = graph.input(Input::Positions); // [tokens]
        let q = self.q.apply(graph, x)?; // [tokens, heads * head_dim]
        let q = graph.reshape(q, &[num_attention_heads, head_dim])?; // [tokens, heads, head_dim]
        let q = graph.rotary(q, positions, &self.rotary)?; // [tokens, heads, head_dim]
        let k = self.k.apply(graph, x)?; // [tokens, kv_heads * head_dim]
        let k = graph.reshape(k, &[num_key_value_heads, head_dim])?; // [tokens, kv_heads, head_dim]
        let k = graph.rotary(k, positions, &self.rotary)?; // [tokens, kv_heads, head_dim]
        let v = self.v.apply(graph, x)?; // [tokens, kv_heads * head_dim]
        let v = graph.reshape(v, &[num_key_value_heads, head_dim])?; // [tokens, kv_heads, head_dim]
        let spec = AttentionSpec { layer: self.layer, scale: 1.0 / (head_dim as f32).sqrt() };
        let attended = graph.paged_attention([q, k, v], spec)?; // [tokens, heads, head_dim]
        let attended = graph.reshape(attended, &[num_attention_heads * head_dim])?; // [tokens, heads * head_dim]
        self.o.apply(graph, attended) // [tokens, hidden]
    }
}
