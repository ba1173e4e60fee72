//! The keys of config.json that a model does not read.
//!
//! Entry point: [`Config::unread`]. A key that changes the computation of some model, and that the family does not
//! name, is refused (`neutral`). A key that is new to all families may change the computation too, so the log names it.

use super::Config;

/// Keys that change nothing if the model does not read them, in the order of names: settings of training, of Python's
/// classes and of tokenizers; keys that the engine reads after the model is built; and keys that a model reads only
/// beside certain values of others, such as `num_experts_per_tok` in a model with experts.
const UNUSED: &[&str] = &[
    "_attn_implementation_autoset",
    "_name_or_path",
    "_sliding_window_pattern",
    "activation_dropout",
    "add_bos_token",
    "architectures",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attention_softmax_in_fp32",
    "attn_pdrop",
    "auto_map",
    "aux_loss_alpha",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dropout",
    "dtype",
    "early_stopping",
    "emb_pdrop",
    "embd_pdrop",
    "embed_dropout",
    "embedding_dropout",
    "embedding_initializer_range",
    "enable_moe_fp32_combine",
    "encoder_no_repeat_ngram_size",
    "eod_token_id",
    "eos_token_id",
    "ep_size",
    "experts_per_token",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "for_llm_compressor",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "init_device",
    "init_std",
    "initial_context_length",
    "initializer_range",
    "intermediate_size",
    "is_decoder",
    "is_encoder_decoder",
    "keys_to_ignore_at_inference",
    "label2id",
    "layerdrop",
    "length_penalty",
    "load_balance_coeff",
    "max_length",
    "max_position_embeddings",
    "max_seq_len",
    "max_window_layers",
    "min_length",
    "model_type",
    "moe_intermediate_size",
    "mtp_layer_types",
    "mtp_mlp_layer_types",
    "n_ctx",
    "n_positions",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_experts_per_tok",
    "num_kv_heads",
    "num_mtp_layers",
    "num_nextn_predict_layers",
    "num_return_sequences",
    "original_max_position_embeddings",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "qk_head_dim",
    "quantization_config",
    "remove_invalid_values",
    "reorder_and_upcast_attn",
    "repetition_penalty",
    "resid_dropout",
    "resid_pdrop",
    "residual_dropout",
    "return_dict",
    "return_dict_in_generate",
    "rms_norm_eps",
    "rope_theta",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "scale_attention_softmax_in_fp32",
    "sep_token_id",
    "seq_aux",
    "seq_length",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_grouped_mm",
    "vocab_size_per_layer_input",
];

impl Config {
    /// Returns the paths of the keys that have a value, that nothing has read so far and that are not known to change
    /// nothing, in order. To be called after the model has been built.
    pub fn unread(&self) -> Vec<String> {
        let is_unread = |key: &str| !self.read_keys.contains(key) && UNUSED.binary_search(&key).is_err();
        let keys = self.keys.iter().filter(|(key, value)| !value.is_null() && is_unread(key));
        let mut paths: Vec<String> = keys.map(|(key, _)| self.path(key)).collect();
        paths.sort_unstable();
        paths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_nothing_reads_are_named() {
        let json = r#"{"architectures": ["LlamaForCausalLM"], "vocab_size": 8, "d_model": 4, "new": 1, "older": null,
            "use_cache": true, "rope_scaling": {"rope_type": "default", "factor": 2.0}, "text": {"other": 1}}"#;
        let config = Config::parse(json.as_bytes()).unwrap();
        assert_eq!(config.unread(), ["d_model", "new", "rope_scaling", "text", "vocab_size"]);
        config.vocab_size().unwrap();
        let copy = config.without(&["new"]);
        copy.size("hidden_size").unwrap();
        copy.rotary().unwrap();
        assert_eq!(config.unread(), ["new", "text"]);
    }

    #[test]
    fn keys_are_in_order_and_once() {
        assert!(UNUSED.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
