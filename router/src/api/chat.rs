//! A conversation in the shape of OpenAI's API: messages, tools, and variables of the chat template.
//!
//! Messages stay JSON, because the template decides which fields it reads besides `role` and `content`.

use jiff::civil::DateTime;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::bounded::{self, MAX_MESSAGES, MAX_TOOLS};
use super::schemas;
use crate::error::ApiError;
use crate::text::{ChatEnding, ChatInputs};

/// A conversation, with its tools and the variables of the chat template.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct ChatRequest {
    #[serde(deserialize_with = "bounded::messages")]
    #[schema(schema_with = schemas::messages)]
    pub(super) messages: Vec<Map<String, Value>>,
    #[schema(value_type = Option<Vec<Object>>)]
    pub(super) tools: Option<Vec<Value>>,
    #[schema(value_type = Option<Vec<Object>>)]
    pub(super) documents: Option<Vec<Value>>,
    pub(super) add_generation_prompt: Option<bool>,
    pub(super) continue_final_message: Option<bool>,
    #[schema(value_type = Option<Object>)]
    pub(super) chat_template_kwargs: Option<Map<String, Value>>,
    #[schema(ignore)]
    pub(super) chat_template: Option<Value>,
}

impl ChatRequest {
    /// Converts the conversation to the template's inputs.
    ///
    /// # Errors
    /// When the conversation has no message, or too many messages or tools, a message is malformed, or the request asks
    /// for something that is not supported.
    pub(crate) fn into_inputs(self, now: DateTime) -> Result<ChatInputs, ApiError> {
        let ending = self.ending()?;
        let wrong = |sentence: String| Err(ApiError::BodyShape(sentence));
        if self.messages.is_empty() {
            return wrong("messages: there must be at least one".to_owned());
        }
        // `bounded` limits only the items of a body, and some dialects convert one item to several messages.
        let num_tools = self.tools.as_ref().map_or(0, Vec::len);
        for (field, given, limit) in [("messages", self.messages.len(), MAX_MESSAGES), ("tools", num_tools, MAX_TOOLS)]
        {
            if given > limit {
                return wrong(format!("{field}: at most {limit} are allowed. Given: {given}"));
            }
        }
        for (index, message) in self.messages.iter().enumerate() {
            if let Some(sentence) = message_error(message) {
                return wrong(format!("messages[{index}]{sentence}"));
            }
        }
        if self.chat_template.is_some_and(|template| !template.is_null()) {
            return wrong("chat_template: cannot be set in requests; start the server with --chat-template".to_owned());
        }
        Ok(ChatInputs {
            messages: self.messages.into_iter().map(without_developer).collect(),
            // An empty list becomes `None`, because templates that only check whether `tools` exists would announce an
            // empty list.
            tools: self.tools.filter(|tools| !tools.is_empty()),
            documents: self.documents,
            ending,
            variables: self.chat_template_kwargs.unwrap_or_default(),
            now,
        })
    }

    /// Returns how the rendered text ends. By default the model continues the last message if that is a text of the
    /// assistant without tool calls, as in TGI.
    fn ending(&self) -> Result<ChatEnding, ApiError> {
        match (self.add_generation_prompt, self.continue_final_message) {
            (Some(true), Some(true)) => {
                let sentence = "continue_final_message: cannot be true together with add_generation_prompt";
                Err(ApiError::BodyShape(sentence.to_owned()))
            }
            (_, Some(true)) => Ok(ChatEnding::FinalMessage),
            (None, None) if self.ends_with_answer() => Ok(ChatEnding::FinalMessage),
            (None | Some(true), _) => Ok(ChatEnding::GenerationPrompt),
            (Some(false), _) => Ok(ChatEnding::Conversation),
        }
    }

    fn ends_with_answer(&self) -> bool {
        let Some(last) = self.messages.last() else { return false };
        let has_text = match last.get("content") {
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(parts)) => !parts.is_empty(),
            _ => false,
        };
        has_text && last.get("role").and_then(Value::as_str) == Some("assistant") && !last.contains_key("tool_calls")
    }
}

/// Replaces the role `developer`, which newer OpenAI clients send, with `system`, which templates know.
fn without_developer(mut message: Map<String, Value>) -> Map<String, Value> {
    if let Some(role) = message.get_mut("role").filter(|role| **role == "developer") {
        *role = Value::from("system");
    }
    message
}

/// Returns the error in a message, as text to be appended to the message's path, or `None`.
pub(super) fn message_error(message: &Map<String, Value>) -> Option<String> {
    if !message.get("role").is_some_and(Value::is_string) {
        return Some(".role: must be a string".to_owned());
    }
    if let Some(sentence) = message.get("content").and_then(content_error) {
        return Some(format!(".content{sentence}"));
    }
    let sentence = message.get("tool_calls").and_then(calls_error)?;
    Some(format!(".tool_calls{sentence}"))
}

/// Returns the error in the content of a message, as text to be appended to the content's path, or `None`.
pub(super) fn content_error(content: &Value) -> Option<String> {
    let parts = match content {
        Value::Null | Value::String(_) => return None,
        Value::Array(parts) => parts,
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => return Some(": must be a string or a list".to_owned()),
    };
    let error = |(index, part): (usize, &Value)| part_error(part).map(|sentence| format!("[{index}]{sentence}"));
    parts.iter().enumerate().find_map(error)
}

