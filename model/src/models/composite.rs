//! Composite models: a text model, and towers that turn images into input of the text model.
//!
//! Entry point: [`find`]. The keys of the text model are in `text_config` of config.json, or beside `vision_config` in
//! older files of some models, with the defaults of transformers' configuration class
//! (`transformers/models/*/configuration_*.py`). Only the text model is served: the tensors of towers are left out by
//! name (`weights::Checkpoint::into_text`).

use serde_json::{Map, Value};

use super::{Config, ModelError};

/// The key of the text model's configuration.
pub(super) const TEXT: &str = "text_config";
/// Keys of the whole model. They win over the same keys of `text_config`. A key and its older name are one entry.
const OUTER: [&[&str]; 5] = [
    &["architectures"],
    &["dtype", "torch_dtype"],
    &["eos_token_id"],
    &["quantization_config"],
    &["tie_word_embeddings"],
];
/// Keys of rotary parameters that assign frequencies to the three positions of an image's patch. The three positions
/// of a token of text are equal, so these keys change nothing.
const IMAGE_POSITIONS: [&str; 2] = ["mrope_interleaved", "mrope_section"];
/// The type of rotary parameters with such keys in files of transformers 4. For text it is `default`.
const IMAGE_ROTARY: &str = "mrope";
/// The first parts of keys that describe images, and not the text model.
const IMAGE_KEYS: [&str; 3] = ["image_", "video_", "vision_"];

const LLAVA_TOWERS: [&str; 2] = ["vision_tower", "multi_modal_projector"];
const KIMI_TOWERS: [&str; 2] = ["vision_tower", "mm_projector"];
const GEMMA4_TOWERS: [&str; 5] = ["audio_tower", "embed_audio", "embed_vision", "vision_embedder", "vision_tower"];
const LLAMA4_TOWERS: [&str; 2] = ["vision_model", "multi_modal_projector"];
const QWEN_TOWERS: [&str; 1] = ["visual"];

/// A composite architecture.
#[derive(Debug)]
pub(super) struct Composite {
    architecture: &'static str,
    /// The text models that the composite may have. The first is the default.
    texts: &'static [Text],
    /// The first parts of the names of tensors that are left out, each also after `model.`.
    pub(super) towers: &'static [&'static str],
    /// True if config.json may have the keys of the text model beside `vision_config`, without `text_config`.
    may_be_flat: bool,
}

/// A text model in a composite.
#[derive(Debug)]
struct Text {
    model_type: &'static str,
    /// The values of missing keys, as JSON text.
    defaults: &'static [(&'static str, &'static str)],
    /// Keys of rotary parameters that change nothing for text.
    unused_rotary_keys: &'static [&'static str],
}

