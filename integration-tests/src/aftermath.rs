//! Checks of a server after an attack or after many requests: that it serves structured output, that no gauge shows a
//! request, and that the memory of its router has fallen.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{Client, Metrics, Processes, Resident, pause};

/// The maximum time until structured output is served; also the maximum time until gauges fall to zero, and until the
/// router's memory falls.
const DEADLINE: Duration = Duration::from_secs(20);
/// The time between two attempts of a check.
const POLL: Duration = Duration::from_millis(50);
/// Gauges that are zero when no request is served.
const GAUGES: [&str; 6] = [
    "tgi_queue_size",
    "tgi_batch_current_size",
    "hilo_slots_used",
    "hilo_kv_blocks_used",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
];

/// The state of a server after an attack.
#[derive(Debug)]
pub struct Aftermath {
    /// The time until a request for structured output succeeded, or the error of the last attempt.
    pub structured: Result<Duration, String>,
    /// The gauges that stayed above zero, with their values, or the error if the metrics could not be read.
    pub held: Vec<String>,
    /// The memory of the processes when the router's had fallen enough, or at the deadline.
    pub resident: Resident,
}

/// The percentage of its earlier memory that the router may have after an attack, without the bytes that an allocator
/// may keep.
const RETURN_PERCENT: u64 = 130;

/// Returns the maximum number of bytes that the router may have after an attack: a percentage of the bytes in `before`,
/// and `kept` bytes that an allocator may keep.
pub fn most_afterwards(before: Resident, kept: u64) -> u64 {
    before.router * RETURN_PERCENT / 100 + kept
}

/// Examines the server. Waits until the memory of its router has fallen to `most` bytes, but not longer than the
/// deadline.
pub fn examine(client: &Client, processes: &Processes, most: u64) -> Aftermath {
    let structured = ask_for_structured_output(client);
    let held = held_gauges(client);
    let deadline = Instant::now() + DEADLINE;
    while processes.now().router > most && Instant::now() < deadline {
        pause(POLL);
    }
    Aftermath { structured, held, resident: processes.now() }
}

/// Sends a request for structured output again and again until it succeeds, as a client does that is told to retry.
/// Returns the time until then.
///
/// # Errors
/// The error of the last attempt, when no request succeeded before the deadline.
pub fn ask_for_structured_output(client: &Client) -> Result<Duration, String> {
    let start = Instant::now();
    let grammar = json!({"type": "json", "value": {
        "type": "object", "properties": {"age": {"type": "integer", "maximum": 30}}, "required": ["age"],
        "additionalProperties": false
    }});
    let body =
        json!({"inputs": "Tom has a cat.", "parameters": {"grammar": grammar, "max_new_tokens": 40}}).to_string();
    loop {
        let status = match client.post_bytes("/generate", body.as_bytes()) {
            Ok(response) if response.status == 200 => return Ok(start.elapsed()),
            Ok(response) => format!("{} {}", response.status, response.text),
            Err(error) => error.to_string(),
        };
        if start.elapsed() > DEADLINE {
            return Err(status);
        }
        pause(POLL);
    }
}

/// Returns the gauges that do not fall to zero before the deadline, with their values, or the error if the metrics
/// cannot be read then.
fn held_gauges(client: &Client) -> Vec<String> {
    let start = Instant::now();
    loop {
        let held = match client.try_get("/metrics") {
            Ok(page) => above_zero(&Metrics::parse(&page.text)),
            Err(error) => vec![error.to_string()],
        };
        if held.is_empty() || start.elapsed() > DEADLINE {
            return held;
        }
        pause(POLL);
    }
}

fn above_zero(metrics: &Metrics) -> Vec<String> {
    let values = GAUGES.map(|name| (name, metrics.value(name)));
    values.into_iter().filter(|(_, value)| *value != 0.0).map(|(name, value)| format!("{name} {value}")).collect()
}
