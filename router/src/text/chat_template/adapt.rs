//! Adapts messages to the shapes that a template reads. The shapes are found by rendering test messages when the
//! template is compiled.
//!
//! OpenAI's clients send texts as strings or as lists of parts, and the arguments of a tool call as JSON in a string.
//! Some templates print a list of parts as it is, some read nothing but lists, and some quote the JSON of the arguments
//! a second time.

use serde_json::{Map, Value as Json, json};

use super::calls::CallShape;
use super::{ChatEnding, ChatInputs, ChatTemplate};
use crate::text::answer::{Format, Thinking, describe_tools, format_of, thinking_of};

pub(super) const PROBE: &str = "hilo-probe";

/// The shapes that a template reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shapes {
    pub(super) content: ContentShape,
    /// True if the template gets arguments of tool calls as objects, false if as JSON strings.
    pub(super) reads_arguments: bool,
    pub(super) calls: CallShape,
    pub(super) tools: ToolsShape,
    /// True if the template fails for tools without a description.
    pub(super) needs_descriptions: bool,
}

/// The shapes of a message's content that a template reads: a string, a list of parts, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentShape {
    Text,
    Parts,
    Both,
}

/// The input from which a template reads the tools, if the template shows calls in a known format.
#[derive(Debug, Clone, Copy)]
pub(super) enum ToolsShape {
    Variable(&'static Format),
    /// The field `tools` of the system message, as JSON in a string.
    SystemMessage(&'static Format),
    Nowhere,
}

impl Shapes {
    pub(super) const ALL: Self = Self {
        content: ContentShape::Both,
        reads_arguments: true,
        calls: CallShape::ALL,
        tools: ToolsShape::Nowhere,
        needs_descriptions: false,
    };

    /// Returns the shapes that a template reads, which are found by rendering test messages.
    pub(super) fn of(template: &ChatTemplate) -> Self {
        let reads_text = reads_content(template, &json!(PROBE));
        let content = match reads_content(template, &json!([{"type": "text", "text": PROBE}])) {
            true if reads_text => ContentShape::Both,
            true => ContentShape::Parts,
            false => ContentShape::Text,
        };
        let reads_arguments = reads_arguments(template);
        let calls = CallShape::of(template, reads_arguments);
        let needs_descriptions = needs_descriptions(template);
        Self { content, reads_arguments, calls, tools: tools_shape(template), needs_descriptions }
    }
}

/// True if a template prints the text in `content` without the list around it.
fn reads_content(template: &ChatTemplate, content: &Json) -> bool {
    let text = probe(template, json!([{"role": "user", "content": content}])).unwrap_or_default();
    let lists = [format!("'text': '{PROBE}'"), format!("\"text\": \"{PROBE}\"")];
    text.contains(PROBE) && !lists.iter().any(|list| text.contains(list))
}

/// True if a template can render arguments that are an object, and does not print them in Python's notation.
fn reads_arguments(template: &ChatTemplate) -> bool {
    let function = json!({"name": "f", "arguments": {PROBE: "x"}});
    let call = json!({"id": "call00000", "type": "function", "function": function});
    let messages = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]);
    probe(template, messages).is_some_and(|text| !text.contains(&format!("'{PROBE}'")))
}

/// True if a template renders a tool only if it has a description.
fn needs_descriptions(template: &ChatTemplate) -> bool {
    let renders = |tool: Json| {
        let tool = json!({"type": "function", "function": tool});
        probe_tools(template, json!([{"role": "user", "content": "x"}]), Some(vec![tool])).is_some()
    };
    !renders(json!({"name": PROBE})) && renders(json!({"name": PROBE, "description": ""}))
}

/// Returns the input from which a template prints a tool, with the format of calls that the output shows.
fn tools_shape(template: &ChatTemplate) -> ToolsShape {
    let function = json!({"name": PROBE, "description": "x", "parameters": {"type": "object", "properties": {}}});
    let tools = vec![json!({"type": "function", "function": function})];
    let user = json!({"role": "user", "content": "x"});
    let call = json!({"id": "call00000", "type": "function", "function": {"name": PROBE, "arguments": {"x": "y"}}});
    let calls = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    let format_in = |system: Option<Json>, tools: Option<Vec<Json>>| {
        let messages: Vec<&Json> = system.iter().chain([&user]).collect();
        let shown = probe_tools(template, json!(messages), tools.clone()).filter(|text| text.contains(PROBE))?;
        let messages: Vec<&Json> = messages.into_iter().chain([&calls]).collect();
        let called = probe_tools(template, json!(messages), tools).unwrap_or_default();
        format_of(&format!("{shown}{called}"))
    };
    if let Some(format) = format_in(None, Some(tools.clone())) {
        return ToolsShape::Variable(format);
    }
    let system = json!({"role": "system", "content": "x", "tools": json!(tools).to_string()});
    format_in(Some(system), None).map_or(ToolsShape::Nowhere, ToolsShape::SystemMessage)
}

