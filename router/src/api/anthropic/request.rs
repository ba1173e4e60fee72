//! The body of `/v1/messages`.

use proto::SamplingDefaults;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::conversation::{messages, tool_fields};
use crate::api::chat::content_error;
use crate::api::grammar::tagged;
use crate::api::nullable::null_as_false;
use crate::api::openai::{OpenAiSampling, ToolUse};
use crate::api::{ChatRequest, bounded, schemas};
use crate::error::ApiError;
use crate::grammar::Grammar;

/// The variables with which chat templates turn thinking on or off.
const THINKING_VARIABLES: [&str; 2] = ["enable_thinking", "thinking"];

/// The body of `POST /v1/messages`, and of `POST /v1/messages/count_tokens`, which counts only the conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct MessagesRequest {
    #[serde(deserialize_with = "bounded::messages")]
    #[schema(schema_with = schemas::messages)]
    messages: Vec<Map<String, Value>>,
    /// A text, or a list of blocks with texts.
    #[schema(schema_with = schemas::text_or_parts)]
    system: Option<Value>,
    /// The maximum number of tokens to generate. `/v1/messages` requires it, `count_tokens` does not.
    max_tokens: Option<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    #[serde(default)]
    stop_sequences: Vec<String>,
    #[serde(default, deserialize_with = "null_as_false")]
    #[schema(value_type = Option<bool>)]
    stream: bool,
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    #[schema(value_type = Option<Object>)]
    tool_choice: Option<Value>,
    /// Asks the chat template to turn thinking on or off. `budget_tokens` is not enforced.
    #[schema(value_type = Option<Object>)]
    thinking: Option<Value>,
    /// `format` is the form of the answer: `{"type": "json_schema", "schema": …}`. `effort` is passed to the chat
    /// template as `reasoning_effort`.
    #[schema(value_type = Option<Object>)]
    output_config: Option<Value>,
    /// The older name of `output_config.format`.
    #[schema(value_type = Option<Object>)]
    output_format: Option<Value>,
    // Fields that are not supported.
    #[schema(ignore)]
    mcp_servers: Option<Value>,
    #[schema(ignore)]
    container: Option<Value>,
    #[schema(ignore)]
    context_management: Option<Value>,
    #[schema(ignore)]
    compaction: Option<Value>,
    #[schema(ignore)]
    fallbacks: Option<Value>,
    #[schema(ignore)]
    thread: Option<Value>,
}

/// The contents of the field `output_config`: the format of the answer, and the reasoning effort.
#[derive(Debug, Default)]
struct OutputConfig {
    format: Option<Grammar>,
    effort: Option<String>,
}

/// The contents of a request, without its conversation.
#[derive(Debug)]
pub(crate) struct MessagesPlan {
    pub(crate) is_stream: bool,
    pub(crate) stop_sequences: Vec<String>,
    pub(crate) sampling: OpenAiSampling,
    pub(crate) tools: ToolUse,
}

/// The response of `POST /v1/messages/count_tokens`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenCount {
    pub(crate) input_tokens: usize,
}

impl MessagesRequest {
    /// Returns the conversation.
    ///
    /// # Errors
    /// When the request is malformed, or asks for something that is not supported.
    pub(crate) fn chat(&self) -> Result<ChatRequest, ApiError> {
        self.check()?;
        let effort = self.output_config()?.effort.map(|effort| ("reasoning_effort".to_owned(), Value::from(effort)));
        if let Some(sentence) = self.system.as_ref().and_then(content_error) {
            return Err(ApiError::BodyShape(format!("system{sentence}")));
        }
        let system = self.system.clone().filter(|system| !system.is_null());
        let system = system.map(|content| {
            Map::from_iter([("role".to_owned(), Value::from("system")), ("content".to_owned(), content)])
        });
        let thinks = self.thinking.as_ref().map(|thinking| thinking["type"] != "disabled");
        let thinking = |thinks: bool| THINKING_VARIABLES.map(|name| (name.to_owned(), Value::from(thinks)));
        let variables: Map<_, _> = thinks.into_iter().flat_map(thinking).chain(effort).collect();
        Ok(ChatRequest {
            messages: system.into_iter().chain(messages(&self.messages)?).collect(),
            tools: self.tool_use()?.tools,
            documents: None,
            add_generation_prompt: None,
            continue_final_message: None,
            chat_template_kwargs: Some(variables).filter(|variables| !variables.is_empty()),
            chat_template: None,
        })
    }

