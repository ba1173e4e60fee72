//! Judges an answer.
//!
//! | status | right if |
//! |---|---|
//! | 200 | the body has the shape of its dialect, ends as it must, and has the requested form |
//! | 400, 413, 422, 429 | the body is an error: a request may be invalid or too large, or too much for now |
//! | 424 | the message is about one row: one of [`ROW_FAILURES`] |
//!
//! Any other status is wrong, including every 5xx. A message that reports a defect of the server is always wrong.

use serde_json::Value;

use crate::answers::{self, Said};
use crate::requests::{Form, Request};
use crate::worker::Answer;
use crate::{events, logprobs};

/// The start of the messages about failed generations, from `router/src/generation/error.rs`.
const FAILURE: &str = "Request failed during generation: ";
/// The permitted reasons of a failed generation: starts of messages about a row that fails alone, from
/// `scheduler/src/failure.rs` and `router/src/grammar/matcher.rs`. The message about non-finite numbers is not
/// permitted, because the demo's weights are finite and the legal ranges in `proto/src/sampling.rs` are meant to keep
/// scores finite.
const ROW_FAILURES: [&str; 3] =
    ["the grammar allows no next token", "the grammar cannot be followed: ", "the grammar is too expensive: "];
/// The words with which a message reports a defect of the server.
const DEFECT: &str = "defect of this server";

/// The starts of errors of `serde_json` for texts that are JSON but that it cannot represent.
const BEYOND_VALUES: [&str; 4] = [
    "number out of range",
    "recursion limit exceeded",
    "lone leading surrogate in hex escape",
    "unexpected end of hex escape",
];

/// Judges an answer.
///
/// # Errors
/// When the answer is wrong. The error says in which way.
pub(crate) fn judge(request: &Request, answer: &Answer) -> Result<(), String> {
    let said = match answer.status {
        200 if request.is_stream => events::read(request, &answer.text)?,
        200 => {
            let value = parse(&answer.text)?;
            logprobs::check(&value, request.body["echo"] == true)?;
            answers::read(request, &value)?
        }
        400 | 413 | 422 | 429 => return check_refusal(&answer.text).map(drop),
        424 => return check_failure(&check_refusal(&answer.text)?),
        other => return Err(format!("the status {other}")),
    };
    said.iter().try_for_each(|said| check_form(request.form, said))
}

/// Parses JSON.
///
/// # Errors
/// When `text` is not JSON.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))
}

/// Returns the message of an error in the shape of any dialect; `None` if the body is not an error.
pub(crate) fn sentence(body: &Value) -> Option<&str> {
    let error = &body["error"];
    error.as_str().or_else(|| error["message"].as_str())
}

/// Checks that a generation failed for a permitted reason, from the message of its error.
///
/// # Errors
/// When the reason is not permitted.
pub(crate) fn check_failure(sentence: &str) -> Result<(), String> {
    let reason = sentence.strip_prefix(FAILURE).unwrap_or_default();
    let is_own = ROW_FAILURES.iter().any(|known| reason.starts_with(known)) && !reason.contains(DEFECT);
    if is_own { Ok(()) } else { Err(format!("a generation failed: {sentence:?}")) }
}

/// Returns the message of a body that must be an error.
fn check_refusal(body: &str) -> Result<String, String> {
    let body = parse(body)?;
    match sentence(&body) {
        None | Some("") => Err("an error without a sentence".to_owned()),
        Some(sentence) if sentence.contains(DEFECT) => Err("an error that is a defect".to_owned()),
        Some(sentence) => Ok(sentence.to_owned()),
    }
}

fn check_form(form: Form, said: &Said) -> Result<(), String> {
    let Said { has_ended, text, arguments } = said;
    match form {
        _ if !has_ended => Ok(()),
        Form::Any => Ok(()),
        Form::Json if arguments.is_empty() => check_json(text),
        Form::Calls if arguments.is_empty() => Err("an answer that had to call something and did not".to_owned()),
        Form::Json | Form::Calls => arguments.iter().try_for_each(|arguments| check_json(arguments)),
    }
}

fn check_json(text: &str) -> Result<(), String> {
    match serde_json::from_str::<Value>(text).map_err(|error| error.to_string()) {
        Ok(_) => Ok(()),
        Err(error) if BEYOND_VALUES.iter().any(|known| error.starts_with(known)) => Ok(()),
        Err(error) => Err(format!("an answer that had to be JSON is not: {error}: {text:?}")),
    }
}