/// Returns the marks of thoughts that a template writes into an answer, for templates that compose the marks of parts.
pub(super) fn thinking_in_texts(template: &ChatTemplate) -> Option<&'static Thinking> {
    let answer = json!({"role": "assistant", "content": "x", "reasoning_content": PROBE});
    thinking_of(&probe(template, json!([{"role": "user", "content": "x"}, answer]))?)
}

/// Converts a conversation to the shapes that the template reads. Returns the format of calls that the template shows,
/// if the format is known.
pub(super) fn adapt(template: &ChatTemplate, inputs: &mut ChatInputs) -> Option<&'static Format> {
    if template.shapes.needs_descriptions {
        add_descriptions(inputs.tools.as_deref_mut().unwrap_or_default());
    }
    let format = match template.shapes.tools {
        ToolsShape::Variable(format) => Some(format),
        ToolsShape::SystemMessage(format) => {
            tell_system(inputs);
            Some(format)
        }
        ToolsShape::Nowhere => {
            describe_tools(inputs);
            None
        }
    };
    adapt_messages(template, &mut inputs.messages);
    template.shapes.calls.adapt(&mut inputs.messages, format);
    format
}

/// Adds an empty description to tools that lack one.
fn add_descriptions(tools: &mut [Json]) {
    for function in tools.iter_mut().filter_map(|tool| tool.get_mut("function")?.as_object_mut()) {
        let description = function.entry("description").or_insert(Json::Null);
        if description.is_null() {
            *description = Json::from("");
        }
    }
}

/// Moves the tools into the system message, which is added if it is missing.
fn tell_system(inputs: &mut ChatInputs) {
    let Some(tools) = inputs.tools.take() else { return };
    let is_system = |message: &Map<String, Json>| message.get("role").is_some_and(|role| role == "system");
    if !inputs.messages.first().is_some_and(is_system) {
        let system = Map::from_iter([("role", "system"), ("content", "")].map(|(k, v)| (k.to_owned(), Json::from(v))));
        inputs.messages.insert(0, system);
    }
    inputs.messages[0].insert("tools".to_owned(), Json::from(Json::from(tools).to_string()));
}

fn adapt_messages(template: &ChatTemplate, messages: &mut [Map<String, Json>]) {
    name_results(messages);
    for message in messages {
        // Templates that join the parts of other messages may not join those of results.
        let is_result = message.get("role").is_some_and(|role| role == "tool");
        match (template.shapes.content, message.get_mut("content")) {
            (ContentShape::Both, Some(content)) if is_result => join_parts(content),
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

/// Adds the name of the tool to each result of a call, because some clients send only the id of the call.
fn name_results(messages: &mut [Map<String, Json>]) {
    let mut names = Map::new();
    for message in messages {
        let calls = message.get("tool_calls").and_then(Json::as_array).into_iter().flatten();
        let named = calls.filter_map(|call| Some((call.get("id")?.as_str()?, call.get("function")?.get("name")?)));
        names.extend(named.map(|(id, name)| (id.to_owned(), name.clone())));
        let id = message.get("tool_call_id").and_then(Json::as_str);
        if let Some(name) = id.and_then(|id| names.get(id))
            && !message.contains_key("name")
        {
            message.insert("name".to_owned(), name.clone());
        }
    }
}

/// Joins a list of texts into one string. A list with other parts stays as it is.
fn join_parts(content: &mut Json) {
    let text = |parts: &Vec<Json>| parts.iter().map(|part| part.get("text")?.as_str()).collect::<Option<String>>();
    if let Some(text) = content.as_array().and_then(text) {
        *content = Json::String(text);
    }
}

/// Replaces a string that contains a JSON object by this object.
fn parse_arguments(arguments: &mut Json) {
    let parsed = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
    if let Some(Json::Object(object)) = parsed {
        *arguments = Json::Object(object);
    }
}

pub(super) fn probe(template: &ChatTemplate, messages: Json) -> Option<String> {
    probe_tools(template, messages, None)
}

fn probe_tools(template: &ChatTemplate, messages: Json, tools: Option<Vec<Json>>) -> Option<String> {
    let inputs = ChatInputs {
        messages: serde_json::from_value(messages).ok()?,
        tools,
        ending: ChatEnding::Conversation,
        ..ChatInputs::default()
    };
    if template.failed_trial.get().is_some() {
        return None;
    }
    match template.render(&inputs) {
        Ok(text) => Some(text),
        Err(error) => {
            if error.ends_start() {
                let _ = template.failed_trial.set(error);
            }
            None
        }
    }
}
