//! The sampling parameters of OpenAI's API: the fields that all of its generating routes share.
//!
//! Entry point: [`OpenAiSampling::into_options`]. Parameters that OpenAI lacks have vLLM's names.

use proto::{LogitBias, SamplingDefaults, SamplingParams};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::api::nullable::{minus_one_as_none, null_as_false};
use crate::api::parameters::Parameters;
use crate::api::{logit_bias, schemas, stop};
use crate::grammar::Grammar;
use crate::validation::{FieldNames, GenerationOptions};

/// The parameters that all generating routes of OpenAI's API share.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, ToSchema)]
pub(crate) struct OpenAiSampling {
    pub(in crate::api) temperature: Option<f32>,
    pub(in crate::api) top_p: Option<f32>,
    pub(in crate::api) frequency_penalty: Option<f32>,
    pub(in crate::api) presence_penalty: Option<f32>,
    #[serde(default, deserialize_with = "logit_bias::by_token_id")]
    #[schema(schema_with = schemas::logit_bias)]
    pub(in crate::api) logit_bias: Vec<LogitBias>,
    /// The seed of random choices; -1 is a random seed, as in llama.cpp.
    #[serde(default, deserialize_with = "minus_one_as_none")]
    #[schema(value_type = Option<i64>, minimum = -1)]
    pub(in crate::api) seed: Option<u64>,
    #[serde(default, deserialize_with = "stop::one_or_many")]
    #[schema(schema_with = schemas::stop)]
    pub(in crate::api) stop: Vec<String>,
    /// The max number of tokens to generate; -1 is as many as the context has room for, as in llama.cpp.
    #[serde(default, deserialize_with = "minus_one_as_none")]
    #[schema(value_type = Option<i64>, minimum = -1, maximum = 4294967295i64)]
    pub(in crate::api) max_tokens: Option<u32>,
    /// The newer name of `max_tokens`, which takes precedence.
    #[serde(default, deserialize_with = "minus_one_as_none")]
    #[schema(value_type = Option<i64>, minimum = -1, maximum = 4294967295i64)]
    pub(in crate::api) max_completion_tokens: Option<u32>,
    pub(in crate::api) top_k: Option<i64>,
    pub(in crate::api) min_p: Option<f32>,
    pub(in crate::api) repetition_penalty: Option<f32>,
    pub(in crate::api) min_tokens: Option<u32>,
    #[serde(default, deserialize_with = "null_as_false")]
    #[schema(value_type = Option<bool>)]
    pub(in crate::api) ignore_eos: bool,
    /// Only requests with the same salt share cached prompts, as in vLLM.
    pub(in crate::api) cache_salt: Option<String>,
    /// True if a maximum number of tokens that exceeds the room in the context is reduced to that room, instead of
    /// being refused.
    #[serde(skip)]
    pub(in crate::api) cuts_max_new_tokens: bool,
    /// The constraint on the answer, with the name of the field of the body that contains it.
    #[serde(skip)]
    pub(in crate::api) grammar: Option<(&'static str, Grammar)>,
    /// The model's defaults, for fields that are absent.
    #[serde(skip)]
    pub(in crate::api) defaults: SamplingDefaults,
}

impl OpenAiSampling {
    /// If the client asks for `given` tokens, changes this number to `wanted` and returns true.
    pub(super) fn replace_max_tokens(&mut self, given: u32, wanted: u32) -> bool {
        let is_given = self.max_completion_tokens.or(self.max_tokens) == Some(given);
        if is_given {
            self.max_completion_tokens = Some(wanted);
        }
        is_given
    }

    /// Sets the model's defaults, which apply to parameters that the client leaves out.
    pub(crate) fn or_defaults(self, defaults: &SamplingDefaults) -> Self {
        // As in vLLM, these routes have no typical-p, so its default does not apply.
        Self { defaults: SamplingDefaults { typical_p: None, ..*defaults }, ..self }
    }

    /// Returns the sampling parameters. Only a temperature of zero means greedy decoding.
    pub(in crate::api) fn parameters(&self) -> Parameters {
        let parameters = Parameters {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: None,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            min_new_tokens: self.min_tokens,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
        };
        parameters.or_defaults(&self.defaults, self.temperature != Some(0.0))
    }

