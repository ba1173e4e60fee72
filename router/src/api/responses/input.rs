//! Converts the input items and the tools of `/v1/responses` to the messages and tools of `/v1/chat/completions`.

use serde_json::{Map, Value, json};

use crate::error::ApiError;

/// Returns the messages of a conversation: the instructions as a system message, then the messages of the items.
///
/// # Errors
/// When the input is neither a string nor a list, or an item is malformed or not supported.
pub(super) fn messages(instructions: Option<String>, input: Value) -> Result<Vec<Map<String, Value>>, ApiError> {
    let wrong = |sentence: String| ApiError::BodyShape(sentence);
    let mut messages = Vec::new();
    messages.extend(instructions.map(|text| message(json!({"role": "system", "content": text}))));
    let items = match input {
        Value::String(text) => vec![json!({"role": "user", "content": text})],
        Value::Array(items) => items,
        _ => return Err(wrong("input: must be a string or a list of items".to_owned())),
    };
    let mut thought = String::new();
    for (index, item) in items.iter().enumerate() {
        read(item, &mut thought, &mut messages).map_err(|sentence| wrong(format!("input[{index}]{sentence}")))?;
    }
    Ok(messages)
}

/// Moves the fields of each function into a `function` object, as in chat completions, unless it has one already. Tools
/// that are not functions are returned unchanged and refused later.
pub(super) fn functions(tools: Vec<Value>) -> Vec<Value> {
    let function = |tool: Value| match tool {
        Value::Object(mut fields)
            if fields.get("type") == Some(&json!("function")) && !fields.contains_key("function") =>
        {
            fields.remove("type");
            json!({"type": "function", "function": fields})
        }
        other => other,
    };
    tools.into_iter().map(function).collect()
}

/// Converts the tool choice to the form of chat completions.
pub(super) fn tool_choice(choice: Value) -> Value {
    match choice.get("name") {
        Some(name) if choice["type"] == "function" => json!({"type": "function", "function": {"name": name}}),
        _ => choice,
    }
}

/// Reads one item and adds it to `messages`. A thought is stored in `thought` and added to the assistant's next message
/// or call, after the thoughts that it has. A call is added to the last message if that is the assistant's, or else to
/// a new one.
fn read(item: &Value, thought: &mut String, messages: &mut Vec<Map<String, Value>>) -> Result<(), String> {
    let text_of =
        |field: &str| item[field].as_str().map(str::to_owned).ok_or_else(|| format!(".{field}: must be a string"));
    if !item.is_object() {
        return Err(": must be an object".to_owned());
    }
    let kind: &str = match &item["type"] {
        Value::Null => "message",
        Value::String(kind) => kind,
        _ => return Err(".type: must be a string".to_owned()),
    };
    match kind {
        "message" => {
            let role = text_of("role")?;
            let content = content(&item["content"]).map_err(|sentence| format!(".content{sentence}"))?;
            let mut spoken = message(json!({"role": role, "content": content}));
            if role == "assistant" && !thought.is_empty() {
                spoken.insert("reasoning_content".to_owned(), Value::from(std::mem::take(thought)));
            }
            messages.push(spoken);
        }
        "function_call" => {
            let function = json!({"name": text_of("name")?, "arguments": text_of("arguments")?});
            let call = json!({"id": text_of("call_id")?, "type": "function", "function": function});
            add_call(call, thought, messages);
        }
        "function_call_output" => {
            let content = content(&item["output"]).map_err(|sentence| format!(".output{sentence}"))?;
            messages.push(message(json!({"role": "tool", "tool_call_id": text_of("call_id")?, "content": content})));
        }
        "reasoning" => {
            let parts = item["content"].as_array().into_iter().flatten();
            thought.extend(parts.filter_map(|part| part["text"].as_str()));
        }
        _ => {
            let known = "\"message\", \"function_call\", \"function_call_output\" and \"reasoning\"";
            return Err(format!(".type: {kind:?} is not supported; this server reads {known}"));
        }
    }
    Ok(())
}

