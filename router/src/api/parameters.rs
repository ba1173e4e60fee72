//! Sampling parameters in requests. To add one, add a field to [`Parameters`] and one to each dialect's type;
//! `proto/src/sampling.rs` has the whole recipe.
//!
//! | dialect | type | becomes |
//! |---|---|---|
//! | TGI's native routes | [`GenerateParameters`] | [`Parameters`], and with them [`GenerationOptions`] |
//! | OpenAI's routes, and Anthropic's | [`OpenAiSampling`](super::openai) in `openai/sampling.rs` | the same |
//!
//! Dialects differ in names, in the parameters that they have, and in the rule for greedy decoding. The conversions of
//! [`GenerateParameters`] and [`Parameters`] destructure without `..`, so they do not compile if they omit a field.

use proto::{LogitBias, SamplingDefaults, SamplingParams};
use serde::Deserialize;
use utoipa::ToSchema;

use super::nullable::null_as_false;
use super::{grammar, logit_bias, schemas, stop};
use crate::grammar::Grammar;
use crate::validation::{FieldNames, GenerationOptions};

/// TGI's names, and this server's names of fields that TGI lacks.
const NAMES: FieldNames = FieldNames {
    max_new_tokens: "max_new_tokens",
    min_new_tokens: "min_new_tokens",
    ignores_eos: "ignore_eos_token",
    grammar: "grammar",
};

/// The sampling parameters of a request in any dialect. An absent parameter gets its neutral value.
#[derive(Debug, Clone, Default)]
pub(super) struct Parameters {
    pub(super) temperature: Option<f32>,
    /// A value below 1 keeps all tokens, so top-k has no effect.
    pub(super) top_k: Option<i64>,
    pub(super) top_p: Option<f32>,
    pub(super) min_p: Option<f32>,
    pub(super) typical_p: Option<f32>,
    pub(super) repetition_penalty: Option<f32>,
    pub(super) frequency_penalty: Option<f32>,
    pub(super) presence_penalty: Option<f32>,
    pub(super) min_new_tokens: Option<u32>,
    pub(super) logit_bias: Vec<LogitBias>,
    pub(super) seed: Option<u64>,
}

impl Parameters {
    /// Fills in the model's defaults (`--generation-config model`) for parameters that the request lacks. Defaults that
    /// only matter for random sampling apply only if `is_drawn`.
    pub(super) fn or_defaults(mut self, defaults: &SamplingDefaults, is_drawn: bool) -> Self {
        self.repetition_penalty = self.repetition_penalty.or(defaults.repetition_penalty);
        if is_drawn {
            self.temperature = self.temperature.or(defaults.temperature);
            self.top_k = self.top_k.or(defaults.top_k.map(i64::from));
            self.top_p = self.top_p.or(defaults.top_p);
            self.min_p = self.min_p.or(defaults.min_p);
            self.typical_p = self.typical_p.or(defaults.typical_p);
        }
        self
    }

    /// True if top-k, the temperature, top-p, min-p or typical-p is set, by the request or by a default.
    fn names_draw(&self) -> bool {
        self.top_k.is_some() || [self.temperature, self.top_p, self.min_p, self.typical_p].iter().any(Option::is_some)
    }

    /// Returns the parameters of random sampling, without a report of top tokens.
    pub(super) fn into_draw(self) -> SamplingParams {
        let neutral = SamplingParams::greedy();
        let Self {
            temperature,
            top_k,
            top_p,
            min_p,
            typical_p,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            min_new_tokens,
            logit_bias,
            seed,
        } = self;
        SamplingParams {
            temperature: temperature.unwrap_or(neutral.temperature),
            top_k: top_k.and_then(|k| u32::try_from(k).ok()).unwrap_or(neutral.top_k),
            top_p: top_p.unwrap_or(neutral.top_p),
            min_p: min_p.unwrap_or(neutral.min_p),
            typical_p: typical_p.unwrap_or(neutral.typical_p),
            repetition_penalty: repetition_penalty.unwrap_or(neutral.repetition_penalty),
            frequency_penalty: frequency_penalty.unwrap_or(neutral.frequency_penalty),
            presence_penalty: presence_penalty.unwrap_or(neutral.presence_penalty),
            min_new_tokens: min_new_tokens.unwrap_or(neutral.min_new_tokens),
            logit_bias,
            seed: seed.unwrap_or(neutral.seed),
            is_greedy: false,
            ..neutral
        }
    }
}

