//! Tool calls for models whose chat template does not support tools: the first message that is not the assistant's, or
//! a new message of the user if there is none, describes the tools, and earlier calls and results become texts.

use serde_json::{Map, Value as Json, json};

use crate::text::chat_template::ChatInputs;

/// Replaces the tools, calls and results in `inputs` by texts in its messages. Consecutive results become one message.
pub(in crate::text) fn describe_tools(inputs: &mut ChatInputs) {
    let messages = std::mem::take(&mut inputs.messages);
    for message in messages {
        let is_result = message.get("role").is_some_and(|role| role == "tool");
        let message = if is_result { result_as_text(&message) } else { calls_as_text(message) };
        match inputs.messages.last_mut() {
            Some(last) if is_result && last.contains_key(RESULTS) => append(last, &text_of(&message)),
            _ => inputs.messages.push(message),
        }
    }
    for message in &mut inputs.messages {
        message.remove(RESULTS);
    }
    let Some(tools) = inputs.tools.take() else { return };
    let first = inputs.messages.iter_mut().find(|message| message.get("role").is_some_and(|role| role != "assistant"));
    match first {
        Some(first) => append(first, &description(&tools)),
        None => {
            let message = json!({"role": "user", "content": description(&tools)});
            inputs.messages.insert(0, message.as_object().cloned().unwrap_or_default());
        }
    }
}

/// The key that marks messages with results. It is removed before the template reads the messages.
const RESULTS: &str = "hilo-results";

fn description(tools: &[Json]) -> String {
    let functions = tools.iter().map(|tool| tool.get("function").unwrap_or(tool).to_string());
    let functions: Vec<String> = functions.collect();
    format!(
        "You may call these functions:\n{}\n\nTo call one, write\n<tool_call>\n{{\"name\": \"its name\", \"arguments\": \
         {{its arguments}}}}\n</tool_call>\nand nothing else, once for each call. Results come between <tool_response> and \
         </tool_response>. Where no function helps, just answer.",
        functions.join("\n")
    )
}

fn result_as_text(message: &Map<String, Json>) -> Map<String, Json> {
    let content = format!("<tool_response>\n{}\n</tool_response>", text_of(message));
    let message = json!({"role": "user", "content": content, RESULTS: true});
    message.as_object().cloned().unwrap_or_default()
}

fn calls_as_text(mut message: Map<String, Json>) -> Map<String, Json> {
    let Some(Json::Array(calls)) = message.remove("tool_calls") else { return message };
    for call in calls {
        let function = call.get("function").unwrap_or(&call);
        let field = |name: &str| function.get(name).cloned().unwrap_or_default();
        let arguments = match field("arguments") {
            Json::String(text) => text,
            arguments => arguments.to_string(),
        };
        let text = format!("<tool_call>\n{{\"name\": {}, \"arguments\": {arguments}}}\n</tool_call>", field("name"));
        append(&mut message, &text);
    }
    message
}

/// Returns the text of a message's content.
fn text_of(message: &Map<String, Json>) -> String {
    match message.get("content") {
        Some(Json::String(text)) => text.clone(),
        Some(Json::Array(parts)) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
        _ => String::new(),
    }
}

/// Adds a paragraph to a message's content, in place: a copy of the content for each of many paragraphs would be slow.
fn append(message: &mut Map<String, Json>, paragraph: &str) {
    if !matches!(message.get("content"), Some(Json::String(_))) {
        let text = text_of(message);
        message.insert("content".to_owned(), Json::String(text));
    }
    if let Some(Json::String(text)) = message.get_mut("content") {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(paragraph);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_described_even_if_only_the_assistant_has_spoken() {
        let answer = json!({"role": "assistant", "content": "Hi"}).as_object().cloned().unwrap();
        let tools = Some(vec![json!({"type": "function", "function": {"name": "f"}})]);
        let mut inputs = ChatInputs { messages: vec![answer.clone()], tools, ..ChatInputs::default() };
        describe_tools(&mut inputs);
        assert_eq!(inputs.messages.len(), 2);
        assert_eq!((&inputs.messages[0]["role"], &inputs.messages[1]), (&json!("user"), &answer));
        assert!(inputs.messages[0]["content"].as_str().unwrap().contains(r#"{"name":"f"}"#));
    }
}
