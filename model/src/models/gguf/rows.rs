//! The architectures of GGUF files: a row for each, with the keys of config.json and the names of tensors.
//!
//! Entry point: [`find`]. To add an architecture, add a row, and to `special` what no row can say.

use serde_json::{Map, Value};

use super::metadata::Metadata;
use super::special;
use crate::models::ModelError;

/// The origin of the value of a key of config.json. Keys of the metadata are without the name of the architecture.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    /// The value of this key of the metadata. The key of config.json stays absent without it.
    Key(&'static str),
    /// As `Key`; this JSON text if the metadata has no such key.
    Or(&'static str, &'static str),
    /// As `Key`, unless the value is 0.
    Positive(&'static str),
    /// This JSON text.
    Fixed(&'static str),
    /// True if a layer has a tensor of this name.
    Tensor(&'static str),
    /// The first layer with experts.
    FirstSparse,
    /// The last layer with experts.
    LastSparse,
    /// The number of rows of this matrix of the first layer.
    Rows(&'static str),
    /// The part of each head that is rotated.
    Rotated,
    /// The type of each layer, with or without a window.
    Windows,
}

use Origin::{FirstSparse, Fixed, Key, LastSparse, Or, Positive, Rotated, Rows, Tensor, Windows};

type Keys = &'static [(&'static str, Origin)];
type Names = &'static [(&'static str, &'static str)];

/// An architecture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// `general.architecture`
    pub(super) architecture: &'static str,
    /// The Hugging Face architecture.
    pub(super) name: &'static str,
    /// The origins of keys, in groups. A later one wins over an earlier one and over those of [`COMMON`].
    pub(super) keys: &'static [Keys],
    /// The keys of [`TWISTS`] that `finish` reads.
    pub(super) read: &'static [&'static str],
    /// Changes config.json after all keys are there.
    pub(super) finish: fn(Metadata<'_>, &mut Map<String, Value>) -> Result<(), ModelError>,
    /// The prefix of the names of layers in a Hugging Face checkpoint.
    pub(crate) layers: &'static str,
    /// Pairs of the start of a tensor's name and the same in a Hugging Face checkpoint, for tensors outside of layers.
    /// They win over those that all architectures share.
    pub(crate) outer: Names,
    /// The same for the tensors of layers, without the prefix of the layer.
    pub(crate) inner: Names,
    /// True if the converter has added 1 to the weights of norms.
    pub(crate) has_raised_norms: bool,
}

/// Keys that all architectures have.
pub(super) const COMMON: Keys = &[
    ("head_dim", Key("attention.key_length")),
    ("hidden_size", Key("embedding_length")),
    ("intermediate_size", Key("feed_forward_length")),
    ("layer_norm_eps", Key("attention.layer_norm_epsilon")),
    ("layer_norm_epsilon", Key("attention.layer_norm_epsilon")),
    ("max_position_embeddings", Key("context_length")),
    ("norm_eps", Key("attention.layer_norm_epsilon")),
    ("norm_epsilon", Key("attention.layer_norm_epsilon")),
    ("num_attention_heads", Key("attention.head_count")),
    ("num_hidden_layers", Key("block_count")),
    ("num_key_value_heads", Key("attention.head_count_kv")),
    ("rms_norm_eps", Key("attention.layer_norm_rms_epsilon")),
    ("rope_theta", Key("rope.freq_base")),
];
/// Keys of the metadata that change the computation of some model. If a row does not read such a key, a file with a
/// value other than 0 there is refused.
pub(super) const TWISTS: [&str; 10] = [
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attention.temperature_scale",
    "attn_logit_softcapping",
    "embedding_scale",
    "expert_count",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
];
/// The rows of queries and keys are sorted so that adjacent values are rotated together.
const SORTED: Keys = &[("rope_interleaved", Fixed("true"))];
const BIASES: Keys = &[("attention_bias", Tensor("attn_q.bias")), ("mlp_bias", Tensor("ffn_up.bias"))];
const WINDOWS: Keys = &[("layer_types", Windows), ("sliding_window", Positive("attention.sliding_window"))];
const ROTATED: Keys = &[("partial_rotary_factor", Rotated)];
const GEMMA: Keys = &[("hidden_act", Fixed("\"gelu_pytorch_tanh\""))];
const GEMMA_2: Keys = &[
    ("query_pre_attn_scalar", Key("attention.key_length")),
    ("sliding_window", Key("attention.sliding_window")),
    ("final_logit_softcapping", Key("final_logit_softcapping")),
];
const FACTORS: Keys = &[
    ("attention_multiplier", Key("attention.scale")),
    ("embedding_multiplier", Key("embedding_scale")),
    ("logits_scaling", Key("logit_scale")),
    ("residual_multiplier", Key("residual_scale")),
];
/// Experts as in Mixtral and Qwen 3.
const EXPERTS: Keys = &[
    ("moe_intermediate_size", Key("expert_feed_forward_length")),
    ("num_experts_per_tok", Key("expert_used_count")),
    ("num_local_experts", Key("expert_count")),
];
const QWEN_EXPERTS: Keys = &[("num_experts", Key("expert_count")), ("num_local_experts", Fixed("null"))];
/// Experts as in DeepSeek V3.
const ROUTED: Keys = &[
    ("first_k_dense_replace", FirstSparse),
    ("moe_intermediate_size", Key("expert_feed_forward_length")),
    ("n_group", Or("expert_group_count", "1")),
    ("n_routed_experts", Key("expert_count")),
    ("n_shared_experts", Or("expert_shared_count", "0")),
    ("norm_topk_prob", Or("expert_weights_norm", "false")),
    ("num_experts_per_tok", Key("expert_used_count")),
    ("routed_scaling_factor", Or("expert_weights_scale", "1.0")),
    ("topk_group", Or("expert_group_used_count", "1")),
];
/// The same keys in the families that call all experts but the shared ones `num_experts`.
const ROUTED_AMONG: Keys = &[
    ("n_routed_experts", Fixed("null")),
    ("n_shared_experts", Fixed("null")),
    ("num_experts", Key("expert_count")),
    ("num_shared_experts", Or("expert_shared_count", "1")),
];

const SHARED_EXPERT: Names = &[
    ("ffn_gate_inp_shexp.", "mlp.shared_expert_gate."),
    ("ffn_gate_shexp.", "mlp.shared_expert.gate_proj."),
    ("ffn_up_shexp.", "mlp.shared_expert.up_proj."),
    ("ffn_down_shexp.", "mlp.shared_expert.down_proj."),
];
const SPARSE_BLOCK: Names = &[
    ("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),
    ("ffn_gate_inp.", "block_sparse_moe.gate."),
    ("ffn_gate_exps.", "block_sparse_moe.experts.gate_proj."),
    ("ffn_up_exps.", "block_sparse_moe.experts.up_proj."),
    ("ffn_down_exps.", "block_sparse_moe.experts.down_proj."),
];
const HUNYUAN: Names = &[
    ("attn_q_norm.", "self_attn.query_layernorm."),
    ("attn_k_norm.", "self_attn.key_layernorm."),
    ("ffn_gate_inp.", "mlp.gate.wg."),
    ("ffn_gate_shexp.", "mlp.shared_mlp.gate_proj."),
    ("ffn_up_shexp.", "mlp.shared_mlp.up_proj."),
    ("ffn_down_shexp.", "mlp.shared_mlp.down_proj."),
];
const GPT_2_OUTER: Names = &[
    ("output_norm.", "transformer.ln_f."),
    ("position_embd.", "transformer.wpe."),
    ("token_embd.", "transformer.wte."),
];
const GPT_2_INNER: Names = &[
    ("attn_norm.", "ln_1."),
    ("attn_output.", "attn.c_proj."),
    ("attn_qkv.", "attn.c_attn."),
    ("ffn_down.", "mlp.c_proj."),
    ("ffn_norm.", "ln_2."),
    ("ffn_up.", "mlp.c_fc."),
];
const POST_NORMS: Names = &[("ffn_norm.", "pre_feedforward_layernorm.")];

const LLAMA: Row = Row {
    architecture: "llama",
    name: "LlamaForCausalLM",
    keys: &[SORTED, BIASES],
    read: &["expert_count"],
    finish: special::llama,
    layers: "model.layers.",
    outer: &[],
    inner: SPARSE_BLOCK,
    has_raised_norms: false,
};
const PLAIN: Row = Row { keys: &[BIASES], read: &[], finish: special::nothing, inner: &[], ..LLAMA };
const GEMMA_ROW: Row = Row { has_raised_norms: true, keys: &[GEMMA], ..PLAIN };

/// All architectures, in the order of their names.
#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    Row {
        architecture: "afmoe", name: "AfmoeForCausalLM",
        // llama.cpp always multiplies embeddings. Its converter leaves out `expert_weights_norm` if config.json has no
        // `route_norm`, as transformers writes it, which always normalises.
        keys: &[BIASES, WINDOWS, EXPERTS, QWEN_EXPERTS, &[("mup_enabled", Fixed("true")),
            ("num_dense_layers", Or("leading_dense_block_count", "0")), ("num_shared_experts", Or("expert_shared_count", "0")),
            ("route_norm", Or("expert_weights_norm", "true")), ("route_scale", Or("expert_weights_scale", "1.0"))]],
        inner: &[("attn_gate.", "self_attn.gate_proj."), ("exp_probs_b.bias", "mlp.expert_bias"),
            ("ffn_gate_inp.", "mlp.router.gate."), ("ffn_norm.", "pre_mlp_layernorm."),
            ("post_ffw_norm.", "post_mlp_layernorm.")],
        ..PLAIN
    },
    Row {
        architecture: "apertus", name: "ApertusForCausalLM", finish: special::unscaled_by_default,
        inner: &[("attn_norm.", "attention_layernorm."), ("ffn_norm.", "feedforward_layernorm.")], ..PLAIN
    },
    Row { architecture: "arcee", name: "ArceeForCausalLM", keys: &[SORTED, BIASES], ..PLAIN },
    Row {
        architecture: "bloom", name: "BloomForCausalLM", layers: "transformer.h.",
        outer: &[("output_norm.", "transformer.ln_f."), ("token_embd.", "transformer.word_embeddings."),
            ("token_embd_norm.", "transformer.word_embeddings_layernorm.")],
        inner: &[("attn_output.", "self_attention.dense."), ("attn_qkv.", "self_attention.query_key_value."),
            ("ffn_down.", "mlp.dense_4h_to_h."), ("ffn_up.", "mlp.dense_h_to_4h.")],
        keys: &[], ..PLAIN
    },
    Row {
        architecture: "chatglm", name: "GlmForCausalLM", keys: &[BIASES, ROTATED],
        inner: &[("ffn_up.", "mlp.gate_up_proj.")], ..PLAIN
    },
    Row {
        architecture: "cohere2", name: "Cohere2ForCausalLM",
        keys: &[&[("logit_scale", Key("logit_scale")), ("sliding_window", Key("attention.sliding_window"))], BIASES], ..PLAIN
    },
    Row {
        architecture: "command-r", name: "CohereForCausalLM",
        keys: &[&[("logit_scale", Key("logit_scale")), ("use_qk_norm", Tensor("attn_q_norm.weight"))], BIASES], ..PLAIN
    },
    Row { architecture: "deepseek2", name: "DeepseekV3ForCausalLM", keys: &[ROUTED], finish: special::deepseek2, ..PLAIN },
    Row { architecture: "dots1", name: "Dots1ForCausalLM", keys: &[BIASES, ROUTED], ..PLAIN },
    Row { architecture: "ernie4_5", name: "Ernie4_5ForCausalLM", keys: &[&[("use_bias", Tensor("attn_q.bias"))]], ..PLAIN },
    Row {
        architecture: "ernie4_5-moe", name: "Ernie4_5_MoeForCausalLM",
        keys: &[&[("moe_intermediate_size", Key("expert_feed_forward_length")), ("moe_k", Key("expert_used_count")),
            ("moe_layer_interval", Or("interleave_moe_layer_step", "1")),
            ("moe_layer_start_index", FirstSparse), ("moe_layer_end_index", LastSparse), ("moe_num_experts", Key("expert_count")),
            ("moe_num_shared_experts", Or("expert_shared_count", "0")), ("use_bias", Tensor("attn_q.bias"))]],
        inner: &[("exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias")], ..PLAIN
    },
    Row {
        architecture: "exaone-moe", name: "ExaoneMoeForCausalLM", keys: &[WINDOWS, ROUTED, ROUTED_AMONG],
        inner: &[("exp_probs_b.bias", "mlp.e_score_correction_bias")], ..PLAIN
    },
    Row { architecture: "exaone4", name: "Exaone4ForCausalLM", keys: &[WINDOWS], ..PLAIN },
    Row {
        architecture: "falcon", name: "FalconForCausalLM", layers: "transformer.h.", finish: special::falcon,
        outer: &[("output_norm.", "transformer.ln_f."), ("token_embd.", "transformer.word_embeddings.")],
        inner: &[("attn_norm_2.", "ln_attn."), ("attn_output.", "self_attention.dense."),
            ("attn_qkv.", "self_attention.query_key_value."), ("ffn_down.", "mlp.dense_4h_to_h."),
            ("ffn_up.", "mlp.dense_h_to_4h.")],
        keys: &[], ..PLAIN
    },
    Row { architecture: "gemma", name: "GemmaForCausalLM", ..GEMMA_ROW },
    Row {
        architecture: "gemma2", name: "Gemma2ForCausalLM", finish: special::gemma2, inner: POST_NORMS,
        keys: &[GEMMA, GEMMA_2, &[("attn_logit_softcapping", Key("attn_logit_softcapping"))]], ..GEMMA_ROW
    },
    Row {
        architecture: "gemma3", name: "Gemma3ForCausalLM", finish: special::gemma2, inner: POST_NORMS,
        keys: &[GEMMA, GEMMA_2, &[("rope_local_base_freq", Key("rope.freq_base_swa"))]], ..GEMMA_ROW
    },
    Row {
        architecture: "gemma4", name: "Gemma4ForCausalLM", finish: special::gemma4,
        read: &["expert_count"],
        keys: &[GEMMA, WINDOWS, &[("attention_bias", Tensor("attn_q.bias")),
            ("final_logit_softcapping", Key("final_logit_softcapping")),
            ("hidden_size_per_layer_input", Or("embedding_length_per_layer_input", "0")),
            ("num_kv_shared_layers", Or("attention.shared_kv_layers", "0"))]],
        outer: &[("per_layer_model_proj.", "model.per_layer_model_projection."),
            ("per_layer_proj_norm.", "model.per_layer_projection_norm."),
            ("per_layer_token_embd.", "model.embed_tokens_per_layer.")],
        inner: &[("ffn_down_exps.scale", "router.per_expert_scale"), ("ffn_down_exps.weight", "experts.down_proj"),
            ("ffn_gate_inp.scale", "router.scale"), ("ffn_gate_inp.", "router.proj."),
            ("ffn_gate_up_exps.weight", "experts.gate_up_proj"), ("ffn_norm.", "pre_feedforward_layernorm."),
            ("inp_gate.", "per_layer_input_gate."), ("layer_output_scale.weight", "layer_scalar"),
            ("post_ffw_norm_1.", "post_feedforward_layernorm_1."), ("post_ffw_norm_2.", "post_feedforward_layernorm_2."),
            ("post_norm.", "post_per_layer_input_norm."), ("pre_ffw_norm_2.", "pre_feedforward_layernorm_2."),
            ("proj.", "per_layer_projection.")],
        ..PLAIN
    },
    Row {
        architecture: "glm4", name: "Glm4ForCausalLM", keys: &[BIASES, ROTATED], finish: special::without_sections,
        inner: &[("ffn_up.", "mlp.gate_up_proj."), ("post_attention_norm.", "post_self_attn_layernorm."),
            ("post_ffw_norm.", "post_mlp_layernorm.")],
        ..PLAIN
    },
    Row {
        architecture: "glm4moe", name: "Glm4MoeForCausalLM",
        // If all layers have experts, nothing has the width of a feed-forward network.
        keys: &[BIASES, ROTATED, ROUTED, &[("intermediate_size", Or("feed_forward_length", "1")),
            ("use_qk_norm", Tensor("attn_q_norm.weight"))]],
        ..PLAIN
    },
    Row {
        architecture: "gpt-oss", name: "GptOssForCausalLM", finish: special::gpt_oss,
        keys: &[EXPERTS, &[("attention_bias", Tensor("attn_q.bias")), ("sliding_window", Key("attention.sliding_window"))]],
        inner: &[("ffn_gate_inp.", "mlp.router.")], ..PLAIN
    },
    Row {
        architecture: "gpt2", name: "GPT2LMHeadModel", layers: "transformer.h.", outer: GPT_2_OUTER, inner: GPT_2_INNER,
        keys: &[], finish: special::gpt2, ..PLAIN
    },
    Row {
        architecture: "gptneox", name: "GPTNeoXForCausalLM", layers: "gpt_neox.layers.",
        outer: &[("output.", "embed_out."), ("output_norm.", "gpt_neox.final_layer_norm."),
            ("token_embd.", "gpt_neox.embed_in.")],
        inner: &[("attn_output.", "attention.dense."), ("attn_qkv.", "attention.query_key_value."),
            ("ffn_down.", "mlp.dense_4h_to_h."), ("ffn_up.", "mlp.dense_h_to_4h.")],
        keys: &[ROTATED, &[("attention_bias", Tensor("attn_qkv.bias")), ("hidden_act", Fixed("\"gelu\"")),
            ("use_parallel_residual", Key("use_parallel_residual"))]],
        ..PLAIN
    },
    Row { architecture: "granite", name: "GraniteForCausalLM", keys: &[SORTED, BIASES, FACTORS], ..PLAIN },
    Row {
        architecture: "granite_swa", name: "GraniteSWAForCausalLM", keys: &[SORTED, BIASES, FACTORS, WINDOWS],
        finish: special::granite_swa, ..PLAIN
    },
    Row {
        architecture: "granitemoe", name: "GraniteMoeSharedForCausalLM", finish: special::granite_moe,
        keys: &[SORTED, BIASES, FACTORS, EXPERTS,
            &[("shared_intermediate_size", Or("expert_shared_feed_forward_length", "0"))]],
        inner: &[("ffn_gate_inp.", "block_sparse_moe.router.layer."),
            ("ffn_gate_exps.", "block_sparse_moe.experts.gate_proj."), ("ffn_up_exps.", "block_sparse_moe.experts.up_proj."),
            ("ffn_down_exps.", "block_sparse_moe.experts.down_proj."), ("ffn_gate_shexp.", "shared_mlp.gate_proj."),
            ("ffn_up_shexp.", "shared_mlp.up_proj."), ("ffn_down_shexp.", "shared_mlp.down_proj.")],
        ..PLAIN
    },
    Row { architecture: "hunyuan-dense", name: "HunYuanDenseV1ForCausalLM", inner: HUNYUAN, ..PLAIN },
    Row {
        architecture: "hunyuan-moe", name: "HunYuanMoEV1ForCausalLM", inner: HUNYUAN,
        keys: &[BIASES, QWEN_EXPERTS, &[("moe_intermediate_size", Key("expert_feed_forward_length")),
            ("moe_topk", Key("expert_used_count")), ("num_shared_expert", Key("expert_shared_count"))]],
        ..PLAIN
    },
    Row {
        architecture: "hy_v3", name: "HYV3ForCausalLM", finish: special::hy_v3,
        keys: &[BIASES, EXPERTS, QWEN_EXPERTS, &[("norm_topk_prob", Or("expert_weights_norm", "false")),
            ("router_scaling_factor", Or("expert_weights_scale", "1.0"))]],
        inner: &[("exp_probs_b.bias", "mlp.expert_bias"), ("ffn_gate_inp.", "mlp.router.gate."),
            ("ffn_gate_shexp.", "mlp.shared_mlp.gate_proj."), ("ffn_up_shexp.", "mlp.shared_mlp.up_proj."),
            ("ffn_down_shexp.", "mlp.shared_mlp.down_proj.")],
        ..PLAIN
    },
    Row { architecture: "jais2", name: "Jais2ForCausalLM", keys: &[BIASES, &[("hidden_act", Fixed("\"relu2\""))]], ..PLAIN },
    LLAMA,
    Row {
        architecture: "llama4", name: "Llama4ForCausalLM", finish: special::llama4,
        keys: &[BIASES, EXPERTS, &[("intermediate_size", Key("expert_feed_forward_length")),
            ("intermediate_size_mlp", Key("feed_forward_length"))]],
        inner: &[("ffn_down.", "feed_forward.down_proj."), ("ffn_down_exps.", "feed_forward.experts.down_proj."),
            ("ffn_down_shexp.", "feed_forward.shared_expert.down_proj."), ("ffn_gate.", "feed_forward.gate_proj."),
            ("ffn_gate_exps.", "feed_forward.experts.gate_proj."), ("ffn_gate_inp.", "feed_forward.router."),
            ("ffn_gate_shexp.", "feed_forward.shared_expert.gate_proj."), ("ffn_up.", "feed_forward.up_proj."),
            ("ffn_up_exps.", "feed_forward.experts.up_proj."), ("ffn_up_shexp.", "feed_forward.shared_expert.up_proj.")],
        ..PLAIN
    },
    Row { architecture: "minicpm3", name: "MiniCPM3ForCausalLM", finish: special::latent, ..PLAIN },
    Row {
        architecture: "minimax-m2", name: "MiniMaxM2ForCausalLM", inner: SPARSE_BLOCK,
        keys: &[EXPERTS, &[("rotary_dim", Key("rope.dimension_count"))]], ..PLAIN
    },
    Row {
        architecture: "mistral3", name: "MistralForCausalLM", keys: &[SORTED], finish: special::mistral3,
        read: &["attention.temperature_scale"], ..PLAIN
    },
    Row {
        architecture: "mistral4", name: "Mistral3ForConditionalGeneration", keys: &[ROUTED], finish: special::mistral4,
        read: &["attention.temperature_scale"],
        layers: "model.language_model.layers.",
        outer: &[("output_norm.", "model.language_model.norm."), ("token_embd.", "model.language_model.embed_tokens.")],
        inner: &[("ffn_down_exps.weight", "mlp.experts.down_proj"), ("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj")],
        ..PLAIN
    },
    Row {
        architecture: "mpt", name: "MptForCausalLM", layers: "transformer.blocks.", finish: special::mpt,
        read: &["attention.clamp_kqv", "attention.max_alibi_bias"],
        outer: &[("output_norm.", "transformer.norm_f."), ("token_embd.", "transformer.wte.")],
        inner: &[("attn_norm.", "norm_1."), ("attn_output.", "attn.out_proj."), ("attn_qkv.", "attn.Wqkv."),
            ("ffn_down.", "ffn.down_proj."), ("ffn_norm.", "norm_2."), ("ffn_up.", "ffn.up_proj.")],
        keys: &[], ..PLAIN
    },
    Row {
        architecture: "nemotron", name: "NemotronForCausalLM", has_raised_norms: true,
        keys: &[BIASES, ROTATED, &[("hidden_act", Fixed("\"relu2\""))]], ..PLAIN
    },
    Row {
        architecture: "olmo", name: "OlmoForCausalLM", keys: &[SORTED, &[("clip_qkv", Key("attention.clamp_kqv"))]], ..PLAIN
    },
    Row { architecture: "olmo2", name: "Olmo2ForCausalLM", keys: &[BIASES, WINDOWS], finish: special::olmo2, ..PLAIN },
    Row { architecture: "olmoe", name: "OlmoeForCausalLM", keys: &[BIASES, EXPERTS, QWEN_EXPERTS], ..PLAIN },
    Row {
        architecture: "phi2", name: "PhiForCausalLM", outer: &[("output_norm.", "model.final_layernorm.")],
        inner: &[("attn_output.", "self_attn.dense."), ("ffn_down.", "mlp.fc2."), ("ffn_up.", "mlp.fc1.")],
        keys: &[ROTATED, &[("hidden_act", Fixed("\"gelu_new\"")), ("intermediate_size", Rows("ffn_up.weight")),
            ("qk_layernorm", Tensor("attn_q_norm.weight"))]],
        ..PLAIN
    },
    Row {
        architecture: "phi3", name: "Phi3ForCausalLM",
        keys: &[ROTATED, &[("sliding_window", Positive("attention.sliding_window"))]],
        inner: &[("ffn_up.", "mlp.gate_up_proj.")], ..PLAIN
    },
    Row { architecture: "qwen2", name: "Qwen2ForCausalLM", keys: &[], ..PLAIN },
    Row {
        architecture: "qwen2moe", name: "Qwen2MoeForCausalLM", inner: SHARED_EXPERT,
        keys: &[EXPERTS, QWEN_EXPERTS, &[("norm_topk_prob", Or("expert_weights_norm", "false")),
            ("qkv_bias", Tensor("attn_q.bias")),
            ("shared_expert_intermediate_size", Key("expert_shared_feed_forward_length"))]],
        ..PLAIN
    },
    Row { architecture: "qwen2vl", name: "Qwen2ForCausalLM", keys: &[], ..PLAIN },
    Row { architecture: "qwen3", name: "Qwen3ForCausalLM", ..PLAIN },
    Row {
        architecture: "qwen3moe", name: "Qwen3MoeForCausalLM",
        keys: &[BIASES, EXPERTS, QWEN_EXPERTS, &[("norm_topk_prob", Fixed("true"))]], ..PLAIN
    },
    Row { architecture: "qwen3vl", name: "Qwen3ForCausalLM", ..PLAIN },
    Row {
        architecture: "qwen3vlmoe", name: "Qwen3MoeForCausalLM",
        keys: &[BIASES, EXPERTS, QWEN_EXPERTS, &[("norm_topk_prob", Fixed("true"))]], ..PLAIN
    },
    Row {
        architecture: "seed_oss", name: "SeedOssForCausalLM",
        keys: &[BIASES, &[("attention_out_bias", Tensor("attn_output.bias"))]], ..PLAIN
    },
    Row { architecture: "smollm3", name: "SmolLM3ForCausalLM", keys: &[SORTED, BIASES], ..PLAIN },
    Row {
        architecture: "stablelm", name: "StableLmForCausalLM",
        keys: &[ROTATED, &[("qk_layernorm", Tensor("attn_q_norm.weight")), ("use_qkv_bias", Tensor("attn_q.bias")),
            ("use_parallel_residual", Key("use_parallel_residual"))]],
        inner: &[("attn_q_norm.", "self_attn.q_layernorm."), ("attn_k_norm.", "self_attn.k_layernorm.")], ..PLAIN
    },
    Row {
        architecture: "starcoder", name: "GPTBigCodeForCausalLM", layers: "transformer.h.", outer: GPT_2_OUTER,
        inner: GPT_2_INNER, keys: &[], finish: special::gpt2, ..PLAIN
    },
    Row {
        architecture: "starcoder2", name: "Starcoder2ForCausalLM", keys: &[&[("use_bias", Tensor("attn_q.bias"))]],
        inner: &[("ffn_down.", "mlp.c_proj."), ("ffn_up.", "mlp.c_fc.")], ..PLAIN
    },
];