const DEEPSEEK_V3: Text = Text {
    model_type: "deepseek_v3",
    defaults: &[
        ("eos_token_id", "1"),
        ("hidden_size", "7168"),
        ("intermediate_size", "18432"),
        ("kv_lora_rank", "512"),
        ("max_position_embeddings", "4096"),
        ("moe_intermediate_size", "2048"),
        ("n_routed_experts", "256"),
        ("num_attention_heads", "128"),
        ("num_hidden_layers", "61"),
        ("q_lora_rank", "1536"),
        ("qk_nope_head_dim", "128"),
        ("qk_rope_head_dim", "64"),
        ("v_head_dim", "128"),
        ("vocab_size", "129280"),
    ],
    unused_rotary_keys: &[],
};
const GEMMA3: Text = Text {
    model_type: "gemma3_text",
    defaults: &[
        ("eos_token_id", "1"),
        ("head_dim", "256"),
        ("hidden_size", "2304"),
        ("intermediate_size", "9216"),
        ("max_position_embeddings", "131072"),
        ("num_attention_heads", "8"),
        ("num_hidden_layers", "26"),
        ("num_key_value_heads", "4"),
        ("rope_theta", "1000000.0"),
        ("sliding_window", "4096"),
        ("vocab_size", "262208"),
    ],
    unused_rotary_keys: &[],
};
const GEMMA4: Text = Text {
    model_type: "gemma4_text",
    defaults: &[
        ("eos_token_id", "1"),
        ("hidden_size", "2304"),
        ("intermediate_size", "9216"),
        ("max_position_embeddings", "131072"),
        ("num_attention_heads", "8"),
        ("num_hidden_layers", "30"),
        ("num_key_value_heads", "4"),
        ("vocab_size", "262144"),
    ],
    unused_rotary_keys: &[],
};
const GEMMA4_UNIFIED: Text = Text {
    model_type: "gemma4_unified_text",
    defaults: &[
        ("eos_token_id", "1"),
        ("hidden_size", "2304"),
        ("intermediate_size", "9216"),
        ("max_position_embeddings", "262144"),
        ("num_attention_heads", "8"),
        ("num_hidden_layers", "30"),
        ("num_key_value_heads", "4"),
        ("vocab_size", "262144"),
    ],
    unused_rotary_keys: &[],
};
/// DeepSeek V3 under the name that it has in files of Moonshot AI.
const KIMI_K2: Text = Text { model_type: "kimi_k2", ..DEEPSEEK_V3 };
const LLAMA4: Text = Text {
    model_type: "llama4_text",
    defaults: &[
        ("eos_token_id", "2"),
        ("hidden_size", "5120"),
        ("max_position_embeddings", "131072"),
        ("num_attention_heads", "40"),
        ("num_hidden_layers", "48"),
        ("vocab_size", "202048"),
    ],
    unused_rotary_keys: &[],
};
const MISTRAL: Text = Text {
    model_type: "mistral",
    defaults: &[
        ("eos_token_id", "2"),
        ("hidden_size", "4096"),
        ("intermediate_size", "14336"),
        ("max_position_embeddings", "131072"),
        ("num_attention_heads", "32"),
        ("num_hidden_layers", "32"),
        ("num_key_value_heads", "8"),
        ("sliding_window", "4096"),
        ("vocab_size", "32000"),
    ],
    unused_rotary_keys: &[],
};
const MINISTRAL3: Text = Text {
    model_type: "ministral3",
    defaults: &[
        ("eos_token_id", "2"),
        ("head_dim", "128"),
        ("hidden_size", "4096"),
        ("intermediate_size", "14336"),
        ("max_position_embeddings", "262144"),
        ("num_attention_heads", "32"),
        ("num_hidden_layers", "34"),
        ("num_key_value_heads", "8"),
        ("vocab_size", "131072"),
    ],
    unused_rotary_keys: &[],
};
const MISTRAL4: Text = Text {
    model_type: "mistral4",
    defaults: &[
        ("eos_token_id", "2"),
        ("hidden_size", "4096"),
        ("intermediate_size", "12288"),
        ("kv_lora_rank", "256"),
        ("max_position_embeddings", "1048576"),
        ("moe_intermediate_size", "2048"),
        ("n_routed_experts", "128"),
        ("num_attention_heads", "32"),
        ("num_experts_per_tok", "4"),
        ("num_hidden_layers", "36"),
        ("q_lora_rank", "1024"),
        ("qk_nope_head_dim", "64"),
        ("qk_rope_head_dim", "64"),
        ("v_head_dim", "128"),
        ("vocab_size", "131072"),
    ],
    unused_rotary_keys: &[],
};
const QWEN2_VL: Text = Text {
    model_type: "qwen2_vl_text",
    defaults: &[
        ("eos_token_id", "151645"),
        ("hidden_size", "8192"),
        ("intermediate_size", "29568"),
        ("max_position_embeddings", "32768"),
        ("max_window_layers", "80"),
        ("num_attention_heads", "64"),
        ("num_hidden_layers", "80"),
        ("num_key_value_heads", "8"),
        ("rms_norm_eps", "1e-5"),
        ("rope_theta", "1000000.0"),
        ("sliding_window", "4096"),
        ("vocab_size", "152064"),
    ],
    unused_rotary_keys: &IMAGE_POSITIONS,
};
const QWEN2_5_VL: Text = Text { model_type: "qwen2_5_vl_text", ..QWEN2_VL };
const QWEN3_VL: Text = Text {
    model_type: "qwen3_vl_text",
    defaults: &[
        ("head_dim", "128"),
        ("hidden_size", "4096"),
        ("intermediate_size", "22016"),
        ("max_position_embeddings", "128000"),
        ("num_attention_heads", "32"),
        ("num_hidden_layers", "32"),
        ("num_key_value_heads", "32"),
        ("rope_theta", "500000.0"),
        ("vocab_size", "151936"),
    ],
    unused_rotary_keys: &IMAGE_POSITIONS,
};
const QWEN3_VL_MOE: Text = Text {
    model_type: "qwen3_vl_moe_text",
    defaults: &[
        ("hidden_size", "2048"),
        ("intermediate_size", "5632"),
        ("max_position_embeddings", "128000"),
        ("moe_intermediate_size", "1408"),
        ("num_attention_heads", "16"),
        ("num_experts_per_tok", "4"),
        ("num_hidden_layers", "24"),
        ("num_key_value_heads", "16"),
        ("rope_theta", "500000.0"),
        ("vocab_size", "151936"),
    ],
    unused_rotary_keys: &IMAGE_POSITIONS,
};

