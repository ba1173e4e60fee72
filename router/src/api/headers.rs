//! Headers that say how a generation went: `x-compute-*`, `x-*-time`, `x-*-tokens`.
//!
//! Names and units are TGI's: whole milliseconds, except `x-compute-time` in seconds with a fraction. A stream has
//! only those that are known before it begins. `x-cached-tokens` is ours: prompt tokens that the prefix cache had.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::generation::Timings;

/// Value of `x-compute-type`: how many devices of which kind.
#[derive(Debug, Clone)]
pub(crate) struct ComputeType(HeaderValue);

impl ComputeType {
    /// Characters that cannot be in a header are left out.
    pub(crate) fn new(name: &str) -> Self {
        let visible: String = name.chars().filter(char::is_ascii_graphic).collect();
        Self(HeaderValue::from_str(&visible).unwrap_or_else(|_| HeaderValue::from_static("unknown")))
    }
}

/// Headers of an answer in one piece.
pub(crate) fn generation_headers(
    compute_type: &ComputeType,
    timings: &Timings,
    num_characters: usize,
    num_prompt_tokens: u32,
) -> HeaderMap {
    let numbers = [
        ("x-compute-characters", num_characters as u128),
        ("x-total-time", timings.total().as_millis()),
        ("x-validation-time", timings.validation().as_millis()),
        ("x-queue-time", timings.queue().as_millis()),
        ("x-inference-time", timings.inference().as_millis()),
        ("x-time-per-token", timings.time_per_token().as_millis()),
        ("x-prompt-tokens", num_prompt_tokens.into()),
        ("x-generated-tokens", timings.num_generated_tokens.into()),
        ("x-cached-tokens", timings.num_cached_tokens.into()),
    ];
    let mut headers = HeaderMap::with_capacity(numbers.len() + 2);
    insert(&mut headers, "x-compute-time", &timings.total().as_secs_f64().to_string());
    for (name, number) in numbers {
        insert(&mut headers, name, &number.to_string());
    }
    headers.insert("x-compute-type", compute_type.0.clone());
    headers
}

/// Headers of a stream. Nothing between us and the client may hold back events.
pub(crate) fn stream_headers(compute_type: &ComputeType, num_characters: usize) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(3);
    headers.insert("x-compute-type", compute_type.0.clone());
    insert(&mut headers, "x-compute-characters", &num_characters.to_string());
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    headers
}

fn insert(headers: &mut HeaderMap, name: &'static str, number: &str) {
    let number = HeaderValue::from_str(number).expect("digits are allowed in a header");
    headers.insert(HeaderName::from_static(name), number);
}
