//! Checks of a server after an attack or after many requests: it serves structured output, holds nothing, and has given
//! memory back.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{Client, Metrics, Processes, Resident, pause};

/// The longest time for structured output to be served, for gauges to fall to zero, and for memory to be given back.
const DEADLINE: Duration = Duration::from_secs(20);
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
    /// The time until a request for structured output succeeded, or the result of the last attempt.
    pub structured: Result<Duration, String>,
    /// Gauges that stayed above zero.
    pub held: Vec<String>,
    /// The memory when it had been given back, or at the deadline.
    pub resident: Resident,
}

/// Memory counts as given back at this percentage of the memory before the attack.
const RETURN_PERCENT: u64 = 130;

/// The most bytes that the router may have after an attack: a share of those in `before`, and `kept` bytes that an
/// allocator may keep.
pub fn most_afterwards(before: Resident, kept: u64) -> u64 {
    before.router * RETURN_PERCENT / 100 + kept
}

/// Examines the server. The memory of its router should fall to `most` bytes.
pub fn examine(client: &Client, processes: &Processes, most: u64) -> Aftermath {
    let structured = ask_for_structured_output(client);
    let held = held_gauges(client);
    let deadline = Instant::now() + DEADLINE;
    while processes.now().router > most && Instant::now() < deadline {
        pause(POLL);
    }
    Aftermath { structured, held, resident: processes.now() }
}

/// Sends a request for structured output until it is served, as a client does that is told to come back. Returns how
/// long that took.
///
/// # Errors
/// The result of the last attempt, when no request was served before the deadline.
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

/// The gauges that do not fall to zero before the deadline.
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
