//! The errors that clients see, and their HTTP statuses. A body is `{"error", "error_type"}`, as in TGI. On paths below
//! `/v1`, bodies have the shape of OpenAI's or Anthropic's API. When a prompt is too long, those clients also expect
//! status 400 and a message in their API's words.
//!
//! | status | `error_type` | when | what the client should do |
//! |---|---|---|---|
//! | 400 | `invalid_request` | the body is not JSON, or did not arrive whole | correct the request |
//! | 400 | `template_error` | the chat template refuses the conversation, or there is none | correct the messages |
//! | 400 | `context_length_exceeded` | below `/v1`: prompt and answer exceed the context | send a shorter prompt |
//! | 401 | `unauthorized` | there are API keys, and the request has none of them | send one |
//! | 404, 405 | `not_found`, `method_not_allowed` | no such route or model | correct the URL or the model |
//! | 408 | `request_timeout` | the body came too slowly | send faster |
//! | 413 | `payload_too_large` | the body exceeds `--payload-limit` or the memory for bodies | send less |
//! | 415 | `unsupported_media_type` | a compressed body, or a web page (`Origin`) sent no JSON type | send plain JSON |
//! | 422 | `validation` | a field is missing, of the wrong type, out of range or not supported | correct that field |
//! | 422 | `batch size exceeded` | more prompts than `--max-client-batch-size` | send fewer prompts |
//! | 424 | `generation` | the shards failed, or only this generation failed | try another server |
//! | 429 | `overloaded` | too many requests or queued tokens, or no memory or thread | try again after a second |
//! | 500 | `incomplete_generation`, `internal`, … | a defect of the server | report it |
//! | 501 | `not_implemented` | a route of OpenAI's for something other than text | use another server |
//! | 503 | `healthcheck` | a health check, and the server cannot serve | try another server |
//! | 503 | `stopping` | the server is shutting down | send the request again, to another server |
//! | 504 | `timeout` | the request took longer than `--request-timeout` | ask for less, or try when the load is lower |
//!
//! A request gets status 429 when one of the limits `--max-concurrent-requests`, `--max-queued-tokens` or
//! `--memory-budget` is reached, and status 413 when its body alone needs more memory than `--memory-budget` has for
//! bodies.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::generation::GenerationError;
use crate::text::{ChatError, ChatTemplateError, TextError};
use crate::validation::ValidationError;

/// The header that clients of Anthropic's API send with every request.
const ANTHROPIC_VERSION: &str = "anthropic-version";