/// Returns the error in a part of a message's content, as text to be appended to the part's path, or `None`.
pub(super) fn part_error(part: &Value) -> Option<String> {
    match part.get("type").and_then(Value::as_str) {
        Some("text") if part.get("text").is_some_and(Value::is_string) => None,
        Some("text") => Some(".text: must be a string".to_owned()),
        Some(kind) => Some(format!(".type: {kind:?} is not supported; this server reads \"text\"")),
        None if !part.is_object() => Some(": must be an object".to_owned()),
        None => Some(".type: must be a string".to_owned()),
    }
}

/// Returns the error in the tool calls of a message, as text to be appended to the path of the calls, or `None`.
fn calls_error(calls: &Value) -> Option<String> {
    let calls = match calls {
        Value::Null => return None,
        Value::Array(calls) => calls,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            return Some(": must be a list".to_owned());
        }
    };
    calls.iter().enumerate().find_map(|(index, call)| {
        let function = &call["function"];
        if !function["name"].is_string() {
            return Some(format!("[{index}].function.name: must be a string"));
        }
        let is_known = function["arguments"].is_string() || function["arguments"].is_object();
        (!is_known).then(|| format!("[{index}].function.arguments: must be a string or an object"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn inputs(body: Value) -> Result<ChatInputs, String> {
        let request: ChatRequest = serde_json::from_value(body).unwrap();
        request.into_inputs(DateTime::default()).map_err(|error| error.to_string())
    }

    fn check_error(body: Value, expected: &str) {
        let error = inputs(body).unwrap_err();
        assert_eq!(error, format!("Failed to deserialize the JSON body into the target type: {expected}"));
    }

    #[test]
    fn errors_say_where() {
        check_error(json!({"messages": []}), "messages: there must be at least one");
        let user = json!({"role": "user", "content": "x"});
        let tools = vec![json!({}); 1025];
        check_error(json!({"messages": [user], "tools": tools}), "tools: at most 1024 are allowed. Given: 1025");
        check_error(json!({"messages": [user, {"content": "x"}]}), "messages[1].role: must be a string");
        for (content, expected) in [
            (json!(7), ": must be a string or a list"),
            (json!(["x"]), "[0]: must be an object"),
            (json!([{"text": "x"}]), "[0].type: must be a string"),
            (json!([{"type": "text", "text": "x"}, {"type": "text"}]), "[1].text: must be a string"),
            (json!([{"type": "image_url"}]), "[0].type: \"image_url\" is not supported; this server reads \"text\""),
        ] {
            check_error(
                json!({"messages": [{"role": "user", "content": content}]}),
                &format!("messages[0].content{expected}"),
            );
        }
        for (calls, expected) in [
            (json!({}), ": must be a list"),
            (json!([{"function": {"arguments": "{}"}}]), "[0].function.name: must be a string"),
            (json!([{"function": {"name": "f"}}]), "[0].function.arguments: must be a string or an object"),
        ] {
            check_error(
                json!({"messages": [user, {"role": "assistant", "tool_calls": calls}]}),
                &format!("messages[1].tool_calls{expected}"),
            );
        }
        check_error(
            json!({"messages": [user], "chat_template": "x"}),
            "chat_template: cannot be set in requests; start the server with --chat-template",
        );
        check_error(
            json!({"messages": [user], "add_generation_prompt": true, "continue_final_message": true}),
            "continue_final_message: cannot be true together with add_generation_prompt",
        );
    }

    #[test]
    fn a_developer_is_the_system() {
        let messages = json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "x"}]);
        let roles: Vec<Value> = inputs(json!({"messages": messages}))
            .unwrap()
            .messages
            .iter()
            .map(|message| message["role"].clone())
            .collect();
        assert_eq!(roles, ["system", "user"]);
    }

    #[test]
    fn the_end_follows_from_the_last_message_unless_it_is_asked_for() {
        let user = json!({"role": "user", "content": "x"});
        let answer = json!({"role": "assistant", "content": "y"});
        let call = json!({"role": "assistant", "content": null, "tool_calls": []});
        for (last, options, expected) in [
            (&user, json!({}), ChatEnding::GenerationPrompt),
            (&answer, json!({}), ChatEnding::FinalMessage),
            (&call, json!({}), ChatEnding::GenerationPrompt),
            (&answer, json!({"add_generation_prompt": true}), ChatEnding::GenerationPrompt),
            (&answer, json!({"continue_final_message": false}), ChatEnding::GenerationPrompt),
            (&answer, json!({"add_generation_prompt": false}), ChatEnding::Conversation),
            (
                &answer,
                json!({"add_generation_prompt": false, "continue_final_message": true}),
                ChatEnding::FinalMessage,
            ),
        ] {
            let mut body = options;
            body["messages"] = json!([user, last]);
            assert_eq!(inputs(body.clone()).unwrap().ending, expected, "{body}");
        }
    }
}
