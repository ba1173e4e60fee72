//! Llama 2 and 3: pre-norm, grouped-query attention with rotary positions, gated MLP.
//!
//! Papers: Touvron et al., 2023 (arXiv 2307.09288); Llama team, 2024 (arXiv 2407.21783). Follows
//! `transformers/models/llama/modeling_llama.py`. The files of most other models describe their differences from Llama.

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "mlp_bias"])?;
    Decoder::llama(config, dtype, num_ranks)?.build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{DType, Dim, Graph, Shape};

    fn config(changes: &str) -> Config {
        let base = r#""architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "rms_norm_eps": 1e-5"#;
        Config::parse(format!("{{{base}{changes}}}").as_bytes()).unwrap()
    }

    fn message(changes: &str) -> String {
        build(&config(changes), FloatType::Bf16, 1).unwrap_err().to_string()
    }

    #[test]
    fn the_graph_of_one_layer() {
        let model = build(&config(""), FloatType::Bf16, 1).unwrap();
        insta::assert_snapshot!(model.decoder);
    }

    #[test]
    fn tied_embeddings_share_a_weight() {
        let tied = build(&config(r#", "tie_word_embeddings": true"#), FloatType::F32, 1).unwrap();
        let untied = build(&config(""), FloatType::F32, 1).unwrap();
        assert!(format!("{:?}", tied.head).contains("model.embed_tokens.weight"));
        assert!(format!("{:?}", untied.head).contains("lm_head.weight"));
    }

    #[test]
    fn biases_are_weights_where_the_config_says_so() {
        let model = build(&config(r#", "attention_bias": true, "mlp_bias": true"#), FloatType::F32, 1).unwrap();
        let biases = model.decoder.weights().filter(|spec| spec.name.ends_with(".bias")).count();
        assert_eq!(biases, 7);
    }

    #[test]
    fn ranks_split_heads_outputs_and_vocabulary() {
        let model = super::super::build(&config(""), FloatType::Bf16, 2).unwrap();
        insta::assert_snapshot!(model.decoder);
        let error = super::super::build(&config(""), FloatType::Bf16, 8).unwrap_err().to_string();
        insta::assert_snapshot!(
            error,
            @"config.json: num_attention_heads is 4: --num-shard may be 1, 2, 4; with --devices-per-shard, the product of both must be one of these"
        );
    }

    #[test]
    fn uneven_shares_are_padded_and_few_kv_heads_are_copied() {
        let odd = config(r#", "vocab_size": 101, "intermediate_size": 49, "tie_word_embeddings": true"#);
        let model = super::super::build(&odd, FloatType::Bf16, 4).unwrap();
        insta::assert_snapshot!(model.decoder);
        let mut graph = Graph::default();
        let hidden = graph.argument(0, Shape::new([Dim::Rows, Dim::Fixed(32)]), DType::F32);
        let logits = model.head.apply(&mut graph, hidden).unwrap();
        insta::assert_snapshot!(graph.finish(&[logits]), @r"
        %0 = argument 0 : [rows, 32] float32
        %1 = weight model.embed_tokens.weight Vocab : [26, 32] bfloat16
        %2 = linear %0, %1 : [rows, 26] float32
        %3 = all_gather %2 : [rows, 104] float32
        %4 = columns %3 first=0 : [rows, 101] float32
        return %4
        ");
    }

    #[test]
    fn unsupported_fields_are_refused_by_name() {
        insta::assert_snapshot!(
            message(r#", "hidden_act": "abc""#),
            @r#"config.json: hidden_act is "abc", expected silu, gelu, gelu_new, gelu_pytorch_tanh, relu or relu2"#
        );
        insta::assert_snapshot!(
            message(r#", "final_logit_softcapping": 30.0"#),
            @"config.json: final_logit_softcapping is 30.0; only null is supported"
        );
        insta::assert_snapshot!(
            message(r#", "head_dim": "x""#),
            @r#"config.json: head_dim is "x", expected a positive integer up to 65536"#
        );
        let odd = message(r#", "num_key_value_heads": 3"#);
        insta::assert_snapshot!(
            odd,
            @"config.json does not describe a model: paged_attention of [tokens, 4, 8] float32, [tokens, 3, 8] float32, [tokens, 3, 8] float32: expected [tokens, heads, head_dim], [tokens, kv_heads, head_dim], [tokens, kv_heads, value_dim] and maybe sinks [heads], with the sizes of the states, heads a multiple of kv_heads, a window of at least 1 and at most that of the states, and the same pair of keys and values wherever one of them is used"
        );
    }
}