/// The errors that a client may receive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("Failed to parse the request body as JSON: {0}")]
    BodySyntax(String),
    #[error("Failed to deserialize the JSON body into the target type: {0}")]
    BodyShape(String),
    #[error("Failed to buffer the request body: {0}")]
    BodyRead(String),
    #[error("Failed to buffer the request body: length limit exceeded: at most {limit_bytes} bytes are allowed")]
    BodyTooLarge { limit_bytes: usize },
    #[error("Failed to buffer the request body: it did not arrive within {} seconds", .0.as_secs())]
    BodyTimeout(Duration),
    #[error("Failed to buffer the request body: fewer than {least} bytes of it arrived within {} seconds", .time.as_secs())]
    BodyStalled { least: usize, time: Duration },
    #[error("Failed to buffer the request body: it takes more memory than `--memory-budget` leaves for bodies")]
    BodyTooCostly,
    #[error("Model is overloaded: other requests take the memory that `--memory-budget` leaves for bodies")]
    NoRoomForBody,
    #[error("Model is overloaded: unread answers take the memory that `--memory-budget` leaves for them")]
    NoRoomForAnswer,
    #[error("the body has Content-Encoding {0:?}; send it without one")]
    BodyEncoding(String),
    #[error("a request with the header Origin must have Content-Type: application/json. Given: {0:?}")]
    BodyOfPage(String),
    #[error("{}: send one of this server's keys as `Authorization: Bearer <key>`", if *.has_key { "the API key is not known" } else { "an API key is needed" })]
    Unauthorized { has_key: bool },
    #[error("{what} is not supported by this server")]
    NotSupported { what: String },
    #[error("Number of prompts exceeds the maximum allowed batch size of {limit}")]
    TooManyPrompts { limit: u32 },
    #[error("the model {given:?} is not served here; {served:?} is")]
    NoSuchModel { given: String, served: String },
    #[error("{0} are not supported; this server only generates text")]
    NotDone(&'static str),
    #[error("instances: there must be at least one, each with `inputs` or `messages`")]
    NoInstances,
    #[error("the body must have `inputs`, `messages` or `prompt`")]
    NoPrompt,
    #[error("{method} {path} is not a route of this server{}", hint(path))]
    NotFound { method: Method, path: String },
    #[error("{path} does not accept {method}")]
    MethodNotAllowed { method: Method, path: String },
    #[error(transparent)]
    Generation(#[from] GenerationError),
    #[error("Template error: {0}")]
    ChatTemplate(ChatTemplateError),
    #[error("Incomplete generation stream")]
    IncompleteStream,
    #[error("Stream event serialization error")]
    StreamSerialization,
    #[error("unhealthy")]
    Unhealthy,
    #[error("the request failed because of a defect of this server; report it with the log of the server")]
    Panic,
}

impl ApiError {
    pub(crate) fn status_and_type(&self) -> (StatusCode, &'static str) {
        match self {
            Self::BodySyntax(_) | Self::BodyRead(_) => (StatusCode::BAD_REQUEST, "invalid_request"),
            Self::ChatTemplate(ChatTemplateError::NoProcess(_)) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "template_error")
            }
            Self::ChatTemplate(_) => (StatusCode::BAD_REQUEST, "template_error"),
            Self::BodyShape(_) | Self::NotSupported { .. } | Self::NoInstances | Self::NoPrompt => {
                (StatusCode::UNPROCESSABLE_ENTITY, "validation")
            }
            Self::NoSuchModel { .. } => (StatusCode::NOT_FOUND, "not_found"),
            Self::NotDone(_) => (StatusCode::NOT_IMPLEMENTED, "not_implemented"),
            Self::TooManyPrompts { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "batch size exceeded"),
            Self::BodyTooLarge { .. } | Self::BodyTooCostly => (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large"),
            Self::BodyTimeout(_) | Self::BodyStalled { .. } => (StatusCode::REQUEST_TIMEOUT, "request_timeout"),
            Self::NoRoomForBody | Self::NoRoomForAnswer => (StatusCode::TOO_MANY_REQUESTS, "overloaded"),
            Self::BodyEncoding(_) | Self::BodyOfPage(_) => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type")
            }
            Self::Unauthorized { .. } => (StatusCode::UNAUTHORIZED, "unauthorized"),
            Self::NotFound { .. } => (StatusCode::NOT_FOUND, "not_found"),
            Self::MethodNotAllowed { .. } => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::Generation(GenerationError::Validation(_)) => (StatusCode::UNPROCESSABLE_ENTITY, "validation"),
            Self::Generation(GenerationError::Overloaded) => (StatusCode::TOO_MANY_REQUESTS, "overloaded"),
            Self::Generation(GenerationError::Failed(_)) => (StatusCode::FAILED_DEPENDENCY, "generation"),
            Self::Generation(GenerationError::Stopping) => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
            Self::Generation(GenerationError::TimedOut) => (StatusCode::GATEWAY_TIMEOUT, "timeout"),
            Self::Generation(GenerationError::Incomplete) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "incomplete_generation")
            }
            Self::IncompleteStream => (StatusCode::INTERNAL_SERVER_ERROR, "incomplete_generation_stream"),
            Self::StreamSerialization => (StatusCode::INTERNAL_SERVER_ERROR, "stream_serialization_error"),
            Self::Unhealthy => (StatusCode::SERVICE_UNAVAILABLE, "healthcheck"),
            Self::Panic => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        }
    }

    /// True if this error may have ended the reading of a request's body.
    fn leaves_body(&self) -> bool {
        matches!(
            self,
            Self::BodyTooLarge { .. }
                | Self::BodyTooCostly
                | Self::NoRoomForBody
                | Self::BodyTimeout(_)
                | Self::BodyStalled { .. }
                | Self::BodyRead(_)
                | Self::BodyEncoding(_)
                | Self::BodyOfPage(_)
        )
    }

    /// Returns the error that is sent at the end of a stream that has begun.
    pub(crate) fn of_stream(failure: GenerationError) -> Self {
        match failure {
            GenerationError::Incomplete => Self::IncompleteStream,
            other => Self::Generation(other),
        }
    }

    /// Returns the JSON object that describes the error.
    pub(crate) fn body(&self) -> Value {
        let (_, error_type) = self.status_and_type();
        json!(ErrorBody { error: self.to_string(), error_type })
    }
}