    /// Returns all of the request except its conversation.
    ///
    /// # Errors
    /// When `max_tokens`, which Anthropic's API requires, is missing, or the tools or the format of the answer are
    /// malformed or not supported.
    pub(crate) fn into_plan(self, defaults: &SamplingDefaults) -> Result<MessagesPlan, ApiError> {
        let max_tokens = self.max_tokens.ok_or_else(|| ApiError::BodyShape("missing field `max_tokens`".to_owned()))?;
        let field = self.output_format.as_ref().map_or("output_config.format", |_| "output_format");
        let (tools, format) = (self.tool_use()?, self.output_config()?.format);
        let sampling = OpenAiSampling {
            grammar: format.map(|format| (field, format)),
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            stop: self.stop_sequences.clone(),
            max_tokens: Some(max_tokens),
            // `max_tokens` is mandatory, so clients send a value that suits the largest models. A value that exceeds
            // the room in the context is therefore reduced instead of refused.
            cuts_max_new_tokens: true,
            ..OpenAiSampling::default()
        };
        let sampling = sampling.or_defaults(defaults);
        Ok(MessagesPlan { is_stream: self.stream, stop_sequences: self.stop_sequences, sampling, tools })
    }

    /// Refuses fields that would change the answer and are not supported.
    fn check(&self) -> Result<(), ApiError> {
        let asked = [
            ("mcp_servers", &self.mcp_servers),
            ("container", &self.container),
            ("context_management", &self.context_management),
            ("compaction", &self.compaction),
            ("fallbacks", &self.fallbacks),
            ("thread", &self.thread),
        ];
        match asked.into_iter().find(|(_, value)| value.as_ref().is_some_and(says_something)) {
            Some((field, _)) => Err(ApiError::NotSupported { what: format!("`{field}`") }),
            None => Ok(()),
        }
    }

    fn output_config(&self) -> Result<OutputConfig, ApiError> {
        let mut config = OutputConfig::default();
        let wrong = |field: &str, sentence: &dyn std::fmt::Display| ApiError::BodyShape(format!("{field}: {sentence}"));
        let format = |field: &str, value: &Value| tagged(value.clone()).map_err(|error| wrong(field, &error));
        if let Some(value) = &self.output_format {
            config.format = format("output_format", value)?;
        }
        let Some(value) = self.output_config.as_ref().filter(|value| !value.is_null()) else { return Ok(config) };
        let keys = value.as_object().ok_or_else(|| wrong("output_config", &"must be an object"))?;
        for (key, value) in keys.iter().filter(|(_, value)| !value.is_null()) {
            match key.as_str() {
                "format" if config.format.is_some() => {
                    return Err(wrong("output_config.format", &"cannot be given together with output_format"));
                }
                "format" => config.format = format("output_config.format", value)?,
                "effort" => {
                    let effort = value.as_str().ok_or_else(|| wrong("output_config.effort", &"must be a string"))?;
                    config.effort = Some(effort.to_owned());
                }
                other => return Err(ApiError::NotSupported { what: format!("`output_config.{other}`") }),
            }
        }
        Ok(config)
    }

    fn tool_use(&self) -> Result<ToolUse, ApiError> {
        tool_fields(self.tools.as_deref().unwrap_or_default(), self.tool_choice.as_ref())?.into_use()
    }
}

/// True if the value of an unsupported field asks for something. Clients also send empty values, which ask for nothing.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(values) => !values.is_empty(),
        Value::Object(values) => values.values().any(says_something),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}