const COMPOSITES: [Composite; 11] = [
    Composite::new("Gemma3ForConditionalGeneration", &[GEMMA3], &LLAVA_TOWERS),
    Composite::new("Gemma4ForConditionalGeneration", &[GEMMA4], &GEMMA4_TOWERS),
    Composite::new("Gemma4UnifiedForConditionalGeneration", &[GEMMA4_UNIFIED], &GEMMA4_TOWERS),
    Composite::new("KimiK25ForConditionalGeneration", &[DEEPSEEK_V3, KIMI_K2], &KIMI_TOWERS),
    Composite::new("Kimi_K25ForConditionalGeneration", &[DEEPSEEK_V3, KIMI_K2], &KIMI_TOWERS),
    Composite::new("Llama4ForConditionalGeneration", &[LLAMA4], &LLAMA4_TOWERS),
    Composite::new("Mistral3ForConditionalGeneration", &[MISTRAL, MINISTRAL3, MISTRAL4], &LLAVA_TOWERS),
    Composite::new("Qwen2VLForConditionalGeneration", &[QWEN2_VL], &QWEN_TOWERS).or_flat(),
    Composite::new("Qwen2_5_VLForConditionalGeneration", &[QWEN2_5_VL], &QWEN_TOWERS).or_flat(),
    Composite::new("Qwen3VLForConditionalGeneration", &[QWEN3_VL], &QWEN_TOWERS),
    Composite::new("Qwen3VLMoeForConditionalGeneration", &[QWEN3_VL_MOE], &QWEN_TOWERS),
];

/// The keys of a text model in a composite.
pub(super) struct TextKeys {
    /// The path of the object that has most of the keys, with a dot at its end.
    pub(super) prefix: String,
    pub(super) keys: Map<String, Value>,
    /// The keys that come from the whole model's object.
    pub(super) outer: Vec<&'static str>,
    /// The keys that have the defaults of transformers.
    pub(super) defaults: Vec<&'static str>,
}

/// Returns the composite that has this architecture; `None` if the architecture is a text model alone or unknown.
pub(super) fn find(architecture: &str) -> Option<&'static Composite> {
    COMPOSITES.iter().find(|composite| composite.architecture == architecture)
}

