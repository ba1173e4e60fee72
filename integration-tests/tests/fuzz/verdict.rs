//! The verdict on one answer.
//!
//! | status | is right |
//! |---|---|
//! | 200 | where the body has the shape of its dialect, ends as it must, and keeps to the form that was asked for |
//! | 400, 413, 422, 429 | always: a request may be wrong, or too much |
//! | 424 | for sentences about one row: [`ROW_FAILURES`] |
//!
//! Nothing else is, so no 5xx, and no sentence that names a defect.

use serde_json::Value;

use crate::answers::{self, Said};
use crate::requests::{Form, Request};
use crate::worker::Answer;
use crate::{events, logprobs};

/// The beginning of every sentence about a generation that failed: of `router/src/generation/error.rs`.
const FAILURE: &str = "Request failed during generation: ";
/// Beginnings of the sentences about a row that fails alone, from `scheduler/src/failure.rs` and
/// `router/src/grammar/matcher.rs`. The sentence about numbers that are not finite is left out: the demo's weights are
/// finite, and `proto/src/sampling.rs` promises that scores stay finite with all legal parameters.
const ROW_FAILURES: [&str; 3] =
    ["no token is allowed here", "the grammar allows no token here", "the grammar cannot be followed: "];
/// Part of the sentences that own up to a mistake of the server.
const DEFECT: &str = "defect of this server";

/// Texts that are JSON although `serde_json` has no value for them.
const BEYOND_VALUES: [&str; 4] = [
    "number out of range",
    "recursion limit exceeded",
    "lone leading surrogate in hex escape",
    "unexpected end of hex escape",
];

/// Judges an answer.
///
/// # Errors
/// When the answer is wrong; the message says in which way.
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

/// Reads JSON.
///
/// # Errors
/// When it is none.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))
}

/// The sentence of an error, in the shape of any dialect; nothing where there is no error.
pub(crate) fn sentence(body: &Value) -> Option<&str> {
    let error = &body["error"];
    error.as_str().or_else(|| error["message"].as_str())
}

/// Checks that a generation that failed did so for a reason of its own.
///
/// # Errors
/// When the reason may not be.
pub(crate) fn check_failure(sentence: &str) -> Result<(), String> {
    let reason = sentence.strip_prefix(FAILURE).unwrap_or_default();
    let is_own = ROW_FAILURES.iter().any(|known| reason.starts_with(known)) && !reason.contains(DEFECT);
    if is_own { Ok(()) } else { Err(format!("a generation failed: {sentence:?}")) }
}

/// The sentence of an error that is one.
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
