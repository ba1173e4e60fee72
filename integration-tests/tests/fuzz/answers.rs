//! Parses answers that are not streams, checks that they have the shape of their dialect, and returns the texts and the
//! calls in them.

use serde_json::Value;

use crate::requests::{Dialect, Request};

/// The parts of one choice of an answer that are checked further.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// True if the model is known to have ended the choice. A choice that ended at the token limit or at a stop string
    /// may have any text.
    pub(crate) has_ended: bool,
    pub(crate) text: String,
    /// The arguments of the function calls, each as JSON text.
    pub(crate) arguments: Vec<String>,
}

/// Parses an answer that is not a stream. Returns its choices, or no choices for a dialect whose texts are not checked.
///
/// # Errors
/// When the answer does not have the shape of its dialect.
pub(crate) fn read(request: &Request, answer: &Value) -> Result<Vec<Said>, String> {
    match request.dialect {
        Dialect::Native => native(request, answer),
        Dialect::NativeList => match answer.as_array().map(Vec::as_slice) {
            Some([only]) => native(request, only),
            _ => Err("no list of one answer".to_owned()),
        },
        Dialect::Completion => choices(request, answer)?.iter().map(|choice| completion(request, choice)).collect(),
        Dialect::Chat => choices(request, answer)?.iter().map(|choice| chat(request, choice)).collect(),
        Dialect::Response => Ok(vec![response(request, answer)?]),
        Dialect::Message => Ok(vec![message(answer)?]),
        Dialect::Predictions => predictions(request, answer),
        Dialect::Tokens => tokens(answer),
        Dialect::ChatTokens => {
            text(answer, "templated_text")?;
            tokens(&answer["tokenize_response"])
        }
        Dialect::TokenCount if answer["input_tokens"].is_u64() => Ok(Vec::new()),
        Dialect::TokenCount => Err("`input_tokens` is no number".to_owned()),
    }
}

/// Returns the text in a field.
///
/// # Errors
/// When the field is not a text.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str, String> {
    value[field].as_str().ok_or_else(|| format!("`{field}` is no text but {}", value[field]))
}

/// Returns the list in a field.
///
/// # Errors
/// When the field is not a list.
pub(crate) fn list<'a>(value: &'a Value, field: &str) -> Result<&'a [Value], String> {
    let list = value[field].as_array().map(Vec::as_slice);
    list.ok_or_else(|| format!("`{field}` is no list but {}", value[field]))
}

/// True if this `finish_reason` of OpenAI means that the model ended the choice. The reason `stop` also stands for a
/// stop string, so with stop strings (or an echo of the prompt) this is false.
///
/// # Errors
/// When the reason does not exist.
pub(crate) fn has_ended(request: &Request, reason: &str) -> Result<bool, String> {
    let is_free = request.body["stop"].is_null() && request.body["echo"] != true;
    match reason {
        "stop" | "tool_calls" => Ok(is_free),
        "length" => Ok(false),
        other => Err(format!("a `finish_reason` {other:?}")),
    }
}

/// Returns one sequence of a native answer, without the prompt that the answer may repeat.
pub(crate) fn native_sequence(request: &Request, text: &str, details: &Value) -> Said {
    let text = text.strip_prefix(request.repeated_prompt()).unwrap_or(text).to_owned();
    Said { has_ended: details["finish_reason"] == "eos_token", text, arguments: Vec::new() }
}

/// Parses an answer of `/v1/responses`, which is also in the last event of a stream.
///
/// # Errors
/// When the answer does not have the shape of this route.
pub(crate) fn response(request: &Request, response: &Value) -> Result<Said, String> {
    let has_ended = match text(response, "status")? {
        "completed" => request.body["stop"].is_null(),
        "incomplete" => false,
        other => return Err(format!("a `status` {other:?}")),
    };
    let mut said = Said { has_ended, ..Said::default() };
    for item in list(response, "output")? {
        match text(item, "type")? {
            "message" => said.text.push_str(&parts(item)?),
            "function_call" => said.arguments.push(text(item, "arguments")?.to_owned()),
            "reasoning" => {}
            other => return Err(format!("an item of the type {other:?}")),
        }
    }
    Ok(said)
}

/// True if this `stop_reason` of Anthropic means that the model ended the answer.
///
/// # Errors
/// When the reason does not exist.
pub(crate) fn has_ended_turn(reason: &str) -> Result<bool, String> {
    match reason {
        "end_turn" | "tool_use" => Ok(true),
        "max_tokens" | "stop_sequence" => Ok(false),
        other => Err(format!("a `stop_reason` {other:?}")),
    }
}

fn native(request: &Request, answer: &Value) -> Result<Vec<Said>, String> {
    let details = &answer["details"];
    let mut said = vec![native_sequence(request, text(answer, "generated_text")?, details)];
    for other in details["best_of_sequences"].as_array().into_iter().flatten() {
        said.push(native_sequence(request, text(other, "generated_text")?, other));
    }
    Ok(said)
}

fn choices<'a>(request: &Request, answer: &'a Value) -> Result<&'a [Value], String> {
    let (choices, expected) = (list(answer, "choices")?, request.num_choices());
    if choices.len() == expected { Ok(choices) } else { Err(format!("{} choices, not {expected}", choices.len())) }
}

fn completion(request: &Request, choice: &Value) -> Result<Said, String> {
    let has_ended = has_ended(request, text(choice, "finish_reason")?)?;
    Ok(Said { has_ended, text: text(choice, "text")?.to_owned(), arguments: Vec::new() })
}

fn chat(request: &Request, choice: &Value) -> Result<Said, String> {
    let message = &choice["message"];
    let has_ended = has_ended(request, text(choice, "finish_reason")?)?;
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let arguments = calls.map(|call| text(&call["function"], "arguments").map(str::to_owned));
    let arguments = arguments.collect::<Result<Vec<String>, String>>()?;
    let text = if message["content"].is_null() && !arguments.is_empty() { "" } else { text(message, "content")? };
    Ok(Said { has_ended, text: text.to_owned(), arguments })
}

fn message(answer: &Value) -> Result<Said, String> {
    let mut said = Said { has_ended: has_ended_turn(text(answer, "stop_reason")?)?, ..Said::default() };
    for block in list(answer, "content")? {
        match text(block, "type")? {
            "text" => said.text.push_str(text(block, "text")?),
            "tool_use" => said.arguments.push(block["input"].to_string()),
            "thinking" => {}
            other => return Err(format!("a block of the type {other:?}")),
        }
    }
    Ok(said)
}

/// Returns the concatenated texts of the parts of a message.
fn parts(item: &Value) -> Result<String, String> {
    list(item, "content")?.iter().map(|part| text(part, "text")).collect()
}

fn predictions(request: &Request, answer: &Value) -> Result<Vec<Said>, String> {
    let (predictions, instances) = (list(answer, "predictions")?, list(&request.body, "instances")?);
    let is_right = predictions.len() == instances.len() && predictions.iter().all(Value::is_string);
    if is_right { Ok(Vec::new()) } else { Err(format!("no texts for {} instances", instances.len())) }
}

fn tokens(list: &Value) -> Result<Vec<Said>, String> {
    let is_token = |token: &Value| token["id"].is_u64() && token["start"].as_u64() <= token["stop"].as_u64();
    let is_right = list.as_array().is_some_and(|tokens| tokens.iter().all(is_token));
    if is_right { Ok(Vec::new()) } else { Err("no list of tokens".to_owned()) }
}