impl Row {
    /// True if this row reads a key of the metadata.
    pub(super) fn reads(&self, key: &str) -> bool {
        let origins = self.keys.iter().copied().flatten().map(|(_, origin)| origin);
        let mut keys = origins.filter_map(|origin| match origin {
            Key(key) | Or(key, _) | Positive(key) => Some(*key),
            Fixed(_) | Tensor(_) | FirstSparse | LastSparse | Rows(_) | Rotated | Windows => None,
        });
        keys.any(|read| read == key) || self.read.contains(&key)
    }
}

/// Returns the row of an architecture.
pub(crate) fn find(architecture: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.architecture == architecture)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ARCHITECTURES;

    #[test]
    fn architectures_are_in_order_and_have_a_builder() {
        assert!(ROWS.windows(2).all(|pair| pair[0].architecture < pair[1].architecture));
        for row in ROWS {
            assert!(ARCHITECTURES.iter().any(|(name, _)| *name == row.name), "{}", row.name);
        }
    }

    #[test]
    fn fixed_values_are_json() {
        for (key, origin) in ROWS.iter().flat_map(|row| row.keys).flat_map(|group| *group) {
            if let Fixed(json) | Or(_, json) = origin {
                assert!(serde_json::from_str::<Value>(json).is_ok(), "{key}: {json}");
            }
        }
    }
}
