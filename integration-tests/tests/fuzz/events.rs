//! Parses streams, checks that they continue and end as their dialect demands, and returns the texts and the calls in
//! them.

use serde_json::Value;

use crate::answers::{self, Said, has_ended, has_ended_turn, list, text};
use crate::logprobs;
use crate::requests::{Dialect, Request};
use crate::verdict::{check_failure, parse, sentence};

/// The data of the last event of a stream of completions or chats.
const DONE: &str = "[DONE]";

/// An event of a stream.
#[derive(Debug)]
struct Event<'a> {
    name: Option<&'a str>,
    data: &'a str,
}

/// A choice of a stream, whose text and calls are collected from the events.
#[derive(Debug, Default)]
struct Choice {
    said: Said,
    is_finished: bool,
}

/// Parses a stream and returns its choices. For a stream that ended with a permitted error, the list is empty.
///
/// # Errors
/// When the stream does not have the shape of its dialect, or does not end as it must.
pub(crate) fn read(request: &Request, stream: &str) -> Result<Vec<Said>, String> {
    let events = split(stream)?;
    match request.dialect {
        Dialect::Native | Dialect::NativeList => native(request, &values(&events)?),
        Dialect::Completion | Dialect::Chat => choices(request, &events),
        Dialect::Response => response(request, &named_values(&events)?),
        Dialect::Message => message(&named_values(&events)?),
        Dialect::Predictions | Dialect::Tokens | Dialect::ChatTokens | Dialect::TokenCount => {
            Err("a stream where there is none".to_owned())
        }
    }
}

fn split(stream: &str) -> Result<Vec<Event<'_>>, String> {
    let (mut events, mut name) = (Vec::new(), None);
    for line in stream.lines() {
        if let Some(data) = line.strip_prefix("data: ") {
            events.push(Event { name: name.take(), data });
        } else if let Some(word) = line.strip_prefix("event: ") {
            name = Some(word);
        } else if !line.is_empty() && !line.starts_with(':') {
            return Err(format!("no line of an event stream: {line:?}"));
        }
    }
    if stream.ends_with("\n\n") { Ok(events) } else { Err("the last event is cut off".to_owned()) }
}

fn values(events: &[Event<'_>]) -> Result<Vec<Value>, String> {
    let value = |event: &Event<'_>| -> Result<Value, String> {
        let value = parse(event.data)?;
        logprobs::check(&value, false)?;
        Ok(value)
    };
    events.iter().map(value).collect()
}

/// Returns the JSON values of the events in a dialect whose events have names, and checks the names.
fn named_values(events: &[Event<'_>]) -> Result<Vec<Value>, String> {
    let values = values(events)?;
    for (event, value) in events.iter().zip(&values) {
        if event.name != Some(text(value, "type")?) {
            return Err(format!("an event with the name {:?} of the type {}", event.name, value["type"]));
        }
    }
    Ok(values)
}

/// Returns the last event, and the events before it.
fn split_last(events: &[Value]) -> Result<(&Value, &[Value]), String> {
    events.split_last().ok_or_else(|| "a stream without events".to_owned())
}

/// Returns the index of a choice or of a function call.
fn index(value: &Value) -> Result<usize, String> {
    let index = value["index"].as_u64().and_then(|index| usize::try_from(index).ok());
    index.ok_or_else(|| format!("`index` is no number but {}", value["index"]))
}

fn native(request: &Request, events: &[Value]) -> Result<Vec<Said>, String> {
    let (last, others) = split_last(events)?;
    let is_end = |event: &&Value| !event["error"].is_null() || !event["generated_text"].is_null();
    if let Some(end) = others.iter().find(is_end) {
        return Err(format!("more events after {end}"));
    }
    if let Some(sentence) = sentence(last) {
        return check_failure(sentence).map(|()| Vec::new());
    }
    Ok(vec![answers::native_sequence(request, text(last, "generated_text")?, &last["details"])])
}

fn choices(request: &Request, events: &[Event<'_>]) -> Result<Vec<Said>, String> {
    let chunks = match events.split_last() {
        Some((end, chunks)) if end.data == DONE => values(chunks)?,
        _ => return Err(format!("the stream does not end with {DONE}")),
    };
    let (last, others) = split_last(&chunks)?;
    if let Some(error) = others.iter().find(|chunk| !chunk["error"].is_null()) {
        return Err(format!("more chunks after {error}"));
    }
    if let Some(sentence) = sentence(last) {
        return check_failure(sentence).map(|()| Vec::new());
    }
    let mut choices: Vec<Choice> = (0..request.num_choices()).map(|_| Choice::default()).collect();
    for chunk in &chunks {
        for choice in list(chunk, "choices")? {
            let index = index(choice)?;
            let known = choices.get_mut(index).ok_or_else(|| format!("a choice with the index {index}"))?;
            known.add(request, choice)?;
        }
    }
    if let Some(index) = choices.iter().position(|choice| !choice.is_finished) {
        return Err(format!("choice {index} has no `finish_reason`"));
    }
    if request.body["stream_options"]["include_usage"] == true && !last["usage"].is_object() {
        return Err("there is no usage before the end".to_owned());
    }
    Ok(choices.into_iter().map(|choice| choice.said).collect())
}

impl Choice {
    /// Appends the text and the function calls of a chunk.
    fn add(&mut self, request: &Request, chunk: &Value) -> Result<(), String> {
        if self.is_finished {
            return Err("a choice goes on after its `finish_reason`".to_owned());
        }
        let delta = &chunk["delta"];
        for new in [&chunk["text"], &delta["content"]] {
            self.said.text.push_str(new.as_str().unwrap_or_default());
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let (index, all) = (index(call)?, &mut self.said.arguments);
            if index == all.len() {
                all.push(String::new());
            }
            let arguments = all.get_mut(index).ok_or_else(|| format!("a call with the index {index}"))?;
            arguments.push_str(text(&call["function"], "arguments")?);
        }
        if !chunk["finish_reason"].is_null() {
            self.is_finished = true;
            self.said.has_ended = has_ended(request, text(chunk, "finish_reason")?)?;
        }
        Ok(())
    }
}

fn response(request: &Request, events: &[Value]) -> Result<Vec<Said>, String> {
    for (number, event) in events.iter().enumerate() {
        if event["sequence_number"] != number {
            return Err(format!("event {number} has the number {}", event["sequence_number"]));
        }
    }
    let (last, _) = split_last(events)?;
    match text(last, "type")? {
        "response.completed" | "response.incomplete" => Ok(vec![answers::response(request, &last["response"])?]),
        "response.failed" => check_failure(text(&last["response"]["error"], "message")?).map(|()| Vec::new()),
        other => Err(format!("the stream ends with {other}")),
    }
}

fn message(events: &[Value]) -> Result<Vec<Said>, String> {
    let (last, _) = split_last(events)?;
    match text(last, "type")? {
        "message_stop" => {}
        "error" => return check_failure(sentence(last).unwrap_or_default()).map(|()| Vec::new()),
        other => return Err(format!("the stream ends with {other}")),
    }
    let mut said = Said::default();
    for event in events {
        let (block, delta) = (&event["content_block"], &event["delta"]);
        if block["type"] == "tool_use" {
            said.arguments.push(String::new());
        }
        said.text.push_str(delta["text"].as_str().unwrap_or_default());
        if let (Some(arguments), Some(piece)) = (said.arguments.last_mut(), delta["partial_json"].as_str()) {
            arguments.push_str(piece);
        }
        if let Some(reason) = delta["stop_reason"].as_str() {
            said.has_ended = has_ended_turn(reason)?;
        }
    }
    Ok(vec![said])
}