impl From<ChatError> for ApiError {
    fn from(error: ChatError) -> Self {
        match error {
            ChatError::Template(error) => Self::ChatTemplate(error),
            ChatError::Tokenizer(TextError::Busy) => Self::Generation(GenerationError::Overloaded),
            ChatError::Tokenizer(error) => Self::Generation(ValidationError::Tokenizer(error).into()),
            ChatError::TooLong { limit, given } => {
                Self::Generation(ValidationError::InputBytes { limit, given }.into())
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, _) = self.status_and_type();
        let mut response = (status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        let is_stopping = matches!(self, Self::Generation(GenerationError::Stopping));
        if status == StatusCode::TOO_MANY_REQUESTS || is_stopping {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // The rest of the body stays unread, so the connection cannot carry another request.
        if self.leaves_body() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// An error in TGI's format.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    error: String,
    error_type: &'static str,
}

/// An error in OpenAI's format.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OpenAiErrorBody {
    error: OpenAiErrorObject,
}

#[derive(Debug, Serialize, ToSchema)]
struct OpenAiErrorObject {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<String>,
    code: &'static str,
}

/// An error in Anthropic's format.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnthropicErrorBody {
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicErrorObject,
}

#[derive(Debug, Serialize, ToSchema)]
struct AnthropicErrorObject {
    #[serde(rename = "type")]
    kind: &'static str,
    message: String,
}

/// The shape of errors, by the API of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorShape {
    Tgi,
    OpenAi,
    Anthropic,
}

impl ErrorShape {
    /// Returns the shape that the sender of a request expects.
    pub(crate) fn of(path: &str, headers: &HeaderMap) -> Self {
        let is_below =
            |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match (is_below("/v1"), is_below("/v1/messages") || headers.contains_key(ANTHROPIC_VERSION)) {
            (true, true) => Self::Anthropic,
            (true, false) => Self::OpenAi,
            (false, _) => Self::Tgi,
        }
    }
}

impl ApiError {
    /// Returns the response in the shape that clients of this path expect.
    pub(crate) fn for_path(self, path: &str, headers: &HeaderMap) -> Response {
        self.in_shape(ErrorShape::of(path, headers))
    }

    /// Returns the response in a shape.
    pub(crate) fn in_shape(self, shape: ErrorShape) -> Response {
        match shape {
            ErrorShape::Anthropic => AnthropicError(self).into_response(),
            ErrorShape::OpenAi => OpenAiError(self).into_response(),
            ErrorShape::Tgi => self.into_response(),
        }
    }

    /// True if the error is that a grammar is refused.
    fn is_of_grammar(&self) -> bool {
        matches!(self, Self::Generation(GenerationError::Validation(ValidationError::Grammar { .. })))
    }

