//! Requests and responses of TGI's native routes.
//!
//! A log-probability that is not finite, such as the first prompt token's NaN, is `null` in JSON. An empty field is
//! left out if TGI leaves it out, and `null` if TGI sends it as `null`.

use proto::SamplingDefaults;
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use super::{GenerateParameters, RequestContext};
use crate::generation::{Completion, Finish, FinishReason, GenerationRequest, Piece, PromptToken, Token};
use crate::validation::PromptInput;

/// The body of `POST /generate` and `POST /generate_stream`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct GenerateRequest {
    pub(crate) inputs: String,
    pub(crate) parameters: Option<GenerateParameters>,
}

/// The body of `POST /`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct CompatRequest {
    pub(crate) inputs: String,
    pub(crate) parameters: Option<GenerateParameters>,
    pub(crate) stream: Option<bool>,
}

/// The response of `POST /generate`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GenerateResponse {
    generated_text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
}

/// One event of `POST /generate_stream`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StreamResponse {
    index: u32,
    token: WireToken,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_tokens: Vec<WireToken>,
    generated_text: Option<String>,
    details: Option<StreamDetails>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Details {
    finish_reason: &'static str,
    generated_tokens: u32,
    seed: Option<u64>,
    prefill: Vec<PrefillToken>,
    tokens: Vec<WireToken>,
    #[serde(skip_serializing_if = "Option::is_none")]
    best_of_sequences: Option<Vec<BestOfSequence>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_tokens: Vec<Vec<WireToken>>,
}

#[derive(Debug, Serialize, ToSchema)]
struct BestOfSequence {
    generated_text: String,
    finish_reason: &'static str,
    generated_tokens: u32,
    seed: Option<u64>,
    prefill: Vec<PrefillToken>,
    tokens: Vec<WireToken>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top_tokens: Vec<Vec<WireToken>>,
}

#[derive(Debug, Serialize, ToSchema)]
struct StreamDetails {
    finish_reason: &'static str,
    generated_tokens: u32,
    seed: Option<u64>,
    input_length: u32,
}

#[derive(Debug, Serialize, ToSchema)]
struct PrefillToken {
    id: u32,
    text: String,
    #[serde(serialize_with = "finite_or_null")]
    #[schema(value_type = Option<f32>, required)]
    logprob: f32,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Token)]
struct WireToken {
    id: u32,
    text: String,
    #[serde(serialize_with = "finite_or_null")]
    #[schema(value_type = Option<f32>, required)]
    logprob: f32,
    special: bool,
}

impl GenerateRequest {
    /// Converts the request to a generation request.
    pub(crate) fn into_generation(self, context: RequestContext, defaults: &SamplingDefaults) -> GenerationRequest {
        let Self { inputs, parameters } = self;
        let RequestContext { received_at, request_id, tenant: _ } = context;
        let options = parameters.unwrap_or_else(GenerateParameters::absent).into_options(defaults);
        GenerationRequest { prompt: PromptInput::Text(inputs.into()), options, num_choices: 1, received_at, request_id }
    }
}

impl GenerateResponse {
    /// Returns the response with the text of the best completion. `others` appear only in the details, if
    /// `wants_details`.
    pub(crate) fn new(best: Completion, others: Vec<Completion>, wants_details: bool) -> Self {
        if !wants_details {
            return Self { generated_text: best.finish.generated_text, details: None };
        }
        let best = BestOfSequence::new(best);
        let others: Vec<_> = others.into_iter().map(BestOfSequence::new).collect();
        let details = Details {
            finish_reason: best.finish_reason,
            generated_tokens: best.generated_tokens,
            seed: best.seed,
            prefill: best.prefill,
            tokens: best.tokens,
            best_of_sequences: (!others.is_empty()).then_some(others),
            top_tokens: best.top_tokens,
        };
        Self { generated_text: best.generated_text, details: Some(details) }
    }
}

impl StreamResponse {
    /// Returns the event for one token. The last token's event also has the whole text and, if `wants_details`, the
    /// details.
    pub(crate) fn new(piece: Piece, wants_details: bool) -> Self {
        let (generated_text, details) = match piece.finish {
            None => (None, None),
            Some(finish) => {
                let details = wants_details.then_some(StreamDetails {
                    finish_reason: finish_reason(finish.reason),
                    generated_tokens: finish.num_generated_tokens,
                    seed: finish.seed,
                    input_length: finish.num_prompt_tokens,
                });
                (Some(finish.generated_text), details)
            }
        };
        Self {
            index: piece.index,
            token: piece.token.into(),
            top_tokens: piece.top_tokens.into_iter().map(WireToken::from).collect(),
            generated_text,
            details,
        }
    }
}

impl BestOfSequence {
    fn new(completion: Completion) -> Self {
        let Completion { finish, prompt, tokens, top_tokens } = completion;
        // TGI's format has no fields for the rest of `finish`.
        let Finish { reason, generated_text, num_generated_tokens, seed, .. } = finish;
        let wire = |tokens: Vec<Token>| tokens.into_iter().map(WireToken::from).collect::<Vec<_>>();
        Self {
            generated_text,
            finish_reason: finish_reason(reason),
            generated_tokens: num_generated_tokens,
            seed,
            prefill: prompt.into_iter().map(PrefillToken::from).collect(),
            tokens: wire(tokens),
            top_tokens: top_tokens.into_iter().map(wire).collect(),
        }
    }
}

impl From<Token> for WireToken {
    fn from(Token { id, text, logprob, is_special }: Token) -> Self {
        Self { id, text, logprob, special: is_special }
    }
}

impl From<PromptToken> for PrefillToken {
    fn from(PromptToken { id, text, logprob, top_tokens: _ }: PromptToken) -> Self {
        Self { id, text, logprob }
    }
}

fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::EosToken => "eos_token",
        FinishReason::StopSequence => "stop_sequence",
    }
}

fn finite_or_null<S: Serializer>(logprob: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    logprob.is_finite().then_some(logprob).serialize(serializer)
}
