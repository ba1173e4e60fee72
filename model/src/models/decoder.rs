//! A description of a decoder: the common structure of all model families, with a field for each property in which they
//! differ.
//!
//! Entry points: [`Decoder::llama`] reads config.json as if it described a Llama; a family's file then changes the
//! fields in which its models differ from Llama; [`Decoder::build`] builds the graph.

use std::sync::Arc;

use numbers::FloatType;

use super::activation::activation;
use super::gguf::{self, layout};
use super::{Config, Model, ModelError, rope_config};
use crate::graph::{Gating, Graph, Input, Pairing, Partition, RotarySpec, Section, Value, Window};
use crate::layers::{
    AttentionForm, AttentionLayer, AttentionScopes, Embedding, ExpertNames, Experts, ExpertsSize, Head,
    LatentAttention, LatentForm, LayerInput, LayerInputs, LayerInputsForm, Linear, LinearSize, Mlp, MlpSize, Norm,
    NormForm, QueryKeyNorm, RotaryScaling, RouterForm, SelfAttention, WeightScope,
};

/// The description of a causal language model.
#[derive(Debug, Clone)]
pub(super) struct Decoder {
    pub(super) root: WeightScope,
    pub(super) names: Names,
    /// True if the layers' matrices are stored `[in, out]`.
    pub(super) has_transposed_matrices: bool,
    pub(super) vocab_size: usize,
    /// The vectors of positions that are added to the tokens' embeddings.
    pub(super) learned_positions: Option<LearnedPositions>,
    /// The factor by which embeddings are multiplied.
    pub(super) embedding_multiplier: f32,
    /// The norm of the sum of embeddings; `None` stands for no norm.
    pub(super) embedding_norm: Option<&'static str>,
    pub(super) block: Block,
    pub(super) norm: NormForm,
    pub(super) attention: AttentionForm,
    pub(super) projections: Projections,
    /// True if queries, keys and values are one tensor although `projections` says that they are apart.
    pub(super) has_fused_heads: bool,
    /// True if each matrix of each expert is a tensor, whatever the names of experts are.
    pub(super) has_each_expert: bool,
    /// Latent attention, which replaces `attention` and `projections`.
    pub(super) latent: Option<LatentForm>,
    pub(super) mlp: MlpSize,
    pub(super) mlp_form: MlpForm,
    /// The network that replaces `mlp` in the layers that have experts.
    pub(super) experts: Option<ExpertsForm>,
    /// The norms of a mixture of experts that stands beside the feed-forward network, and does not replace it.
    pub(super) beside: Option<BesideNorms>,
    /// The properties of each layer.
    pub(super) layers: Vec<LayerForm>,
    /// The vectors of each token that single layers read.
    pub(super) layer_inputs: Option<LayerInputsForm>,
    /// The tensor `[1]` by which the output of each layer is multiplied.
    pub(super) layer_factor: Option<&'static str>,
    /// The factor by which the outputs of attention and feed-forward network are multiplied before they are added to
    /// the hidden state.
    pub(super) residual_multiplier: f32,
    /// True if the embedding table is also the matrix of the output head.
    pub(super) is_tied: bool,
    pub(super) has_head_bias: bool,
    /// The factor by which logits are multiplied.
    pub(super) logits_multiplier: f32,
    pub(super) logits_soft_cap: Option<f32>,
}

/// A table with a learned vector for each position.
#[derive(Debug, Clone, Copy)]
pub(super) struct LearnedPositions {
    pub(super) num_positions: usize,
    /// The row of the first position.
    pub(super) first_row: usize,
}

/// The names of weights in the checkpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    /// The prefix of all names except that of the output head.
    pub(super) base: &'static str,
    pub(super) embedding: &'static str,
    pub(super) positions: &'static str,
    pub(super) layers: &'static str,
    pub(super) attention: &'static str,
    /// The projection of attention's output, the norm of queries and that of keys.
    pub(super) output: &'static str,
    pub(super) query_norm: &'static str,
    pub(super) key_norm: &'static str,
    /// The feed-forward network; empty if its layers are in the scope of the decoder's layer.
    pub(super) mlp: &'static str,
    pub(super) last_norm: &'static str,
    pub(super) head: &'static str,
}