    /// Returns the lengths of prompt and answer if the error is that they do not fit in the context.
    fn context_overflow(&self) -> Option<Overflow> {
        let Self::Generation(GenerationError::Validation(error)) = self else { return None };
        match *error {
            ValidationError::TotalTokens { limit, input, max_new } => {
                Some(Overflow { limit, total_limit: limit, input, max_new: Some(max_new) })
            }
            ValidationError::InputTokens { limit, given, total_limit } => {
                Some(Overflow { limit, total_limit, input: given, max_new: None })
            }
            _ => None,
        }
    }
}

/// The numbers of tokens of a prompt and an answer that do not fit in the context, and the limits.
#[derive(Debug, Clone, Copy)]
struct Overflow {
    /// The maximum length of a prompt or, with `max_new`, of prompt and answer together.
    limit: u32,
    total_limit: u32,
    input: u32,
    /// The number of tokens to generate. `None` if the prompt alone is too long.
    max_new: Option<u32>,
}

impl Overflow {
    /// Returns the message in the words of OpenAI.
    fn openai_message(self) -> String {
        let Self { limit, total_limit, input, max_new } = self;
        let context = format!("This model's maximum context length is {total_limit} tokens");
        match max_new {
            Some(max_new) => format!(
                "{context}. However, you requested {} tokens ({input} in the prompt, {max_new} in the completion). Please reduce \
                 the length of the prompt or of the completion.",
                u64::from(input) + u64::from(max_new)
            ),
            None => format!(
                "{context}, of which a prompt can have {limit}. However, your prompt resulted in {input} tokens. Please reduce the \
                 length of the prompt."
            ),
        }
    }

    /// Returns the message in the words of Anthropic.
    fn anthropic_message(self) -> String {
        format!("prompt is too long: {} tokens > {} maximum", self.input, self.limit)
    }
}

/// Returns advice for a path that is not a route.
fn hint(path: &str) -> &'static str {
    let is_ollama = path == "/api" || path.starts_with("/api/");
    if is_ollama { ": Ollama's API is not supported; use OpenAI's API below /v1" } else { "" }
}

/// An error on OpenAI's routes, in the shape that its clients expect: an object with a message.
#[derive(Debug)]
pub(crate) struct OpenAiError(ApiError);

impl<E: Into<ApiError>> From<E> for OpenAiError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl OpenAiError {
    /// Returns the JSON object that describes the error.
    pub(crate) fn body(&self) -> Value {
        let (status, code) = self.0.status_and_type();
        let overflow = self.0.context_overflow();
        let code = if overflow.is_some() { "context_length_exceeded" } else { code };
        let message = overflow.map_or_else(|| self.0.to_string(), Overflow::openai_message);
        let kind = match status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() && status != StatusCode::FAILED_DEPENDENCY => "invalid_request_error",
            _ => "server_error",
        };
        let error = OpenAiErrorObject { message, kind, param: None, code };
        json!(OpenAiErrorBody { error })
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        with_body(self.body(), self.0)
    }
}

/// An error on Anthropic's routes, in the shape that its clients expect.
#[derive(Debug)]
pub(crate) struct AnthropicError(ApiError);

impl<E: Into<ApiError>> From<E> for AnthropicError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl AnthropicError {
    /// Returns the JSON object that describes the error.
    pub(crate) fn body(&self) -> Value {
        let (status, _) = self.0.status_and_type();
        let kind = match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_client_error() && status != StatusCode::FAILED_DEPENDENCY => "invalid_request_error",
            _ => "api_error",
        };
        let message = self.0.context_overflow().map_or_else(|| self.0.to_string(), Overflow::anthropic_message);
        let error = AnthropicErrorObject { kind, message };
        json!(AnthropicErrorBody { kind: "error", error })
    }
}

impl IntoResponse for AnthropicError {
    fn into_response(self) -> Response {
        with_body(self.body(), self.0)
    }
}

/// Returns the response to an error with the given body instead of TGI's. The status is 400 when the prompt, alone or
/// with its answer, is too long, or the grammar is refused, as OpenAI's and Anthropic's clients expect.
fn with_body(body: Value, error: ApiError) -> Response {
    let body = Json(body).into_response().into_body();
    let is_bad_request = error.context_overflow().is_some() || error.is_of_grammar();
    let (mut parts, _) = error.into_response().into_parts();
    if is_bad_request {
        parts.status = StatusCode::BAD_REQUEST;
    }
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, body)
}
