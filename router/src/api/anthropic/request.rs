//! The body of `/v1/messages`.

use proto::SamplingDefaults;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::conversation::{messages, tool_fields};
use crate::api::nullable::null_as_false;
use crate::api::openai::{OpenAiSampling, ToolUse};
use crate::api::{ChatRequest, schemas};
use crate::error::ApiError;

/// Variables by which templates ask for thoughts.
const THINKING_VARIABLES: [&str; 2] = ["enable_thinking", "thinking"];

/// Body of `POST /v1/messages`; of `count_tokens` too, where only the conversation counts.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct MessagesRequest {
    #[schema(schema_with = schemas::messages)]
    messages: Vec<Map<String, Value>>,
    /// A text, or a list of blocks with texts.
    #[schema(schema_with = schemas::text_or_parts)]
    system: Option<Value>,
    /// Needed, but where tokens are only counted.
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
    /// Whether to think is up to the template; the budget is not enforced.
    #[schema(value_type = Option<Object>)]
    thinking: Option<Value>,
}

/// What a request asks for, but for its conversation.
#[derive(Debug)]
pub(crate) struct MessagesPlan {
    pub(crate) is_stream: bool,
    pub(crate) stop_sequences: Vec<String>,
    pub(crate) sampling: OpenAiSampling,
    pub(crate) tools: ToolUse,
}

/// Answer of `POST /v1/messages/count_tokens`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenCount {
    pub(crate) input_tokens: usize,
}

impl MessagesRequest {
    /// The conversation.
    ///
    /// # Errors
    /// When it asks for what is not done here.
    pub(crate) fn chat(&self) -> Result<ChatRequest, ApiError> {
        let system = self.system.clone().filter(|system| !system.is_null());
        let system = system.map(|content| {
            Map::from_iter([("role".to_owned(), Value::from("system")), ("content".to_owned(), content)])
        });
        let thinks = self.thinking.as_ref().map(|thinking| thinking["type"] != "disabled");
        let variable = |thinks: bool| THINKING_VARIABLES.map(|name| (name.to_owned(), Value::from(thinks)));
        Ok(ChatRequest {
            messages: system.into_iter().chain(messages(&self.messages)?).collect(),
            tools: self.tool_use()?.tools,
            documents: None,
            add_generation_prompt: None,
            continue_final_message: None,
            chat_template_kwargs: thinks.map(|thinks| Map::from_iter(variable(thinks))),
            chat_template: None,
        })
    }

    /// Everything else.
    ///
    /// # Errors
    /// When the field that Anthropic's API demands is missing.
    pub(crate) fn into_plan(self, defaults: &SamplingDefaults) -> Result<MessagesPlan, ApiError> {
        let max_tokens = self.max_tokens.ok_or_else(|| ApiError::BodyShape("missing field `max_tokens`".to_owned()))?;
        let tools = self.tool_use()?;
        let sampling = OpenAiSampling {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            stop: self.stop_sequences.clone(),
            max_tokens: Some(max_tokens),
            // The field is mandatory, so clients send one that fits the largest models.
            cuts_max_new_tokens: true,
            ..OpenAiSampling::default()
        };
        let sampling = sampling.or_defaults(defaults);
        Ok(MessagesPlan { is_stream: self.stream, stop_sequences: self.stop_sequences, sampling, tools })
    }

    fn tool_use(&self) -> Result<ToolUse, ApiError> {
        tool_fields(self.tools.as_deref().unwrap_or_default(), self.tool_choice.as_ref())?.into_use()
    }
}