/// The structure of a layer, with the names of its norms. `None` stands for no norm.
#[derive(Debug, Clone, Copy)]
pub(super) enum Block {
    /// First x becomes x + after(attention(before(x))), then x + after(mlp(before(x))).
    Sequential {
        before_attention: Option<&'static str>,
        after_attention: Option<&'static str>,
        before_mlp: Option<&'static str>,
        after_mlp: Option<&'static str>,
    },
    /// x + attention(before(x)) + mlp(before(x)); the two norms may be the same.
    Parallel { before_attention: &'static str, before_mlp: &'static str },
}

/// The way in which the weights of queries, keys and values are stored.
#[derive(Debug, Clone, Copy)]
pub(super) enum Projections {
    /// `q_proj`, `k_proj` and `v_proj`; [`Names`] has the name of the output's projection.
    Separate,
    /// One tensor, which contains all queries, then all keys, then all values.
    Fused { qkv: &'static str, output: &'static str },
    /// One tensor, which consists of `num_blocks` blocks: each contains queries, then values, then keys of some heads.
    FusedInBlocks { qkv: &'static str, num_blocks: usize },
    /// One tensor, which contains for each KV head its queries, its key and its value.
    FusedByHead { qkv: &'static str, output: &'static str },
}

/// The form of the feed-forward network, with the names of its weights.
#[derive(Debug, Clone, Copy)]
pub(super) enum MlpForm {
    Gated {
        gate: &'static str,
        up: &'static str,
        down: &'static str,
    },
    /// Gate and up are one tensor, with the gate in its first half.
    GatedFused {
        gate_up: &'static str,
        down: &'static str,
    },
    Plain {
        up: &'static str,
        down: &'static str,
    },
    /// Without a gate, and with the activation xIELU, whose parameters are in the scope `activation`.
    Xielu {
        up: &'static str,
        down: &'static str,
        activation: &'static str,
    },
}

/// The properties that differ from layer to layer.
#[derive(Debug, Clone)]
pub(super) struct LayerForm {
    pub(super) rotary: Option<Arc<RotarySpec>>,
    /// The keys that a query attends to; `None` means all keys up to its own.
    pub(super) window: Option<Window>,
    pub(super) has_experts: bool,
    /// The form of attention, if it is another one than that of the model.
    pub(super) attention: Option<AttentionForm>,
    /// The earlier layer to whose keys and values this layer attends; `None` if it has its own.
    pub(super) shares: Option<usize>,
    /// The width of the feed-forward network, if it is another one than that of the model.
    pub(super) intermediate_size: Option<usize>,
}

/// The names of the norms of a feed-forward network's output, and of the input and the output of the experts beside it.
/// Both networks read the same hidden state, and their outputs are added.
#[derive(Debug, Clone, Copy)]
pub(super) struct BesideNorms {
    pub(super) after_mlp: &'static str,
    pub(super) before_experts: &'static str,
    pub(super) after_experts: &'static str,
}

/// A mixture of experts, with the names of its weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpertsForm {
    /// The scope in the layer; empty for that of the layer.
    pub(super) scope: &'static str,
    pub(super) names: ExpertNames,
    pub(super) gating: Gating,
    pub(super) intermediate_size: usize,
    pub(super) num_experts: usize,
    pub(super) router: RouterForm,
    pub(super) shared: Option<SharedForm>,
}

/// A shared expert, which reads every token, with the names of its weights in the layer. Its form is that of the
/// feed-forward network of other layers.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedForm {
    pub(super) scope: &'static str,
    pub(super) intermediate_size: usize,
    /// The linear layer with one output whose sigmoid multiplies the output of the expert.
    pub(super) gate: Option<&'static str>,
}

