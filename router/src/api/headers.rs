//! Headers that describe a generation: `x-compute-*`, `x-*-time`, `x-*-tokens`.
//!
//! Names and units are TGI's: whole milliseconds, except `x-compute-time`, which is in seconds with a fraction. A
//! stream has only the headers that are known before it begins. `x-cached-tokens` is not in TGI: the number of prompt
//! tokens that were found in the prefix cache.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::generation::Outcome;

/// The names of the headers that describe a generation.
pub(crate) const GENERATION_HEADERS: [HeaderName; 11] = [
    HeaderName::from_static("x-compute-type"),
    HeaderName::from_static("x-compute-characters"),
    HeaderName::from_static("x-compute-time"),
    HeaderName::from_static("x-total-time"),
    HeaderName::from_static("x-validation-time"),
    HeaderName::from_static("x-queue-time"),
    HeaderName::from_static("x-inference-time"),
    HeaderName::from_static("x-time-per-token"),
    HeaderName::from_static("x-prompt-tokens"),
    HeaderName::from_static("x-generated-tokens"),
    HeaderName::from_static("x-cached-tokens"),
];

/// The value of `x-compute-type`: the number and kind of devices.
#[derive(Debug, Clone)]
pub(crate) struct ComputeType(HeaderValue);

impl ComputeType {
    /// Creates the value from the visible ASCII characters of `name`. Other characters, among them spaces, are left
    /// out.
    pub(crate) fn new(name: &str) -> Self {
        let visible: String = name.chars().filter(char::is_ascii_graphic).collect();
        Self(HeaderValue::from_str(&visible).unwrap_or_else(|_| HeaderValue::from_static("unknown")))
    }
}

/// Returns the headers of a response that is not a stream, with the times of the slowest generation and the token
/// counts of all generations together.
pub(crate) fn generation_headers(compute_type: &ComputeType, outcomes: &[Outcome], num_characters: usize) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("x-compute-type", compute_type.0.clone());
    let Some(slowest) = outcomes.iter().max_by_key(|outcome| outcome.timings.total()) else { return headers };
    let timings = &slowest.timings;
    let sum = |count: fn(&Outcome) -> u32| outcomes.iter().map(count).map(u128::from).sum::<u128>();
    let numbers = [
        ("x-compute-characters", num_characters as u128),
        ("x-total-time", timings.total().as_millis()),
        ("x-validation-time", timings.validation().as_millis()),
        ("x-queue-time", timings.queue().as_millis()),
        ("x-inference-time", timings.inference().as_millis()),
        ("x-time-per-token", timings.time_per_token().as_millis()),
        ("x-prompt-tokens", sum(|outcome| outcome.best.finish.num_prompt_tokens)),
        ("x-generated-tokens", sum(|outcome| outcome.timings.num_generated_tokens)),
        ("x-cached-tokens", sum(|outcome| outcome.timings.num_cached_tokens)),
    ];
    insert(&mut headers, "x-compute-time", &timings.total().as_secs_f64().to_string());
    for (name, number) in numbers {
        insert(&mut headers, name, &number.to_string());
    }
    headers
}

/// Returns the headers of a stream. `x-accel-buffering` tells proxies not to hold back events.
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