impl Composite {
    const fn new(architecture: &'static str, texts: &'static [Text], towers: &'static [&'static str]) -> Self {
        Self { architecture, texts, towers, may_be_flat: false }
    }

    const fn or_flat(self) -> Self {
        Self { may_be_flat: true, ..self }
    }

    /// Returns the keys of the text model in the whole model's configuration.
    ///
    /// # Errors
    /// When there is no `text_config` and the composite needs one, or it describes another kind of text model.
    pub(super) fn text_keys(&self, whole: &Config, outer: &Map<String, Value>) -> Result<TextKeys, ModelError> {
        if self.may_be_flat && !whole.has(TEXT) {
            let mut keys = outer.clone();
            let defaults = self.texts[0].complete(&mut keys);
            return Ok(TextKeys { prefix: String::new(), keys, outer: Vec::new(), defaults });
        }
        let mut keys = whole.object(TEXT)?.ok_or_else(|| whole.missing(TEXT))?.clone();
        let text = whole.nested(TEXT, keys.clone());
        let found = text.text("model_type")?.unwrap_or(self.texts[0].model_type);
        let known = || self.texts.iter().map(|text| text.model_type).collect::<Vec<_>>().join(" or ");
        let model = self.texts.iter().find(|text| text.model_type == found);
        let model = model.ok_or_else(|| text.unsupported("model_type", found, &known()))?;
        let defaults = model.complete(&mut keys);
        let mut from_outer = Vec::new();
        for names in OUTER {
            let has = |name: &&str| outer.get(*name).is_some_and(|value| !value.is_null());
            let Some(found) = names.iter().find(|name| has(name)) else { continue };
            names.iter().for_each(|name| drop(keys.remove(*name)));
            keys.insert((*found).to_owned(), outer[*found].clone());
            from_outer.push(*found);
        }
        Ok(TextKeys { prefix: format!("{TEXT}."), keys, outer: from_outer, defaults })
    }
}

impl Text {
    /// Gives missing keys the defaults of transformers, and removes what changes nothing for text. Returns the keys
    /// that were missing.
    fn complete(&self, keys: &mut Map<String, Value>) -> Vec<&'static str> {
        keys.retain(|key, _| !IMAGE_KEYS.iter().any(|part| key.starts_with(part)));
        let missing: Vec<_> = self.defaults.iter().filter(|(key, _)| !keys.contains_key(*key)).collect();
        for (key, value) in &missing {
            keys.insert((*key).to_owned(), serde_json::from_str(value).expect("the defaults are JSON text"));
        }
        for rotary in ["rope_parameters", "rope_scaling"] {
            let Some(Value::Object(parameters)) = keys.get_mut(rotary) else { continue };
            parameters.retain(|key, _| !self.unused_rotary_keys.contains(&key.as_str()));
            for kind in ["rope_type", "type"] {
                let kind = parameters.get_mut(kind).filter(|kind| **kind == IMAGE_ROTARY);
                if let Some(kind) = kind.filter(|_| !self.unused_rotary_keys.is_empty()) {
                    *kind = "default".into();
                }
            }
        }
        missing.into_iter().map(|(key, _)| *key).collect()
    }
}

#[cfg(test)]
mod tests {
    use numbers::FloatType;

    use super::*;
    use crate::models;

