//! Causal self-attention to one latent vector per token (DeepSeek-AI, 2024, arXiv 2405.04434).
//!
//! Entry point: [`LatentAttention`]. All heads share the latent vectors. A head's key has a part without position,
//! which a matrix of the head computes from the latent vector, and a rotated part, which all heads share. Another
//! matrix of the head computes the value. The cache keeps the latent vector and the rotated part, but neither keys nor
//! values. Instead, the first matrix turns the query into a query of latent vectors, and the second turns the weighted
//! sum of latent vectors into the weighted sum of values. Ranks split the heads; each rank keeps all latent vectors.

use super::{AttentionLayer, HeadsError, Linear, LinearSize, Norm, NormForm, WeightScope, check_heads};
use crate::graph::{
    AttentionSpec, Graph, GraphError, Input, Partition, PositionScale, Section, StateSpec, Value, ValuesIn, WeightSpec,
    Window,
};

/// The epsilon of the norms of latent vectors, which no key of config.json changes.
const LATENT_NORM_EPS: f64 = 1e-6;

/// The dimensions of a [`LatentAttention`] layer, with Hugging Face's names, and its options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LatentForm {
    pub(crate) hidden_size: usize,
    pub(crate) num_attention_heads: usize,
    /// The size of the latent vector from which queries are computed; `None` if they are computed from the hidden
    /// state.
    pub(crate) q_lora_rank: Option<usize>,
    /// The size of the latent vector of keys and values.
    pub(crate) kv_lora_rank: usize,
    /// The number of dimensions of the part of a key, and of a query, that has no position.
    pub(crate) qk_nope_head_dim: usize,
    /// The number of dimensions of the rotated part.
    pub(crate) qk_rope_head_dim: usize,
    pub(crate) v_head_dim: usize,
    /// True if the projections to latent vectors and the output projection have biases.
    pub(crate) has_bias: bool,
    /// True if `k_b_proj` and `v_b_proj` have the two matrices of each head, as they are used, in place of
    /// `kv_b_proj`.
    pub(crate) has_split_heads: bool,
    /// The factor by which attention scores are multiplied.
    pub(crate) scale: f32,
    /// If set, queries are multiplied by a factor that grows with their position.
    pub(crate) query_growth: Option<PositionScale>,
}

/// A self-attention layer over latent vectors.
#[derive(Debug, Clone)]
pub(crate) struct LatentAttention {
    form: LatentForm,
    layer: AttentionLayer,
    /// The projection to the latent vector of queries, and its norm.
    q_latent: Option<(Linear, Norm)>,
    /// The projections to the two parts of queries.
    q_nope: Linear,
    q_rope: Linear,
    latent: Linear,
    latent_norm: Norm,
    k_rope: Linear,
    /// From the part of queries without position to queries of latent vectors, `[heads, kv_lora_rank, nope_head_dim]`.
    to_latent: WeightSpec,
    /// From sums of latent vectors to those of values, `[heads, v_head_dim, kv_lora_rank]`.
    from_latent: WeightSpec,
    o: Linear,
}

impl LatentAttention {
    /// Returns a layer with the weights in `scope`, which have the names of DeepSeek's checkpoints.
    ///
    /// # Errors
    /// When this number of ranks cannot share the heads.
    pub(crate) fn new(scope: &WeightScope, form: &LatentForm, layer: AttentionLayer) -> Result<Self, HeadsError> {
        let LatentForm { hidden_size, num_attention_heads: heads, kv_lora_rank, has_bias, .. } = *form;
        let [nope, rope, value] = [form.qk_nope_head_dim, form.qk_rope_head_dim, form.v_head_dim];
        check_heads(heads, 1, scope.num_ranks())?;
        let norm = |name: &str, size: usize| Norm::new(&scope.child(name), size, NormForm::rms(LATENT_NORM_EPS));
        let q_latent = form.q_lora_rank.map(|rank| {
            let size = LinearSize { num_inputs: hidden_size, num_outputs: rank, has_bias };
            (Linear::whole(&scope.child("q_a_proj"), size), norm("q_a_layernorm", rank))
        });
        let q_scope = scope.child(if q_latent.is_some() { "q_b_proj" } else { "q_proj" });
        let q = |first: usize, dim: usize| {
            let section = Section { num_groups: heads, group_rows: nope + rope, first };
            let num_inputs = form.q_lora_rank.unwrap_or(hidden_size);
            let size = LinearSize { num_inputs, num_outputs: heads * dim, has_bias: false };
            Linear::heads(&q_scope.section(section), size, heads)
        };
        let kv = |first: usize, num_outputs: usize| {
            let section = Section { num_groups: 1, group_rows: kv_lora_rank + rope, first };
            let size = LinearSize { num_inputs: hidden_size, num_outputs, has_bias };
            Linear::whole(&scope.child("kv_a_proj_with_mqa").section(section), size)
        };
        let of_heads = |first: usize| Section { num_groups: heads, group_rows: nope + value, first };
        let matrix = |shape: [usize; 3], (split, first, is_transposed): (&str, usize, bool)| match form.has_split_heads
        {
            true => scope.child(split).weight("weight", &shape, Partition::Column),
            false => scope.child("kv_b_proj").heads(shape, of_heads(first), is_transposed),
        };
        let outward = LinearSize { num_inputs: heads * value, num_outputs: hidden_size, has_bias };
        Ok(Self {
            form: *form,
            layer,
            q_latent,
            q_nope: q(0, nope),
            q_rope: q(nope, rope),
            latent: kv(0, kv_lora_rank),
            latent_norm: norm("kv_a_layernorm", kv_lora_rank),
            k_rope: kv(kv_lora_rank, rope),
            to_latent: matrix([heads, kv_lora_rank, nope], ("k_b_proj", 0, true)),
            from_latent: matrix([heads, value, kv_lora_rank], ("v_b_proj", nope, false)),
            o: Linear::row(&scope.child("o_proj"), outward),
        })
    }