fn add_call(call: Value, thought: &mut String, messages: &mut Vec<Map<String, Value>>) {
    let is_assistant = messages.last().is_some_and(|last| last.get("role") == Some(&json!("assistant")));
    if !is_assistant {
        messages.push(message(json!({"role": "assistant", "content": null})));
    }
    let Some(last) = messages.last_mut() else { return };
    if !thought.is_empty() {
        let new = std::mem::take(thought);
        let thoughts = match last.get("reasoning_content").and_then(Value::as_str) {
            Some(earlier) => format!("{earlier}\n{new}"),
            None => new,
        };
        last.insert("reasoning_content".to_owned(), Value::from(thoughts));
    }
    if let Value::Array(calls) = last.entry("tool_calls").or_insert_with(|| json!([])) {
        calls.push(call);
    }
}

/// Returns the content with the parts of all text types converted to type `text`. A string is returned unchanged.
fn content(content: &Value) -> Result<Value, String> {
    let Value::Array(parts) = content else {
        return if content.is_string() { Ok(content.clone()) } else { Err(": must be a string or a list".to_owned()) };
    };
    let part = |(index, part): (usize, &Value)| match part["type"].as_str() {
        Some("input_text" | "output_text" | "text") if part["text"].is_string() => {
            Ok(json!({"type": "text", "text": part["text"]}))
        }
        Some("input_text" | "output_text" | "text") => Err(format!("[{index}].text: must be a string")),
        Some(kind) => Err(format!("[{index}].type: {kind:?} is not supported; this server reads \"input_text\"")),
        None if !part.is_object() => Err(format!("[{index}]: must be an object")),
        None => Err(format!("[{index}].type: must be a string")),
    };
    parts.iter().enumerate().map(part).collect::<Result<Vec<Value>, String>>().map(Value::Array)
}

fn message(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(message) => message,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_messages() {
        let items = json!([
            {"role": "user", "content": [{"type": "input_text", "text": "Warm?"}]},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "21"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
        ]);
        let call =
            |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
        assert_eq!(
            json!(messages(Some("Be brief.".to_owned()), items).unwrap()),
            json!([
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "Warm?"}]},
                {"role": "assistant", "content": null, "tool_calls": [call("a", "f"), call("b", "g")], "reasoning_content": "Hm"},
                {"role": "tool", "tool_call_id": "a", "content": "21"},
                {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
            ])
        );
        assert_eq!(json!(messages(None, json!("hi")).unwrap()), json!([{"role": "user", "content": "hi"}]));
    }

    #[test]
    fn all_thoughts_of_a_message_are_kept() {
        let thought = |text: &str| json!({"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]});
        let items = json!([
            thought("First."),
            {"role": "assistant", "content": "Let me see."},
            thought("Second."),
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        ]);
        let messages = messages(None, items).unwrap();
        assert_eq!(messages.len(), 1);
        assert_eq!(messages[0]["reasoning_content"], "First.\nSecond.");
    }

    #[test]
    fn errors_say_where() {
        for (input, expected) in [
            (json!(7), "input: must be a string or a list"),
            (json!([{"type": "item_reference", "id": "x"}]), "input[0].type: \"item_reference\" is not supported"),
            (
                json!([{"role": "user", "content": [{"type": "input_image"}]}]),
                "input[0].content[0].type: \"input_image\" is not supported",
            ),
            (json!([{"type": "function_call", "name": "f"}]), "input[0].arguments: must be a string"),
            (json!([{"content": "x"}]), "input[0].role: must be a string"),
            (json!([{"type": 5, "role": "user", "content": "x"}]), "input[0].type: must be a string"),
            (json!(["x"]), "input[0]: must be an object"),
            (json!([{"role": "user", "content": ["x"]}]), "input[0].content[0]: must be an object"),
            (
                json!([{"role": "user", "content": [{"type": "input_text", "text": 7}]}]),
                "input[0].content[0].text: must be a string",
            ),
        ] {
            let error = messages(None, input).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
