//! The body of `/v1/responses`.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::input::{functions, messages, tool_choice};
use super::reply::ResponseHead;
use crate::api::grammar::tagged;
use crate::api::nullable::{minus_one_as_none, null_as_false};
use crate::api::openai::{OpenAiSampling, ToolFields, ToolUse};
use crate::api::{ChatRequest, schemas};
use crate::error::ApiError;
use crate::grammar::Grammar;
use crate::validation::ValidationError;

/// The body of `POST /v1/responses`, without the fields that all generating routes share.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct ResponsesRequest {
    /// A text, or a list of items.
    #[schema(schema_with = schemas::text_or_parts)]
    input: Value,
    instructions: Option<String>,
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    text: Option<TextOptions>,
    #[serde(default, deserialize_with = "minus_one_as_none")]
    #[schema(value_type = Option<i64>, minimum = -1, maximum = 4294967295i64)]
    max_output_tokens: Option<u32>,
    reasoning: Option<Reasoning>,
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
    #[serde(default, deserialize_with = "null_as_false")]
    #[schema(value_type = Option<bool>)]
    stream: bool,
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
    // Fields that are not supported: any value but the default is refused.
    #[schema(ignore)]
    previous_response_id: Option<Value>,
    #[schema(ignore)]
    conversation: Option<Value>,
    #[schema(ignore)]
    prompt: Option<Value>,
    #[serde(default, deserialize_with = "null_as_false")]
    #[schema(ignore)]
    background: bool,
    truncation: Option<String>,
    top_logprobs: Option<u32>,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
struct TextOptions {
    #[serde(default, deserialize_with = "tagged")]
    #[schema(schema_with = schemas::grammar)]
    format: Option<Grammar>,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
struct Reasoning {
    effort: Option<String>,
}

/// The contents of a request, without its conversation.
#[derive(Debug)]
pub(crate) struct ResponsesPlan {
    pub(crate) is_stream: bool,
    pub(crate) head: ResponseHead,
    pub(crate) sampling: OpenAiSampling,
    pub(crate) tools: ToolUse,
}

impl ResponsesRequest {
    /// Splits the request into its conversation and the rest.
    ///
    /// # Errors
    /// When the request is malformed, or asks for something unsupported, such as a stored conversation.
    pub(crate) fn into_plan(
        self,
        mut sampling: OpenAiSampling,
        model: &str,
    ) -> Result<(ChatRequest, ResponsesPlan), ApiError> {
        self.check()?;
        let head = ResponseHead::new(model, self.echo(&sampling));
        sampling.max_completion_tokens = self.max_output_tokens.or(sampling.max_completion_tokens);
        if let Some(format) = self.text.and_then(|text| text.format) {
            sampling.grammar = Some(("text.format", format));
        }
        let tools = ToolFields {
            tools: Some(functions(self.tools.unwrap_or_default())),
            tool_choice: self.tool_choice.map(tool_choice),
            parallel_tool_calls: self.parallel_tool_calls,
        };
        let tools = tools.into_use()?;
        let mut variables = self.chat_template_kwargs.unwrap_or_default();
        if let Some(effort) = self.reasoning.and_then(|reasoning| reasoning.effort) {
            variables.entry("reasoning_effort").or_insert(Value::String(effort));
        }
        let chat = ChatRequest {
            messages: messages(self.instructions, self.input)?,
            tools: tools.tools.clone(),
            documents: None,
            add_generation_prompt: Some(true),
            continue_final_message: None,
            chat_template_kwargs: Some(variables),
            chat_template: None,
        };
        Ok((chat, ResponsesPlan { is_stream: self.stream, head, sampling, tools }))
    }

    /// Refuses fields that need stored conversations, or would change the answer and are not supported, and a limit of
    /// zero tokens.
    fn check(&self) -> Result<(), ApiError> {
        if self.max_output_tokens == Some(0) {
            return Err(ApiError::Generation(ValidationError::MaxNewTokens("max_output_tokens").into()));
        }
        let is_there = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        let asked = [
            ("previous_response_id", is_there(&self.previous_response_id)),
            ("conversation", is_there(&self.conversation)),
            ("prompt", is_there(&self.prompt)),
            ("background", self.background),
            ("truncation", self.truncation.as_deref().is_some_and(|truncation| truncation != "disabled")),
            ("top_logprobs", self.top_logprobs.is_some_and(|count| count > 0)),
        ];
        match asked.into_iter().find(|(_, is_asked)| *is_asked) {
            Some((field, _)) => Err(ApiError::NotSupported { what: format!("`{field}`") }),
            None => Ok(()),
        }
    }

    /// Returns the fields of the request that its response repeats.
    fn echo(&self, sampling: &OpenAiSampling) -> Value {
        let or = |value: Option<Value>, default: Value| value.unwrap_or(default);
        let parameters = sampling.parameters();
        serde_json::json!({
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata.clone().unwrap_or_default(),
            "parallel_tool_calls": self.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": null,
            "reasoning": {"effort": self.reasoning.as_ref().and_then(|reasoning| reasoning.effort.clone()), "summary": null},
            "store": false,
            "temperature": parameters.temperature,
            "tool_choice": or(self.tool_choice.clone(), "auto".into()),
            "tools": self.tools.clone().unwrap_or_default(),
            "top_p": parameters.top_p,
            "truncation": "disabled",
        })
    }
}
