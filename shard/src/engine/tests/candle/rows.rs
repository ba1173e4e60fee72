//! The table of checkpoints in safetensors that candle reads too, with the results that are expected.
//!
//! To add a row: `families` has the functions that load models. If candle and this server do not agree, find out who is
//! right, and add the reason to `docs/oracle.md`.

use super::Expected::{Agrees, Differs, Refuses};
use super::Row;
use super::families::{
    bigcode, deepseek2, falcon, gemma, gemma2, gemma3, gemma3_by_token, gemma4, gemma4_text, gemma4_undone, glm4_new,
    granite, granite_undone, helium, llama, mistral, mixtral, olmo, olmo2, phi, phi3, qwen2, qwen2_moe, qwen3,
    qwen3_moe, qwen3_vl, qwen3_vl_by_token, smollm3, stable_lm, starcoder2,
};
use super::row;

/// Embeddings that are the head too, for a model that always reads a head.
const HEAD: &str = r#"{"head": "model.embed_tokens"}"#;
const FALCON_HEAD: &str = r#"{"head": "transformer.word_embeddings"}"#;
const FALCON_HEADS: &str = r#"{"head": "transformer.word_embeddings", "n_head_kv": 4}"#;
const TANH: &str = r#"{"activation": "gelu_pytorch_tanh"}"#;
const TIED: &str = r#"{"tie_word_embeddings": true}"#;
const NO_WINDOW: &str = r#"{"sliding_window": null}"#;
const QWEN2_FULL: &str = r#"{"sliding_window": null, "use_sliding_window": false,
    "layer_types": ["full_attention", "full_attention", "full_attention"]}"#;
/// A window that no sequence fills, for a model that always reads one.
const WIDE_WINDOW: &str = r#"{"sliding_window": 4096}"#;
const MIXTRAL: &str = r#"{"sliding_window": 4096, "use_flash_attn": false}"#;
const LLAMA3: &str = r#"{"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0,
    "low_freq_factor": 1.0, "original_max_position_embeddings": 32}}"#;
const PLAIN_ROTARY: &str = r#"{"rope_parameters": {"rope_type": "default", "factor": null,
    "original_max_position_embeddings": null}}"#;
const NO_BIAS: &str = r#"{"attention_bias": false, "mlp_bias": false}"#;
const GEMMA2_PLAIN: &str = r#"{"sliding_window": 4096, "query_pre_attn_scalar": 16}"#;
const GEMMA3_PLAIN: &str = r#"{"rope_parameters": {"full_attention": {"rope_type": "default", "factor": null}}}"#;
const GEMMA3_ONE_HEAD: &str = r#"{"sliding_window": 4096, "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}"#;
const GEMMA4_UNSHARED: &str = r#"{"text_config": {"num_hidden_layers": 2, "num_kv_shared_layers": 0, "sliding_window": 4096,
    "layer_types": ["sliding_attention", "full_attention"], "per_layer_config": {"1": {"head_dim": 32}, "3": null}}}"#;
const GRANITE_PLAIN: &str = r#"{"attention_bias": false, "mlp_bias": false, "attention_multiplier": 0.28867513459481287,
    "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0}"#;
const QWEN3_MOE: &str = r#"{"num_experts": 16, "max_window_layers": 28}"#;
const QWEN3_MOE_DENSE: &str = r#"{"num_experts": 5, "max_window_layers": 28}"#;
const QWEN3_VL: &str = r#"{"text_config": {"attention_bias": false}}"#;
const QWEN3_VL_TIED: &str = r#"{"text_config": {"tie_word_embeddings": true}}"#;
const GREEDY: &str = r#"{"topk_method": "greedy"}"#;
/// Defaults of transformers that candle does not know, and the keys of published checkpoints.
const YARN: &str = r#"{"rope_scaling": {"beta_fast": 32, "beta_slow": 1}}"#;
const ONE_GROUP: &str = r#"{"n_group": 1, "topk_group": 1}"#;
const DEEPSEEK_V3: &str = r#"{"topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1}}"#;
const EVERY_SECOND: &str = r#"{"sliding_window_pattern": 2}"#;
const EVERY_THIRD: &str = r#"{"sliding_window_pattern": 3}"#;
const GEMMA4_HEADS: &str = r#"{"text_config": {"global_head_dim": 32}}"#;
const GEMMA4_ONE_HEAD: &str = r#"{"global_head_dim": 24, "num_global_key_value_heads": 1}"#;
const NO_NORMS: &str = r#"{"qk_layernorm": false}"#;