/// The `parameters` object of TGI's native routes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, ToSchema)]
pub(crate) struct GenerateParameters {
    pub(crate) best_of: Option<u32>,
    pub(crate) temperature: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) top_k: Option<i32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) typical_p: Option<f32>,
    /// Not in TGI; named as in vLLM and transformers.
    pub(crate) min_p: Option<f32>,
    /// Not in TGI; named as in OpenAI's API.
    pub(crate) presence_penalty: Option<f32>,
    /// Not in TGI; named as in transformers.
    pub(crate) min_new_tokens: Option<u32>,
    /// Not in TGI; named as in OpenAI's API.
    #[serde(default, deserialize_with = "logit_bias::by_token_id")]
    #[schema(schema_with = schemas::logit_bias)]
    pub(crate) logit_bias: Vec<LogitBias>,
    pub(crate) do_sample: Option<bool>,
    pub(crate) max_new_tokens: Option<u32>,
    /// Continues after an end-of-sequence token. TGI has this field only in its benchmarks; vLLM's name `ignore_eos`
    /// works too.
    #[serde(default, alias = "ignore_eos", deserialize_with = "null_as_false")]
    pub(crate) ignore_eos_token: bool,
    pub(crate) return_full_text: Option<bool>,
    #[serde(default, deserialize_with = "stop::one_or_many")]
    #[schema(schema_with = schemas::stop)]
    pub(crate) stop: Vec<String>,
    pub(crate) truncate: Option<u32>,
    #[serde(default, deserialize_with = "null_as_false")]
    pub(crate) watermark: bool,
    #[serde(default, deserialize_with = "null_as_false")]
    pub(crate) details: bool,
    #[serde(default, deserialize_with = "null_as_false")]
    pub(crate) decoder_input_details: bool,
    pub(crate) seed: Option<u64>,
    pub(crate) top_n_tokens: Option<u32>,
    #[serde(default, deserialize_with = "grammar::tagged")]
    #[schema(schema_with = schemas::grammar)]
    pub(crate) grammar: Option<Grammar>,
    /// Only requests with the same salt share cached prompts. Not in TGI; named as in vLLM.
    pub(crate) cache_salt: Option<String>,
    pub(crate) adapter_id: Option<String>,
}

impl GenerateParameters {
    /// Returns the parameters of a request that has no `parameters` object. As in TGI, such a request samples at
    /// random, while an empty object means greedy decoding unless the model's defaults ask for sampling.
    pub(crate) fn absent() -> Self {
        Self { do_sample: Some(true), ..Self::default() }
    }

    /// Converts the parameters to generation options, with the model's defaults for absent ones. `validation` checks
    /// the values later.
    pub(crate) fn into_options(self, defaults: &SamplingDefaults) -> GenerationOptions {
        let Self {
            best_of,
            temperature,
            repetition_penalty,
            frequency_penalty,
            top_k,
            top_p,
            typical_p,
            min_p,
            presence_penalty,
            min_new_tokens,
            logit_bias,
            do_sample,
            max_new_tokens,
            ignore_eos_token,
            return_full_text,
            stop,
            truncate,
            watermark,
            details,
            decoder_input_details,
            seed,
            top_n_tokens,
            grammar,
            cache_salt,
            adapter_id,
        } = self;
        let parameters = Parameters {
            temperature,
            top_k: top_k.map(i64::from),
            top_p,
            min_p,
            typical_p,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            min_new_tokens,
            logit_bias,
            seed,
        };
        let takes_draw = defaults.draws && do_sample != Some(false);
        let parameters = parameters.or_defaults(defaults, takes_draw);
        let do_sample = do_sample.unwrap_or(takes_draw);
        let names_sampling = do_sample || parameters.names_draw();
        let draw = parameters.into_draw();
        let is_greedy = !do_sample && choice(&draw) == choice(&SamplingParams::greedy());
        GenerationOptions {
            sampling: SamplingParams { is_greedy, top_n_tokens: top_n_tokens.unwrap_or(0), ..draw },
            prompt_logprobs: decoder_input_details.then_some(0),
            has_seed: seed.is_some(),
            names_sampling,
            has_non_positive_top_k: top_k.is_some_and(|k| k <= 0),
            best_of,
            max_new_tokens,
            names: NAMES,
            cuts_max_new_tokens: false,
            ignores_eos: ignore_eos_token,
            stop_strings: stop,
            truncate_tokens: truncate,
            wants_full_text: return_full_text.unwrap_or(false),
            wants_details: details || decoder_input_details,
            wants_watermark: watermark,
            wants_deltas: false,
            answer_form: None,
            grammar: grammar.map(Into::into),
            cache_salt,
            adapter_id,
        }
    }
}

