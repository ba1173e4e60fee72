//! Converts Anthropic's content blocks to messages in OpenAI's form: tool calls and thoughts become fields of the
//! message, and each tool result becomes a message of its own.

use serde_json::{Map, Value, json};

use crate::api::chat::{content_error, message_error, part_error};
use crate::api::openai::ToolFields;
use crate::error::ApiError;

/// Returns the messages of a conversation in OpenAI's form.
///
/// # Errors
/// When a message or a block is malformed or not supported. The error has the client's indices, which
/// `ChatRequest::into_inputs` no longer knows.
pub(super) fn messages(given: &[Map<String, Value>]) -> Result<Vec<Map<String, Value>>, ApiError> {
    let mut messages = Vec::with_capacity(given.len());
    for (index, message) in given.iter().enumerate() {
        let wrong = |sentence: String| ApiError::BodyShape(format!("messages[{index}]{sentence}"));
        let first = messages.len();
        match message.get("content") {
            Some(Value::Array(blocks)) => {
                split(message, blocks, &mut messages).map_err(|sentence| wrong(format!(".content{sentence}")))?;
            }
            _ => messages.push(message.clone()),
        }
        // The blocks are already checked, so this is an error in a field of the client's message.
        if let Some(sentence) = messages[first..].iter().find_map(message_error) {
            return Err(wrong(sentence));
        }
    }
    Ok(messages)
}

/// Converts the tools and the tool choice to OpenAI's form.
pub(super) fn tool_fields(tools: &[Value], choice: Option<&Value>) -> Result<ToolFields, ApiError> {
    let wrong = |sentence: String| Err(ApiError::BodyShape(sentence));
    let mut functions = Vec::with_capacity(tools.len());
    for (index, tool) in tools.iter().enumerate() {
        match tool.get("type").and_then(Value::as_str) {
            None | Some("custom") => {}
            Some(kind) => {
                return wrong(format!("tools[{index}].type: {kind:?} is not supported; this server knows \"custom\""));
            }
        }
        let mut function = json!({"name": tool["name"], "parameters": tool["input_schema"]});
        if let Some(description) = tool.get("description") {
            function["description"] = description.clone();
        }
        functions.push(json!({"type": "function", "function": function}));
    }
    let kind = choice.and_then(|choice| choice.get("type")).and_then(Value::as_str);
    let tool_choice = match (choice, kind) {
        (None | Some(Value::Null), _) | (_, Some("auto")) => None,
        (_, Some("any")) => Some(json!("required")),
        (_, Some("none")) => Some(json!("none")),
        (Some(choice), Some("tool")) => Some(json!({"type": "function", "function": {"name": choice["name"]}})),
        _ => return wrong("tool_choice.type: must be \"auto\", \"any\", \"tool\" or \"none\"".to_owned()),
    };
    let is_single = choice.is_some_and(|choice| choice["disable_parallel_tool_use"] == true);
    Ok(ToolFields { tools: Some(functions), tool_choice, parallel_tool_calls: is_single.then_some(false) })
}