impl Block {
    /// The structure of Llama's layers.
    pub(super) const PRE_NORM: Self = Self::pre_norm("input_layernorm", "post_attention_layernorm");

    /// Returns a sequential structure with norms before attention and before the feed-forward network.
    pub(super) const fn pre_norm(before_attention: &'static str, before_mlp: &'static str) -> Self {
        Self::Sequential {
            before_attention: Some(before_attention),
            after_attention: None,
            before_mlp: Some(before_mlp),
            after_mlp: None,
        }
    }
}

impl Names {
    pub(super) const LLAMA: Self = Self {
        base: "model",
        embedding: "embed_tokens",
        positions: "embed_positions",
        layers: "layers",
        attention: "self_attn",
        output: "o_proj",
        query_norm: "q_norm",
        key_norm: "k_norm",
        mlp: "mlp",
        last_norm: "norm",
        head: "lm_head",
    };
}

impl Decoder {
    /// Returns the description of a Llama with the values of config.json.
    ///
    /// # Errors
    /// When a key is missing or malformed. The message names the key.
    pub(super) fn llama(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Self, ModelError> {
        let norm = NormForm::rms(config.epsilon_or("rms_norm_eps", 1e-6)?);
        Self::new(config, WeightScope::root(dtype, num_ranks), norm, config.size("intermediate_size")?)
    }

    /// As [`Decoder::llama`], with another norm, and with a feed-forward network of width `intermediate_size`.
    ///
    /// # Errors
    /// When a key is missing or malformed. The message names the key.
    pub(super) fn new(
        config: &Config,
        root: WeightScope,
        norm: NormForm,
        intermediate_size: usize,
    ) -> Result<Self, ModelError> {
        let root = if config.flag_or(gguf::LAYOUT, false)? { root.of_gguf() } else { root };
        let hidden_size = config.size("hidden_size")?;
        let num_attention_heads = config.size("num_attention_heads")?;
        if num_attention_heads > hidden_size {
            return Err(config.invalid("num_attention_heads", num_attention_heads, "at most hidden_size"));
        }
        let head_dim = config.size_or("head_dim", hidden_size / num_attention_heads)?;
        let rotary = Arc::new(rope_config::read(config, head_dim, Pairing::Halves)?);
        let has_bias = config.flag_or("attention_bias", false)?;
        Ok(Self {
            root,
            names: Names::LLAMA,
            has_transposed_matrices: false,
            vocab_size: config.vocab_size()?,
            learned_positions: None,
            embedding_multiplier: 1.0,
            embedding_norm: None,
            block: Block::PRE_NORM,
            norm,
            attention: AttentionForm {
                hidden_size,
                num_attention_heads,
                num_key_value_heads: config.size_or("num_key_value_heads", num_attention_heads)?,
                head_dim,
                has_bias,
                has_output_bias: has_bias,
                norm: QueryKeyNorm::None,
                has_norm_last: false,
                clip: None,
                scale: 1.0 / (head_dim as f32).sqrt(),
                query_growth: None,
                soft_cap: None,
                slopes: None,
                has_sinks: false,
                has_keys_as_values: false,
                value_norm: None,
                has_gate: false,
            },
            projections: Projections::Separate,
            has_fused_heads: config.flag_or(gguf::FUSED, false)?,
            has_each_expert: config.flag_or(gguf::EACH_EXPERT, false)?,
            latent: None,
            mlp: MlpSize {
                hidden_size,
                intermediate_size,
                has_bias: config.flag_or("mlp_bias", false)?,
                activation: activation(config)?,
            },
            experts: None,
            beside: None,
            layer_inputs: None,
            layer_factor: None,
            mlp_form: MlpForm::Gated { gate: "gate_proj", up: "up_proj", down: "down_proj" },
            layers: vec![
                LayerForm {
                    rotary: Some(rotary),
                    window: None,
                    has_experts: false,
                    attention: None,
                    shares: None,
                    intermediate_size: None,
                };
                config.size("num_hidden_layers")?
            ],
            residual_multiplier: 1.0,
            is_tied: config.flag_or("tie_word_embeddings", false)?,
            has_head_bias: false,
            logits_multiplier: 1.0,
            logits_soft_cap: None,
        })
    }

    /// Sets all biases of layers, except those of norms.
    pub(super) fn set_biases(&mut self, has_bias: bool) {
        (self.attention.has_bias, self.attention.has_output_bias, self.mlp.has_bias) = (has_bias, has_bias, has_bias);
    }

    /// Makes the rotary embeddings of all layers rotate adjacent values of each head.
    ///
    /// # Errors
    /// When the rotary parameters are malformed.
    pub(super) fn rotate_neighbours(&mut self, config: &Config) -> Result<(), ModelError> {
        let rotary = Arc::new(rope_config::read(config, self.attention.head_dim, Pairing::Neighbours)?);
        self.layers.iter_mut().for_each(|layer| layer.rotary = Some(Arc::clone(&rotary)));
        Ok(())
    }

    /// Sets the sliding window of each layer. config.json's `layer_types` determines which layers have one; without
    /// that key, `is_sliding` determines it from the index of the layer. Returns true for each layer that has a window.
    ///
    /// # Errors
    /// When a layer type is unknown, the number of types differs from the number of layers, or a layer has a window and
    /// `sliding_window` is missing or malformed.
    pub(super) fn set_windows(
        &mut self,
        config: &Config,
        is_sliding: impl Fn(usize) -> bool,
    ) -> Result<Vec<bool>, ModelError> {
        let sliding = self.layers_of_type(config, "sliding_attention", is_sliding)?;
        if sliding.contains(&true) {
            let window = Window::Sliding(config.size("sliding_window")?);
            self.layers.iter_mut().zip(&sliding).for_each(|(layer, sliding)| layer.window = sliding.then_some(window));
        }
        Ok(sliding)
    }

    /// Gives the layers with a window, true in `sliding`, the rotary embedding of `sliding_attention` in config.json,
    /// by default that of base `theta` without scaling.
    ///
    /// # Errors
    /// When the rotary parameters are malformed.
    pub(super) fn set_local_rotary(&mut self, config: &Config, sliding: &[bool], theta: f64) -> Result<(), ModelError> {
        let head_dim = self.attention.head_dim;
        let local = rope_config::read_kind(config, head_dim, "sliding_attention")?;
        let local = local.unwrap_or_else(|| RotaryScaling::Default.spec(theta, head_dim, Pairing::Halves));
        let local = Arc::new(local);
        for (layer, _) in self.layers.iter_mut().zip(sliding).filter(|(_, is_sliding)| **is_sliding) {
            layer.rotary = Some(Arc::clone(&local));
        }
        Ok(())
    }

    /// Returns true for each layer of the type `named`. config.json's `layer_types` determines the types, which are
    /// `named` or `full_attention`; without that key, `is_named` determines them from the index of the layer.
    ///
    /// # Errors
    /// When a layer type is unknown, or the number of types differs from the number of layers.
    pub(super) fn layers_of_type(
        &self,
        config: &Config,
        named: &str,
        is_named: impl Fn(usize) -> bool,
    ) -> Result<Vec<bool>, ModelError> {
        let num_layers = self.layers.len();
        let Some(types) = config.texts("layer_types")? else { return Ok((0..num_layers).map(is_named).collect()) };
        if types.len() != num_layers {
            let found = format!("{} types", types.len());
            return Err(config.invalid("layer_types", found, &format!("one for each of {num_layers} layers")));
        }
        let is_named = |kind: &&str| match *kind {
            "full_attention" => Ok(false),
            kind if kind == named => Ok(true),
            other => Err(config.invalid("layer_types", other, &format!("{named} or full_attention"))),
        };
        types.iter().map(is_named).collect()
    }

    /// Builds the model's graph.
    ///
    /// # Errors
    /// When sizes do not fit each other, or the ranks cannot share the heads.
    pub(super) fn build(&self) -> Result<Model, ModelError> {
        let hidden_size = self.attention.hidden_size;
        let base = self.root.child(self.names.base);
        let embedding = Embedding::new(&base.child(self.names.embedding), self.vocab_size, hidden_size);
        let mut graph = Graph::default();
        let token_ids = graph.input(Input::TokenIds); // [tokens]
        let tokens = graph.current_tokens(token_ids)?; // [tokens]
        let mut hidden = embedding.apply(&mut graph, tokens)?; // [tokens, hidden]
        hidden = graph.scale(hidden, self.embedding_multiplier)?; // [tokens, hidden]
        if let Some(LearnedPositions { num_positions, first_row }) = self.learned_positions {
            let scope = base.child(self.names.positions);
            let section = Section { num_groups: 1, group_rows: first_row + num_positions, first: first_row };
            let scope = if first_row == 0 { scope } else { scope.section(section) };
            let table = Embedding::new(&scope, num_positions, hidden_size);
            let positions = graph.input(Input::Positions); // [tokens]
            let position = table.apply(&mut graph, positions)?; // [tokens, hidden]
            hidden = graph.add(hidden, position)?; // [tokens, hidden]
        }
        hidden = self.maybe_normed(&mut graph, &base, self.embedding_norm, hidden)?; // [tokens, hidden]
        let inputs = self.layer_inputs.as_ref().map(|form| LayerInputs::new(&base, form, self.layers.len()));
        let inputs = inputs.map(|inputs| inputs.apply(&mut graph, tokens, hidden)).transpose()?; // [tokens, layers * size]
        for layer in 0..self.layers.len() {
            let scope = base.child(self.names.layers).child(layer);
            let is_transposed = self.has_transposed_matrices && !scope.is_gguf();
            let scope = if is_transposed { scope.transposed() } else { scope };
            hidden = self.layer(&mut graph, &scope, layer, hidden)?; // [tokens, hidden]
            if let (Some(form), Some(inputs)) = (&self.layer_inputs, inputs) {
                let input = LayerInput::new(&scope, form, layer);
                hidden = input.apply(&mut graph, hidden, inputs)?; // [tokens, hidden]
            }
            if let Some(name) = self.layer_factor {
                let factor = graph.weight(&scope.weight(name, &[1], Partition::Replicated)); // [1]
                hidden = graph.scale_columns(hidden, factor)?; // [tokens, hidden]
            }
        }
        let hidden = self.normed(&mut graph, &base, self.names.last_norm, hidden)?; // [tokens, hidden]
        let scope = self.root.child(self.names.head);
        let mut linear = if self.is_tied {
            embedding.tied_head()
        } else {
            Linear::vocab(scope.weight("weight", &[self.vocab_size, hidden_size], Partition::Vocab))
        };
        if self.has_head_bias {
            linear = linear.with_bias(scope.weight("bias", &[self.vocab_size], Partition::Vocab));
        }
        let head = Head { linear, multiplier: self.logits_multiplier, soft_cap: self.logits_soft_cap };
        Ok(Model { decoder: graph.finish(&[hidden]), head })
    }

    fn layer(&self, graph: &mut Graph, scope: &WeightScope, layer: usize, x: Value) -> Result<Value, ModelError> {
        match self.block {
            Block::Sequential { before_attention, after_attention, before_mlp, after_mlp } => {
                let normed = self.maybe_normed(graph, scope, before_attention, x)?; // [tokens, hidden]
                let attended = self.attend(graph, scope, layer, normed)?; // [tokens, hidden]
                let attended = self.maybe_normed(graph, scope, after_attention, attended)?; // [tokens, hidden]
                let x = self.joined(graph, x, attended)?; // [tokens, hidden]
                let normed = self.maybe_normed(graph, scope, before_mlp, x)?; // [tokens, hidden]
                let transformed = self.transform(graph, scope, layer, [x, normed])?; // [tokens, hidden]
                let transformed = self.maybe_normed(graph, scope, after_mlp, transformed)?; // [tokens, hidden]
                self.joined(graph, x, transformed) // [tokens, hidden]
            }
            Block::Parallel { before_attention, before_mlp } => {
                let normed = self.normed(graph, scope, before_attention, x)?; // [tokens, hidden]
                let attended = self.attend(graph, scope, layer, normed)?; // [tokens, hidden]
                let for_mlp = if before_mlp == before_attention {
                    normed
                } else {
                    self.normed(graph, scope, before_mlp, x)? // [tokens, hidden]
                };
                let transformed = self.transform(graph, scope, layer, [x, for_mlp])?; // [tokens, hidden]
                let x = self.joined(graph, x, attended)?; // [tokens, hidden]
                self.joined(graph, x, transformed) // [tokens, hidden]
            }
        }
    }

    /// Adds x + multiplier · added to the graph.
    fn joined(&self, graph: &mut Graph, x: Value, added: Value) -> Result<Value, ModelError> {
        let added = graph.scale(added, self.residual_multiplier)?; // [tokens, hidden]
        Ok(graph.add(x, added)?) // [tokens, hidden]
    }

    fn maybe_normed(
        &self,
        graph: &mut Graph,
        scope: &WeightScope,
        name: Option<&str>,
        x: Value,
    ) -> Result<Value, ModelError> {
        name.map_or(Ok(x), |name| self.normed(graph, scope, name, x))
    }

    fn normed(&self, graph: &mut Graph, scope: &WeightScope, name: &str, x: Value) -> Result<Value, ModelError> {
        let norm = Norm::new(&scope.child(name), self.attention.hidden_size, self.norm);
        Ok(norm.apply(graph, x)?) // [tokens, hidden]
    }

    fn attend(&self, graph: &mut Graph, scope: &WeightScope, layer: usize, x: Value) -> Result<Value, ModelError> {
        let LayerForm { rotary, window, attention, shares, .. } = self.layers[layer].clone();
        let (scope, layer) = (scope.child(self.names.attention), AttentionLayer { layer, rotary, window, shares });
        if let Some(form) = &self.latent {
            return Ok(LatentAttention::new(&scope, form, layer)?.apply(graph, x)?); // [tokens, hidden]
        }
        let form = attention.unwrap_or(self.attention);
        let form = AttentionForm { norm: layout::query_key_norm(form.norm, &scope), ..form };
        let attention = SelfAttention::new(&self.attention_scopes(&scope, &form), &form, layer)?;
        Ok(attention.apply(graph, x)?) // [tokens, hidden]
    }

    fn attention_scopes(&self, scope: &WeightScope, form: &AttentionForm) -> AttentionScopes {
        let AttentionForm { num_attention_heads, num_key_value_heads, head_dim, .. } = *form;
        let [q_width, kv_width] = [num_attention_heads, num_key_value_heads].map(|num_heads| num_heads * head_dim);
        let ([q, k, v], o) =
            match layout::projections(self.projections, scope, self.has_fused_heads.then_some(self.names.output)) {
                Projections::Separate => {
                    (["q_proj", "k_proj", "v_proj"].map(|name| scope.child(name)), scope.child(self.names.output))
                }
                Projections::Fused { qkv, output } => {
                    let group_rows = q_width + 2 * kv_width;
                    let part = |first| scope.child(qkv).section(Section { num_groups: 1, group_rows, first });
                    ([0, q_width, q_width + kv_width].map(part), scope.child(output))
                }
                Projections::FusedInBlocks { qkv, num_blocks } => {
                    let rows = q_width / num_blocks;
                    let part = |first| {
                        scope.child(qkv).section(Section { num_groups: num_blocks, group_rows: 3 * rows, first })
                    };
                    ([0, 2 * rows, rows].map(part), scope.child(self.names.output))
                }
                Projections::FusedByHead { qkv, output } => {
                    let queries = q_width / num_key_value_heads;
                    let group_rows = queries + 2 * head_dim;
                    let part = |first| {
                        scope.child(qkv).section(Section { num_groups: num_key_value_heads, group_rows, first })
                    };
                    ([0, queries, queries + head_dim].map(part), scope.child(output))
                }
            };
        let [q_norm, k_norm] = [self.names.query_norm, self.names.key_norm].map(|name| scope.child(name));
        AttentionScopes { q, k, v, o, q_norm, k_norm, sinks: scope.clone(), gate: scope.child("gate_proj") }
    }

    fn experts(&self, form: &ExpertsForm, scope: &WeightScope) -> Experts {
        let ExpertsForm { intermediate_size, num_experts, gating, .. } = *form;
        let hidden_size = self.mlp.hidden_size;
        let size = ExpertsSize { hidden_size, intermediate_size, num_experts, gating };
        let own = if form.scope.is_empty() { scope.clone() } else { scope.child(form.scope) };
        let names = layout::expert_names(form.names, scope, self.has_each_expert);
        let experts = Experts::new(&own, names, &form.router, &size);
        let Some(SharedForm { scope: shared, intermediate_size, gate }) = form.shared else { return experts };
        let gate = gate.map(|gate| {
            let one = LinearSize { num_inputs: hidden_size, num_outputs: 1, has_bias: false };
            Linear::whole(&scope.child(gate), one)
        });
        let size = MlpSize { intermediate_size, ..self.mlp };
        experts.with_shared(self.network(&scope.child(shared), &size), gate)
    }

    /// Returns the feed-forward network in `scope`.
    fn network(&self, scope: &WeightScope, size: &MlpSize) -> Mlp {
        match self.mlp_form {
            MlpForm::Gated { gate, up, down } => {
                let [gate, up, down] = [gate, up, down].map(|name| scope.child(name));
                Mlp::gated([&gate, &up, &down], size)
            }
            MlpForm::GatedFused { gate_up, down } => {
                let width = size.intermediate_size;
                let section = |first| Section { num_groups: 1, group_rows: 2 * width, first };
                let [gate, up] = [0, width].map(|first| scope.child(gate_up).section(section(first)));
                Mlp::gated([&gate, &up, &scope.child(down)], size)
            }
            MlpForm::Plain { up, down } => Mlp::plain([&scope.child(up), &scope.child(down)], size),
            MlpForm::Xielu { up, down, activation } => {
                Mlp::plain([&scope.child(up), &scope.child(down)], size).with_xielu(&scope.child(activation))
            }
        }
    }

    /// Adds the feed-forward network or the experts of a layer to the graph, or both, for the hidden state x and the
    /// same state normalised.
    fn transform(
        &self,
        graph: &mut Graph,
        scope: &WeightScope,
        layer: usize,
        [x, normed]: [Value; 2],
    ) -> Result<Value, ModelError> {
        let LayerForm { has_experts, intermediate_size, .. } = self.layers[layer];
        let experts = self.experts.filter(|_| has_experts).map(|form| self.experts(&form, scope));
        if let (Some(experts), None) = (&experts, self.beside) {
            return Ok(experts.apply(graph, [normed, normed])?); // [tokens, hidden]
        }
        let scope_of_mlp = if self.names.mlp.is_empty() { scope.clone() } else { scope.child(self.names.mlp) };
        let size = MlpSize { intermediate_size: intermediate_size.unwrap_or(self.mlp.intermediate_size), ..self.mlp };
        let made = self.network(&scope_of_mlp, &size).apply(graph, normed)?; // [tokens, hidden]
        let (Some(experts), Some(norms)) = (experts, self.beside) else { return Ok(made) };
        let made = self.normed(graph, scope, norms.after_mlp, made)?; // [tokens, hidden]
        let normed = self.normed(graph, scope, norms.before_experts, x)?; // [tokens, hidden]
        let mixed = experts.apply(graph, [normed, x])?; // [tokens, hidden]
        let mixed = self.normed(graph, scope, norms.after_experts, mixed)?; // [tokens, hidden]
        Ok(graph.add(made, mixed)?) // [tokens, hidden]
    }
}