/// Returns the parameters that ask for random sampling if one of them is not neutral.
fn choice(params: &SamplingParams) -> (f32, u32, f32, f32, f32) {
    (params.temperature, params.top_k, params.top_p, params.min_p, params.typical_p)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> GenerateParameters {
        serde_json::from_str(json).unwrap()
    }

    fn options(parameters: GenerateParameters) -> GenerationOptions {
        parameters.into_options(&SamplingDefaults::default())
    }

    #[test]
    fn an_empty_object_is_greedy_and_an_absent_one_samples() {
        let empty = options(parse("{}"));
        assert_eq!(empty.sampling, SamplingParams::greedy());
        assert!(!empty.names_sampling && !empty.wants_details && !empty.wants_full_text);
        assert!(!options(GenerateParameters::absent()).sampling.is_greedy);
    }

    #[test]
    fn nulls_are_defaults() {
        let nulls = r#"{"best_of":null,"temperature":null,"repetition_penalty":null,"frequency_penalty":null,
            "top_k":null,"top_p":null,"typical_p":null,"min_p":null,"presence_penalty":null,"min_new_tokens":null,"logit_bias":null,"do_sample":null,"max_new_tokens":null,"ignore_eos_token":null,
            "return_full_text":null,"stop":null,"truncate":null,"watermark":null,"details":null,
            "decoder_input_details":null,"seed":null,"top_n_tokens":null,"grammar":null,"adapter_id":null}"#;
        assert_eq!(parse(nulls), GenerateParameters::default());
    }

    #[test]
    fn any_parameter_of_the_choice_asks_for_sampling() {
        for json in [
            r#"{"do_sample":true}"#,
            r#"{"temperature":0.5}"#,
            r#"{"top_k":3}"#,
            r#"{"top_p":0.9}"#,
            r#"{"typical_p":0.9}"#,
            r#"{"min_p":0.1}"#,
        ] {
            let options = options(parse(json));
            assert!(!options.sampling.is_greedy && options.names_sampling, "{json}");
        }
        for json in [
            r#"{"temperature":1.0}"#,
            r#"{"top_p":1.0}"#,
            r#"{"min_p":0.0}"#,
            r#"{"seed":1}"#,
            r#"{"repetition_penalty":1.2}"#,
            r#"{"presence_penalty":1.2}"#,
            r#"{"min_new_tokens":2}"#,
            r#"{"logit_bias":{"5":1}}"#,
        ] {
            assert!(options(parse(json)).sampling.is_greedy, "{json}");
        }
    }

    #[test]
    fn the_end_of_sequence_can_be_ignored_by_two_names() {
        for (json, expected) in
            [("{}", false), (r#"{"ignore_eos_token":true}"#, true), (r#"{"ignore_eos":true}"#, true)]
        {
            assert_eq!(options(parse(json)).ignores_eos, expected, "{json}");
        }
    }

    #[test]
    fn stop_is_a_string_or_a_list() {
        assert_eq!(parse(r#"{"stop":"a"}"#).stop, ["a"]);
        assert_eq!(parse(r#"{"stop":["a","b"]}"#).stop, ["a", "b"]);
        let error = serde_json::from_str::<GenerateParameters>(r#"{"stop":3}"#).unwrap_err().to_string();
        assert!(error.contains("expected a string or a list of strings"), "{error}");
    }

    #[test]
    fn biases_are_by_token_id() {
        let biases = options(parse(r#"{"logit_bias":{"50256":-100,"7":0.5}}"#)).sampling.logit_bias;
        let expected = [LogitBias { token_id: 50256, bias: -100.0 }, LogitBias { token_id: 7, bias: 0.5 }];
        assert_eq!(biases, expected);
        for (json, expected) in [
            (r#"{"logit_bias":{"the":1}}"#, "`logit_bias` has a key that is not a token id: \"the\""),
            (r#"{"logit_bias":{"-1":1}}"#, "`logit_bias` has a key that is not a token id: \"-1\""),
            (r#"{"logit_bias":{"1":"x"}}"#, "expected f32"),
            (r#"{"logit_bias":[1]}"#, "expected an object of token ids and numbers"),
        ] {
            let error = serde_json::from_str::<GenerateParameters>(json).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_grammar_and_an_adapter_are_handed_on() {
        let options = options(parse(r#"{"grammar":{"type":"regex","value":"a+"},"adapter_id":"x"}"#));
        assert_eq!(options.grammar.as_deref(), Some(&Grammar::Regex("a+".into())));
        assert_eq!(options.adapter_id.as_deref(), Some("x"));
    }
}