    /// x `[tokens, hidden]` → the same shape.
    pub(crate) fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let LatentForm { kv_lora_rank, qk_rope_head_dim: rope, v_head_dim, scale, .. } = self.form;
        // The projections of x come first, so that a backend can compute them together.
        let q_latent = match &self.q_latent {
            Some((linear, _)) => linear.apply(graph, x)?, // [tokens, q_lora_rank]
            None => x,
        };
        let latent = self.latent.apply(graph, x)?; // [tokens, kv_lora_rank]
        let k_rope = self.k_rope.apply(graph, x)?; // [tokens, rope]
        let q_latent = match &self.q_latent {
            Some((_, norm)) => norm.apply(graph, q_latent)?, // [tokens, q_lora_rank]
            None => q_latent,
        };
        let q = self.queries(graph, q_latent)?; // [tokens, heads, kv_lora_rank + rope]
        let latent = self.latent_norm.apply(graph, latent)?; // [tokens, kv_lora_rank]
        let latent = graph.reshape(latent, &[1, kv_lora_rank])?; // [tokens, 1, kv_lora_rank]
        let k_rope = graph.reshape(k_rope, &[1, rope])?; // [tokens, 1, rope]
        let k_rope = self.rotated(graph, k_rope)?; // [tokens, 1, rope]
        let k = graph.join(latent, k_rope)?; // [tokens, 1, kv_lora_rank + rope]
        let AttentionLayer { layer, rotary: _, window, shares: _ } = &self.layer;
        let state = StateSpec::of_tokens(
            format!("layers.{layer}.latents"),
            &[1, kv_lora_rank + rope],
            window.map(Window::num_keys),
        );
        let keys = graph.state(&state);
        let values = ValuesIn::Keys { value_dim: kv_lora_rank };
        let spec = AttentionSpec { keys, values, scale, window: *window, soft_cap: None, slopes: None };
        let attended = graph.latent_attention([q, k], spec)?; // [tokens, heads, kv_lora_rank]
        let from_latent = graph.weight(&self.from_latent); // [heads, v_head_dim, kv_lora_rank]
        let attended = graph.head_linear(attended, from_latent)?; // [tokens, heads, v_head_dim]
        let num_heads = self.from_latent.local_shape()[0];
        let attended = graph.reshape(attended, &[num_heads * v_head_dim])?; // [tokens, heads * v_head_dim]
        self.o.apply(graph, attended) // [tokens, hidden]
    }

    /// Returns the queries of latent vectors and rotated keys, `[tokens, heads, kv_lora_rank + rope]`, given x
    /// `[tokens, q_lora_rank or hidden]`.
    fn queries(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let LatentForm { qk_nope_head_dim: nope, qk_rope_head_dim: rope, .. } = self.form;
        let q_nope = self.q_nope.apply(graph, x)?; // [tokens, heads * nope]
        let q_rope = self.q_rope.apply(graph, x)?; // [tokens, heads * rope]
        let num_heads = self.q_rope.num_local_outputs() / rope;
        let q_nope = graph.reshape(q_nope, &[num_heads, nope])?; // [tokens, heads, nope]
        let to_latent = graph.weight(&self.to_latent); // [heads, kv_lora_rank, nope]
        let q_latent = graph.head_linear(q_nope, to_latent)?; // [tokens, heads, kv_lora_rank]
        let q_rope = graph.reshape(q_rope, &[num_heads, rope])?; // [tokens, heads, rope]
        let q_rope = self.rotated(graph, q_rope)?; // [tokens, heads, rope]
        let q = graph.join(q_latent, q_rope)?; // [tokens, heads, kv_lora_rank + rope]
        let Some(growth) = self.form.query_growth else { return Ok(q) };
        let positions = graph.input(Input::Positions); // [tokens]
        graph.scale_by_position(q, positions, growth) // [tokens, heads, kv_lora_rank + rope]
    }

    fn rotated(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let Some(rotary) = &self.layer.rotary else { return Ok(x) };
        let positions = graph.input(Input::Positions); // [tokens]
        graph.rotary(x, positions, rotary) // as x
    }
}