/// Converts the blocks of a message and appends the result to `messages`: first each tool result as a message of its
/// own, then one message with the other blocks. A message that contains only tool results and redacted thoughts yields
/// no other message.
fn split(message: &Map<String, Value>, blocks: &[Value], messages: &mut Vec<Map<String, Value>>) -> Result<(), String> {
    let (mut content, mut calls, mut thoughts) = (Vec::new(), Vec::new(), String::new());
    for (index, block) in blocks.iter().enumerate() {
        let text_of = |field: &str| {
            let text = block[field].as_str().map(str::to_owned);
            text.ok_or_else(|| format!("[{index}].{field}: must be a string"))
        };
        match block["type"].as_str() {
            Some("tool_use") => {
                let (id, name) = (text_of("id")?, text_of("name")?);
                let input = Some(&block["input"]).filter(|input| input.is_object());
                let arguments = input.ok_or_else(|| format!("[{index}].input: must be an object"))?.to_string();
                calls.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}));
            }
            Some("tool_result") => {
                let (id, content) = (text_of("tool_use_id")?, &block["content"]);
                if let Some(sentence) = content_error(content) {
                    return Err(format!("[{index}].content{sentence}"));
                }
                let content = if content.is_null() { json!("") } else { content.clone() };
                let result = json!({"role": "tool", "tool_call_id": id, "content": content});
                messages.extend(result.as_object().cloned());
            }
            Some("thinking") => thoughts.push_str(&text_of("thinking")?),
            Some("redacted_thinking") => {}
            _ => match part_error(block) {
                Some(sentence) => return Err(format!("[{index}]{sentence}")),
                None => content.push(block.clone()),
            },
        }
    }
    let is_only_results = content.is_empty() && calls.is_empty() && thoughts.is_empty() && !blocks.is_empty();
    if is_only_results {
        return Ok(());
    }
    let mut message = message.clone();
    // A message with calls but no text has `null` as its content.
    let is_silent = content.is_empty() && !calls.is_empty();
    message.insert("content".to_owned(), if is_silent { Value::Null } else { Value::Array(content) });
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    if !thoughts.is_empty() {
        message.insert("reasoning_content".to_owned(), Value::String(thoughts));
    }
    messages.push(message);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &Value) -> Result<Value, String> {
        let message = json!({"role": "user", "content": content}).as_object().unwrap().clone();
        messages(&[message]).map(|messages| json!(messages)).map_err(|error| error.to_string())
    }

    #[test]
    fn blocks_become_fields_and_messages() {
        assert_eq!(read(&json!("x")).unwrap(), json!([{"role": "user", "content": "x"}]));
        let text = json!({"type": "text", "text": "So?"});
        let result = json!({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "21"}]});
        assert_eq!(
            read(&json!([result, text])).unwrap(),
            json!([{"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "21"}]},
                {"role": "user", "content": [text]}])
        );
        let call = json!({"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}});
        let thought = json!({"type": "thinking", "thinking": "Hm", "signature": "s"});
        let function = json!({"name": "f", "arguments": "{\"x\":1}"});
        assert_eq!(
            read(&json!([thought, call])).unwrap(),
            json!([{"role": "user", "content": null, "reasoning_content": "Hm",
                "tool_calls": [{"id": "a", "type": "function", "function": function}]}])
        );
    }

    #[test]
    fn errors_say_where() {
        let call = |changes: Value| {
            let mut call = json!({"type": "tool_use", "id": "a", "name": "f", "input": {}});
            call.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            read(&json!([call])).unwrap_err()
        };
        assert!(call(json!({"input": "x"})).ends_with("messages[0].content[0].input: must be an object"));
        assert!(call(json!({"name": 7})).ends_with("messages[0].content[0].name: must be a string"));
        let result = |content: Value| json!({"type": "tool_result", "tool_use_id": "a", "content": content});
        let user = |content: Value| json!({"role": "user", "content": content});
        let two = user(json!([result(json!("1")), result(json!("2"))]));
        let image = json!({"type": "image", "source": {}});
        for (message, expected) in [
            (json!({"content": "x"}), "messages[1].role: must be a string"),
            (user(json!(7)), "messages[1].content: must be a string or a list"),
            (user(json!([result(json!("1")), image])), "messages[1].content[1].type: \"image\" is not supported"),
            (
                user(json!([result(json!([image]))])),
                "messages[1].content[0].content[0].type: \"image\" is not supported",
            ),
            (user(json!(["x"])), "messages[1].content[0]: must be an object"),
        ] {
            let given = [&two, &message].map(|message| message.as_object().unwrap().clone());
            let error = messages(&given).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = tool_fields(&[json!({"type": "bash_20250124"})], None).unwrap_err().to_string();
        assert!(error.contains("tools[0].type: \"bash_20250124\" is not supported"), "{error}");
        let error = tool_fields(&[], Some(&json!("auto"))).unwrap_err().to_string();
        assert!(error.contains("tool_choice.type: must be"), "{error}");
    }
}
