//! Four clients that read ordinary streams, one stream after the other, and measure the times for which they wait.

use std::time::{Duration, Instant};

use integration_tests::{Client, End, pause};
use serde_json::{Value, json};

/// The number of streams at a time.
const NUM_STREAMS: usize = 4;
/// The time between a refusal and the next attempt.
const RETRY: Duration = Duration::from_millis(50);

/// The measurements of the streams.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The times between two events of a stream.
    pub(crate) gaps: Vec<Duration>,
    /// The times from the first attempt of a request to its first event, including all refused attempts.
    pub(crate) firsts: Vec<Duration>,
    /// The number of streams that ended as they should.
    pub(crate) num_finished: usize,
    /// The number of attempts that the server refused because of its load.
    pub(crate) num_refused: usize,
    /// For each stream that did not end as it should or was not served in time, the reason.
    pub(crate) lost: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.gaps.extend(other.gaps);
        self.firsts.extend(other.firsts);
        self.num_finished += other.num_finished;
        self.num_refused += other.num_refused;
        self.lost.extend(other.lost);
    }
}

/// Starts streams until `end` has come; streams that run at that time are read to their end. A refused stream is
/// requested again until `patience` is over.
pub(crate) fn run(client: &Client, patience: Duration, end: &End) -> Tally {
    let mut all = Tally::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..NUM_STREAMS).map(|number| scope.spawn(move || read(client, number, patience, end))).collect();
        for thread in threads {
            let broken = |_| Tally { lost: vec!["an answer that is no stream".to_owned()], ..Tally::default() };
            all.add(thread.join().unwrap_or_else(broken));
        }
    });
    all
}

fn read(client: &Client, number: usize, patience: Duration, end: &End) -> Tally {
    let body = json!({"inputs": format!("Once upon a time {number}"), "parameters": {
        "max_new_tokens": 300, "ignore_eos_token": true, "do_sample": true, "seed": number
    }});
    let mut tally = Tally::default();
    while !end.is_set() {
        let start = Instant::now();
        if let Err(reason) = read_one(client, &body, patience, &mut tally) {
            tally.lost.push(format!("{reason}, {:.1} s after its request", start.elapsed().as_secs_f64()));
            // This pause prevents thousands of requests to a server that has exited.
            end.wait(RETRY * 10);
        }
    }
    tally
}

fn read_one(client: &Client, body: &Value, patience: Duration, tally: &mut Tally) -> Result<(), String> {
    let mut last = Instant::now();
    let deadline = last + patience;
    let stream = loop {
        let stream = client.stream("/generate_stream", body).map_err(|error| error.to_string())?;
        match stream.status {
            200 => break stream,
            429 if Instant::now() < deadline => tally.num_refused += 1,
            status => return Err(format!("status {status}")),
        }
        pause(RETRY);
    };
    let mut is_first = true;
    for event in stream {
        let times = if std::mem::take(&mut is_first) { &mut tally.firsts } else { &mut tally.gaps };
        times.push(last.elapsed());
        last = Instant::now();
        if !event["error"].is_null() {
            return Err(format!("error {}", event["error"]));
        }
        if event["generated_text"].is_string() {
            tally.num_finished += 1;
            return Ok(());
        }
    }
    Err("a stream that broke off".to_owned())
}