    fn gemma3(whole: &str, text: &str) -> Result<Config, String> {
        let json = format!(
            r#"{{"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {{"model_type": "gemma3_text",
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6{text}}}{whole}}}"#
        );
        Config::parse(json.as_bytes()).map_err(|error| error.to_string())
    }

    fn graph(whole: &str, text: &str) -> Result<String, String> {
        let model = models::build(&gemma3(whole, text)?, FloatType::Bf16, 1).map_err(|error| error.to_string())?;
        Ok(model.decoder.to_string())
    }

    #[test]
    fn missing_keys_have_the_defaults_of_transformers() {
        let config = gemma3("", "").unwrap();
        assert_eq!((config.vocab_size().unwrap(), config.max_position_embeddings().unwrap()), (262_208, 131_072));
        assert_eq!(config.eos_token_ids(None).unwrap(), [1]);
        assert_eq!(config.dtype().unwrap(), None);
        let all = r#", "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
            "query_pre_attn_scalar": 256, "rope_theta": 1000000, "rope_local_base_freq": 10000, "rms_norm_eps": 1e-6,
            "hidden_activation": "gelu_pytorch_tanh", "vocab_size": 262208, "sliding_window_pattern": 6"#;
        assert_eq!(graph("", "").unwrap(), graph("", all).unwrap());
        let without_window = graph("", r#", "num_attention_heads": 4"#).unwrap();
        assert_ne!(graph("", "").unwrap(), without_window);
    }

    #[test]
    fn keys_of_the_whole_model_win() {
        let config = gemma3(
            r#", "torch_dtype": "bfloat16", "eos_token_id": [1, 106], "tie_word_embeddings": false"#,
            r#", "dtype": "float32", "eos_token_id": 7, "tie_word_embeddings": true"#,
        )
        .unwrap();
        assert_eq!(config.dtype().unwrap(), Some(FloatType::Bf16));
        assert_eq!(config.eos_token_ids(None).unwrap(), [1, 106]);
        assert!(!config.flag_or("tie_word_embeddings", true).unwrap());
        let config = gemma3(r#", "dtype": null"#, r#", "torch_dtype": "float16", "eos_token_id": 7"#).unwrap();
        assert_eq!(config.dtype().unwrap(), Some(FloatType::F16));
        assert_eq!(config.eos_token_ids(None).unwrap(), [7]);
    }

    #[test]
    fn the_checkpoint_decides_if_there_is_a_head() {
        let tied = |config: Config| config.flag_or("tie_word_embeddings", false).unwrap();
        for whole in ["", r#", "tie_word_embeddings": true"#] {
            assert!(!tied(gemma3(whole, "").unwrap().with_head(true)));
            assert!(tied(gemma3(whole, "").unwrap().with_head(false)));
        }
        assert!(!tied(gemma3(r#", "tie_word_embeddings": false"#, "").unwrap().with_head(false)));
    }

    #[test]
    fn unsupported_fields_are_named_with_their_paths() {
        let cases = [
            (
                "",
                r#", "attn_logit_softcapping": 50"#,
                "text_config.attn_logit_softcapping is 50; only null is supported",
            ),
            ("", r#", "num_experts": 4"#, "text_config.num_experts is 4; only null is supported"),
            (
                "",
                r#", "use_bidirectional_attention": true"#,
                "text_config.use_bidirectional_attention is true; only false",
            ),
            ("", r#", "hidden_activation": "abc""#, r#"text_config.hidden_activation is "abc", expected silu"#),
            ("", r#", "num_hidden_layers": 0"#, "text_config.num_hidden_layers is 0, expected a positive integer"),
            (
                "",
                r#", "num_attention_heads": 64"#,
                "text_config.num_attention_heads is 64, expected at most hidden_size",
            ),
            ("", r#", "rope_theta": -1"#, "text_config.rope_theta is -1, expected a positive number"),
            (
                "",
                r#", "layer_types": ["chunked_attention"]"#,
                "text_config.layer_types is 1 types, expected one for each",
            ),
            (
                "",
                r#", "rope_scaling": {"rope_type": "linear", "factor": 8, "mrope_section": [1]}"#,
                "text_config.rope_scaling.mrope_section is [1]; only null",
            ),
            (
                "",
                r#", "rope_parameters": {"full_attention": {"rope_type": "abc"}}"#,
                r#"text_config.rope_parameters.full_attention.rope_type is "abc", expected default"#,
            ),
            ("", r#", "rope_scaling": {"factor": 8}"#, "config.json has no text_config.rope_scaling.rope_type"),
            ("", r#", "vocab_size": null"#, "config.json has no text_config.vocab_size"),
            ("", r#", "model_type": "gemma2""#, "text_config.model_type is gemma2; only gemma3_text is supported"),
            (
                "",
                r#", "quantization_config": {"quant_method": "abc"}"#,
                "text_config.quantization_config.quant_method is abc; only fp8",
            ),
            (
                r#", "quantization_config": {"quant_method": "abc"}"#,
                "",
                "config.json: quantization_config.quant_method is abc",
            ),
            (r#", "tie_word_embeddings": 2"#, "", "config.json: tie_word_embeddings is 2, expected true or false"),
        ];
        for (whole, text, expected) in cases {
            let message = graph(whole, text).unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
        let message = gemma3(r#", "eos_token_id": 300000"#, "").unwrap().eos_token_ids(None).unwrap_err().to_string();
        insta::assert_snapshot!(message, @"config.json: eos_token_id is 300000, expected token ids below 262208");
        let message = gemma3("", r#", "dtype": "int3""#).unwrap().dtype().unwrap_err().to_string();
        insta::assert_snapshot!(
            message,
            @r#"config.json: text_config.dtype is "int3", expected float32, float16 or bfloat16"#
        );
    }

    #[test]
    fn a_text_model_is_required() {
        let message = |json: &str| Config::parse(json.as_bytes()).unwrap_err().to_string();
        let architecture = r#"{"architectures": ["Qwen3VLForConditionalGeneration"]"#;
        insta::assert_snapshot!(message(&format!("{architecture}}}")), @"config.json has no text_config");
        let list = message(&format!(r#"{architecture}, "text_config": []}}"#));
        insta::assert_snapshot!(list, @"config.json: text_config is [], expected an object");
        let other =
            r#"{"architectures": ["Mistral3ForConditionalGeneration"], "text_config": {"model_type": "mistral5"}}"#;
        let expected =
            "config.json: text_config.model_type is mistral5; only mistral or ministral3 or mistral4 is supported";
        assert_eq!(message(other), expected);
    }

    /// Published files of Qwen 2.5 VL have no `text_config`.
    #[test]
    fn keys_of_the_text_may_be_beside_those_of_images() {
        let text = r#""hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 151936, "use_sliding_window": false"#;
        let rotary = |kind: &str| format!(r#""rope_scaling": {{"type": "{kind}", "mrope_section": [2, 1, 1]}}"#);
        let parse = |keys: &str| {
            let json = format!(r#"{{"architectures": ["Qwen2_5_VLForConditionalGeneration"], {keys}}}"#);
            Config::parse(json.as_bytes()).unwrap()
        };
        let graph = |config: &Config| models::build(config, FloatType::F32, 1).unwrap().decoder.to_string();
        let tower = r#""vision_config": {"depth": 32}, "image_token_id": 7, "vision_start_token_id": 8"#;
        let flat = parse(&format!(r#""model_type": "qwen2_5_vl", {text}, {}, {tower}"#, rotary("mrope")));
        let nested = parse(&format!(r#""text_config": {{{text}, {}}}, {tower}"#, rotary("default")));
        assert_eq!(graph(&flat), graph(&nested));
        assert_eq!(flat.unread(), Vec::<String>::new());
        assert_eq!(flat.eos_token_ids(None).unwrap(), [151_645]);
        let message = models::build(&parse(&format!("{text}, \"vocab_size\": 0")), FloatType::F32, 1).unwrap_err();
        insta::assert_snapshot!(message, @"config.json: vocab_size is 0, expected a positive integer up to 2097152");
    }

    #[test]
    fn other_composites_are_unknown_architectures() {
        let config =
            Config::parse(br#"{"architectures": ["Idefics3ForConditionalGeneration"], "text_config": {}}"#).unwrap();
        let message = models::build(&config, FloatType::F32, 1).unwrap_err().to_string();
        assert!(message.starts_with("architecture Idefics3ForConditionalGeneration is not supported"), "{message}");
    }

    #[test]
    fn defaults_are_json() {
        for composite in &COMPOSITES {
            for (key, value) in composite.texts.iter().flat_map(|text| text.defaults) {
                assert!(serde_json::from_str::<Value>(value).is_ok(), "{key}");
            }
        }
    }
}