pub(super) const ROWS: &[Row] = &[
    row("llama", llama, "../tiny-llama-gqa-untied", Agrees),
    row("llama", llama, "../tiny-llama-gqa-untied", Agrees).both(TIED),
    row("llama", llama, "../tiny-llama-gqa-untied", Agrees).both(LLAMA3),
    row("mistral", mistral, "mistral-full", Refuses("lm_head")),
    row("mistral", mistral, "mistral-full", Agrees).candle(HEAD),
    row("mistral", mistral, "mistral-window", Agrees).both(NO_WINDOW),
    row("mistral", mistral, "mistral-window", Differs),
    row("mixtral", mixtral, "mixtral", Refuses("invalid type: null")),
    row("mixtral", mixtral, "mixtral", Refuses("shape mismatch")).candle(MIXTRAL),
    row("mixtral", mixtral, "mixtral-published-heads", Agrees).candle(MIXTRAL),
    row("qwen2", qwen2, "qwen2-tied", Refuses("invalid type: null")),
    row("qwen2", qwen2, "qwen2-tied", Agrees).candle(WIDE_WINDOW),
    row("qwen2", qwen2, "qwen2-window", Agrees).both(QWEN2_FULL).candle(WIDE_WINDOW),
    row("qwen2", qwen2, "qwen2-window", Differs),
    row("qwen2_moe", qwen2_moe, "qwen2-moe", Differs),
    row("qwen2_moe", qwen2_moe, "qwen2-moe", Agrees).candle(WIDE_WINDOW),
    row("qwen2_moe", qwen2_moe, "qwen2-moe-sparse", Refuses("q_proj.bias")),
    row("qwen3", qwen3, "qwen3-tied", Agrees),
    row("qwen3", qwen3, "qwen3-bias-yarn", Agrees).both(PLAIN_ROTARY),
    row("qwen3", qwen3, "qwen3-bias-yarn", Differs),
    row("qwen3_moe", qwen3_moe, "qwen3-moe", Agrees).candle(QWEN3_MOE),
    row("qwen3_moe", qwen3_moe, "qwen3-moe-dense-layer", Refuses("layers.1.mlp.gate")).candle(QWEN3_MOE_DENSE),
    row("qwen3_vl", qwen3_vl, "qwen3-vl", Refuses("lm_head.bias")),
    row("qwen3_vl", qwen3_vl_by_token, "qwen3-vl-tied", Agrees).both(QWEN3_VL).candle(QWEN3_VL_TIED),
    row("qwen3_vl", qwen3_vl, "qwen3-vl-tied", Differs).both(QWEN3_VL).candle(QWEN3_VL_TIED),
    row("gemma", gemma, "gemma", Agrees),
    row("gemma", gemma, "gemma-wide-heads", Agrees),
    row("gemma2", gemma2, "gemma2-no-caps", Agrees).both(WIDE_WINDOW),
    row("gemma2", gemma2, "gemma2", Agrees).both(GEMMA2_PLAIN),
    row("gemma2", gemma2, "gemma2", Differs).both(WIDE_WINDOW),
    row("gemma2", gemma2, "gemma2-no-caps", Differs),
    row("gemma3", gemma3, "gemma3-one-global", Agrees).both(GEMMA3_ONE_HEAD).candle(EVERY_SECOND),
    row("gemma3", gemma3_by_token, "gemma3", Agrees).both(GEMMA3_PLAIN).candle(EVERY_THIRD),
    row("gemma3", gemma3, "gemma3", Refuses("contiguous")).both(GEMMA3_PLAIN).candle(EVERY_THIRD),
    row("gemma3", gemma3_by_token, "gemma3", Differs).candle(EVERY_THIRD),
    row("gemma4", gemma4_undone, "gemma4-unified-shared", Agrees).both(GEMMA4_UNSHARED).candle(GEMMA4_HEADS),
    row("gemma4", gemma4_text, "gemma4-unified-shared", Differs).both(GEMMA4_UNSHARED).candle(GEMMA4_HEADS),
    row("gemma4", gemma4, "gemma4-keys-as-values", Refuses("v_proj")).candle(GEMMA4_ONE_HEAD),
    row("phi", phi, "phi", Agrees),
    row("phi", phi, "phi-norms", Refuses("layer-norm")),
    row("phi", phi, "phi-norms", Agrees).both(NO_NORMS),
    row("phi3", phi3, "phi3-window", Agrees).both(NO_WINDOW),
    row("phi3", phi3, "phi3-window", Differs),
    row("phi3", phi3, "phi3-short", Differs),
    row("phi3", phi3, "phi3-long", Differs),
    row("starcoder2", starcoder2, "starcoder2", Agrees).both(NO_WINDOW),
    row("starcoder2", starcoder2, "starcoder2", Differs),
    row("starcoder2", starcoder2, "starcoder2-no-bias", Agrees).both(TIED),
    row("starcoder2", starcoder2, "starcoder2-no-bias", Differs),
    row("bigcode", bigcode, "gpt-bigcode", Agrees),
    row("bigcode", bigcode, "gpt-bigcode-heads", Refuses("Shape mismatch")),
    row("falcon", falcon, "falcon-multi-query", Refuses("lm_head")),
    row("falcon", falcon, "falcon-multi-query", Differs).candle(FALCON_HEAD),
    row("falcon", falcon, "falcon-multi-query", Agrees).both(TANH).candle(FALCON_HEAD),
    row("falcon", falcon, "falcon-sequential", Agrees).both(TANH).candle(FALCON_HEADS),
    row("falcon", falcon, "falcon-sequential", Refuses("Shape mismatch")).candle(FALCON_HEAD),
    row("falcon", falcon, "falcon-new", Refuses("shape mismatch")),
    row("glm4_new", glm4_new, "glm4", Agrees),
    row("glm4_new", glm4_new, "glm4-bias", Agrees),
    row("granite", granite, "granite-bias", Agrees).both(GRANITE_PLAIN),
    row("granite", granite_undone, "granite", Agrees).candle(HEAD),
    row("granite", granite_undone, "granite-bias", Agrees).both(NO_BIAS),
    row("granite", granite, "granite", Differs).candle(HEAD),
    row("granite", granite, "granite-bias", Differs),
    row("olmo", olmo, "olmo", Agrees),
    row("olmo", olmo, "olmo-clipped", Agrees),
    row("olmo2", olmo2, "olmo2", Agrees),
    row("olmo2", olmo2, "olmo2-tied", Agrees),
    row("stable_lm", stable_lm, "stablelm", Agrees),
    row("stable_lm", stable_lm, "stablelm-norms", Refuses("post_attention_layernorm")),
    row("helium", helium, "helium", Agrees),
    row("helium", helium, "helium-bias", Agrees).both(NO_BIAS),
    row("helium", helium, "helium-bias", Refuses("o_proj.bias")),
    row("smol", smollm3, "smollm3", Agrees),
    row("smol", smollm3, "smollm3-no-rope", Agrees),
    row("deepseek2", deepseek2, "deepseek-v2", Agrees).both(GREEDY).candle(YARN),
    row("deepseek2", deepseek2, "deepseek-v2", Refuses("gather invalid index")).candle(YARN),
    row("deepseek2", deepseek2, "deepseek-v2-greedy", Agrees).candle(ONE_GROUP),
    row("deepseek2", deepseek2, "deepseek-v3", Refuses("noaux_tc")).candle(DEEPSEEK_V3),
];
