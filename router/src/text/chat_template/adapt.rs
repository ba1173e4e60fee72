//! Messages in the shapes that a template reads, found by rendering a message of each shape once, when it is compiled.
//!
//! OpenAI's clients send texts as lists of parts, or not, and the arguments of a tool call as JSON in a text. Some
//! templates print the list, or read nothing else, or put quotes around the quotes.

use serde_json::{Map, Value as Json, json};

use super::{ChatEnding, ChatInputs, ChatTemplate};

const PROBE: &str = "hilo-probe";

/// What a template reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shapes {
    pub(super) content: ContentShape,
    /// Arguments of tool calls are objects, not their JSON.
    pub(super) reads_arguments: bool,
}

/// Shapes of a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentShape {
    Text,
    Parts,
    Both,
}

impl Shapes {
    pub(super) const ALL: Self = Self { content: ContentShape::Both, reads_arguments: true };

    /// Renders a message of each shape.
    pub(super) fn of(template: &ChatTemplate) -> Self {
        let reads_text = reads_content(template, &json!(PROBE));
        let content = match reads_content(template, &json!([{"type": "text", "text": PROBE}])) {
            true if reads_text => ContentShape::Both,
            true => ContentShape::Parts,
            false => ContentShape::Text,
        };
        Self { content, reads_arguments: reads_arguments(template) }
    }
}

/// Whether a template finds the text in a content; it does not where it prints the list.
fn reads_content(template: &ChatTemplate, content: &Json) -> bool {
    let text = probe(template, json!([{"role": "user", "content": content}])).unwrap_or_default();
    let lists = [format!("'text': '{PROBE}'"), format!("\"text\": \"{PROBE}\"")];
    text.contains(PROBE) && !lists.iter().any(|list| text.contains(list))
}

/// Whether a template prints arguments that are an object, and as JSON.
fn reads_arguments(template: &ChatTemplate) -> bool {
    let function = json!({"name": "f", "arguments": {PROBE: "x"}});
    let call = json!({"id": "call00000", "type": "function", "function": function});
    let messages = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]);
    probe(template, messages).is_some_and(|text| !text.contains(&format!("'{PROBE}'")))
}

/// Changes messages to the shapes that the template reads.
pub(super) fn adapt(template: &ChatTemplate, messages: &mut [Map<String, Json>]) {
    for message in messages {
        match (template.shapes.content, message.get_mut("content")) {
            (ContentShape::Text, Some(content)) => join_parts(content),
            (ContentShape::Parts, Some(Json::String(text))) => {
                let part = json!({"type": "text", "text": text});
                message.insert("content".to_owned(), json!([part]));
            }
            (ContentShape::Both | ContentShape::Parts, _) | (_, None) => {}
        }
        let calls = message.get_mut("tool_calls").and_then(Json::as_array_mut).into_iter().flatten();
        let arguments = calls.filter_map(|call| call.get_mut("function")?.get_mut("arguments"));
        arguments.filter(|_| template.shapes.reads_arguments).for_each(parse_arguments);
    }
}

/// One text of all that are in a list of nothing else.
fn join_parts(content: &mut Json) {
    let text = |parts: &Vec<Json>| parts.iter().map(|part| part.get("text")?.as_str()).collect::<Option<String>>();
    if let Some(text) = content.as_array().and_then(text) {
        *content = Json::String(text);
    }
}

/// An object instead of its JSON.
fn parse_arguments(arguments: &mut Json) {
    let parsed = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
    if let Some(Json::Object(object)) = parsed {
        *arguments = Json::Object(object);
    }
}

fn probe(template: &ChatTemplate, messages: Json) -> Option<String> {
    let inputs = ChatInputs {
        messages: serde_json::from_value(messages).ok()?,
        ending: ChatEnding::Conversation,
        ..ChatInputs::default()
    };
    template.render(&inputs).ok()
}