    /// Converts the parameters to generation options that report the `top_n_tokens` most likely tokens at each
    /// generated position and, if `wants_prompt_logprobs`, at each position of the prompt.
    pub(crate) fn into_options(self, top_n_tokens: u32, wants_prompt_logprobs: bool) -> GenerationOptions {
        let parameters = self.parameters();
        let is_greedy = parameters.temperature == Some(0.0);
        let temperature = parameters.temperature.filter(|_| !is_greedy);
        let sampling =
            SamplingParams { is_greedy, top_n_tokens, ..Parameters { temperature, ..parameters }.into_draw() };
        GenerationOptions {
            sampling,
            prompt_logprobs: wants_prompt_logprobs.then_some(top_n_tokens),
            has_seed: self.seed.is_some(),
            names_sampling: !is_greedy,
            has_non_positive_top_k: false,
            best_of: None,
            max_new_tokens: self.max_completion_tokens.or(self.max_tokens),
            names: FieldNames {
                max_new_tokens: self.max_completion_tokens.map_or("max_tokens", |_| "max_completion_tokens"),
                min_new_tokens: "min_tokens",
                ignores_eos: "ignore_eos",
                grammar: self.grammar.as_ref().map_or("tools", |(field, _)| field),
            },
            cuts_max_new_tokens: self.cuts_max_new_tokens,
            ignores_eos: self.ignore_eos,
            stop_strings: self.stop,
            truncate_tokens: None,
            wants_full_text: false,
            wants_details: true,
            wants_watermark: false,
            wants_deltas: true,
            answer_form: None,
            grammar: self.grammar.map(|(_, grammar)| grammar.into()),
            cache_salt: self.cache_salt,
            adapter_id: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(json: &str) -> GenerationOptions {
        serde_json::from_str::<OpenAiSampling>(json).unwrap().into_options(0, false)
    }

    #[test]
    fn zero_is_greedy_and_nothing_draws() {
        assert!(options(r#"{"temperature":0}"#).sampling.is_greedy);
        for json in ["{}", r#"{"temperature":null}"#, r#"{"temperature":1}"#, r#"{"temperature":0.1}"#] {
            assert!(!options(json).sampling.is_greedy, "{json}");
        }
        assert_eq!(options("{}").sampling.temperature, 1.0);
        assert_eq!(options(r#"{"presence_penalty":0}"#).sampling.repetition_penalty, 1.0);
    }

    #[test]
    fn the_model_may_have_defaults() {
        let defaults = SamplingDefaults {
            draws: true,
            temperature: Some(0.6),
            top_k: Some(20),
            repetition_penalty: Some(1.1),
            ..SamplingDefaults::default()
        };
        let options = |json: &str| {
            let sampling = serde_json::from_str::<OpenAiSampling>(json).unwrap().or_defaults(&defaults);
            sampling.into_options(0, false).sampling
        };
        let all = options("{}");
        assert_eq!((all.temperature, all.top_k, all.repetition_penalty), (0.6, 20, 1.1));
        let some = options(r#"{"temperature":0.9,"repetition_penalty":1.0}"#);
        assert_eq!((some.temperature, some.top_k, some.repetition_penalty), (0.9, 20, 1.0));
        let greedy = options(r#"{"temperature":0}"#);
        assert!(greedy.is_greedy && greedy.top_k == SamplingParams::greedy().top_k);
    }

    #[test]
    fn the_newer_name_of_the_limit_wins() {
        assert_eq!(options(r#"{"max_tokens":5}"#).max_new_tokens, Some(5));
        assert_eq!(options(r#"{"max_tokens":5,"max_completion_tokens":7}"#).max_new_tokens, Some(7));
        assert_eq!(options(r#"{"max_tokens":null}"#).max_new_tokens, None);
    }

    #[test]
    fn all_tokens_have_three_names() {
        for json in ["{}", r#"{"top_k":-1}"#, r#"{"top_k":0}"#] {
            assert_eq!(options(json).sampling.top_k, SamplingParams::greedy().top_k, "{json}");
        }
        assert_eq!(options(r#"{"top_k":3,"stop":"x","seed":1}"#).sampling.top_k, 3);
    }
}
