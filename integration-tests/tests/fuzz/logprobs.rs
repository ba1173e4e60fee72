//! Checks the log-probabilities of an answer, wherever they are in it: each must be finite and, except for rounding,
//! not above zero.

use serde_json::{Map, Value};

/// The tolerance for rounding.
const ROUNDING: f64 = 1e-3;

/// Checks all log-probabilities in `value`. The first token of a prompt has none. `repeats_prompt` is true if a
/// completion starts with the prompt.
///
/// # Errors
/// The first value that is not a log-probability.
pub(crate) fn check(value: &Value, repeats_prompt: bool) -> Result<(), String> {
    let check_all = |values: &[Value]| values.iter().try_for_each(|value| check(value, repeats_prompt));
    match value {
        Value::Array(values) => check_all(values),
        Value::Object(fields) if fields.contains_key("token_logprobs") => check_completion(fields, repeats_prompt),
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| match (name.as_str(), value) {
            ("logprob", value) => check_one(value),
            ("prefill", Value::Array(tokens)) => check_all(tokens.get(1..).unwrap_or_default()),
            (_, value) => check(value, repeats_prompt),
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// Checks the log-probabilities of a completion: a list of numbers, and a list of objects whose names are the texts of
/// tokens.
fn check_completion(fields: &Map<String, Value>, repeats_prompt: bool) -> Result<(), String> {
    let behind_first = |name: &str| {
        let values = fields.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        values.get(usize::from(repeats_prompt)..).unwrap_or_default()
    };
    behind_first("token_logprobs").iter().try_for_each(check_one)?;
    let candidates = behind_first("top_logprobs").iter().filter_map(Value::as_object);
    candidates.flat_map(|candidates| candidates.values()).try_for_each(check_one)
}

fn check_one(value: &Value) -> Result<(), String> {
    let is_right = value.as_f64().is_some_and(|logprob| logprob.is_finite() && logprob <= ROUNDING);
    if is_right { Ok(()) } else { Err(format!("a log-probability of {value}")) }
}
