//! A server after an attack, or after many requests: it takes structured output, holds nothing, and gave memory back.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{Client, Metrics, Processes, Resident, pause};

/// How long gauges may take to come to rest, and memory to come back.
const DEADLINE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);
/// Gauges that are zero when nobody is served.
const GAUGES: [&str; 6] = [
    "tgi_queue_size",
    "tgi_batch_current_size",
    "hilo_slots_used",
    "hilo_kv_blocks_used",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
];

/// How a server was found after an attack.
#[derive(Debug)]
pub struct Aftermath {
    /// Time until a request for structured output succeeded, or how the last attempt ended.
    pub structured: Result<Duration, String>,
    /// Gauges that stayed above zero.
    pub held: Vec<String>,
    /// Memory when it had come back, or at the deadline.
    pub resident: Resident,
}

/// Memory is back when it is at most this share of before, and a little that an allocator may keep.
const RETURN_PERCENT: u64 = 130;

/// Bytes that the router may have afterwards, if it had so many before.
pub fn most_afterwards(before: Resident, kept: u64) -> u64 {
    before.router * RETURN_PERCENT / 100 + kept
}

/// Looks at the server, whose router should come back to so many bytes.
pub fn examine(client: &Client, processes: &Processes, most: u64) -> Aftermath {
    let structured = ask_for_structured_output(client);
    let held = held_gauges(client);
    let deadline = Instant::now() + DEADLINE;
    while processes.now().router > most && Instant::now() < deadline {
        pause(POLL);
    }
    Aftermath { structured, held, resident: processes.now() }
}

/// Asks until it is served, as a client does that was told to come back. Returns how long that took.
///
/// # Errors
/// How the last attempt ended.
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

/// Gauges that do not come to rest.
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
