//! The tool calls of an answer in OpenAI's form: whole, or as the chunks of a stream. Only the first chunk of a call
//! names the function.

use serde::Serialize;
use utoipa::ToSchema;

use crate::text::ToolCall;

const FUNCTION: &str = "function";

/// A tool call of a message.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MessageCall {
    id: String,
    r#type: &'static str,
    function: Function,
}

/// A part of a tool call, in a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallDelta {
    /// The index of the tool call in its message, from 0.
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Debug, Serialize, ToSchema)]
struct Function {
    name: String,
    arguments: String,
}

#[derive(Debug, Serialize, ToSchema)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl From<ToolCall> for MessageCall {
    fn from(ToolCall { id, name, arguments }: ToolCall) -> Self {
        Self { id, r#type: FUNCTION, function: Function { name, arguments } }
    }
}

impl CallDelta {
    /// Returns the first chunk of a call, with the call's id and the name of the function.
    pub(super) fn first(index: usize, id: String, name: String) -> Self {
        let function = FunctionDelta { name: Some(name), arguments: String::new() };
        Self { index, id: Some(id), r#type: Some(FUNCTION), function }
    }

    /// Returns a chunk with more of the arguments.
    pub(super) fn more(index: usize, arguments: String) -> Self {
        Self { index, id: None, r#type: None, function: FunctionDelta { name: None, arguments } }
    }
}
