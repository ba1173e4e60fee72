//! Sends random requests to the real engine. They set parameters of all dialects, over their legal ranges and somewhat
//! beyond. Six clients send them, and sometimes disconnect early.
//!
//! ```text
//! cargo test -p integration-tests --test fuzz                          # as in CI: 25 seconds
//! HILO_TEST_NUM_SHARD=2 cargo test -p integration-tests --test fuzz    # with two shards, as `-- --shards 2`
//! HILO_TEST_EXECUTABLE=target/release/text-generation-launcher \
//!     cargo test -p integration-tests --test fuzz -- --seconds 1800 --seed 7
//! ```
//!
//! `verdict.rs` judges each answer. A request with a wrong answer is printed with the numbers of its client and of the
//! request, because with the same seed each client draws the same requests, however fast the server is. At the end the
//! server must hold nothing for any request, give the same answer to a plain request as before the first random one,
//! and exit with status 0.

#![expect(clippy::print_stdout, reason = "a program that prints its results")]

mod answers;
mod arguments;
mod body;
mod conversations;
mod draw;
mod events;
mod grammars;
mod logprobs;
mod numbers;
mod parameters;
mod prompts;
mod requests;
mod tally;
mod verdict;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use arguments::Arguments;
use draw::Draw;
use integration_tests::{Client, End, Processes, Server, aftermath, test_device};
use serde_json::json;
use tally::Tally;
use worker::Target;

const NUM_WORKERS: u64 = 6;
/// The timeout of a request. A server that takes longer counts as stuck.
const DEADLINE: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let arguments = match Arguments::read(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(sentence) => {
            println!("{sentence}");
            return ExitCode::FAILURE;
        }
    };
    if arguments.is_list {
        println!("fuzz: test");
        return ExitCode::SUCCESS;
    }
    if !arguments.is_named {
        println!("skipped: the words on the command line name other tests");
        return ExitCode::SUCCESS;
    }
    let demo = match arguments.shards {
        Some(shards) => Server::builder("demo", test_device()).flag("--num-shard", shards),
        None => Server::demo(),
    };
    let faults = fuzz(demo.start(), &arguments);
    faults.iter().for_each(|fault| println!("{fault}"));
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Sends requests for the time in `arguments`, stops the server, and returns all faults that were found.
fn fuzz(server: Server, arguments: &Arguments) -> Vec<String> {
    let (client, processes) = (server.client().with_timeout(DEADLINE), Processes::of(&server));
    let (seed, tally, end) = (arguments.seed, Tally::new(arguments.seed), End::default());
    let before = plain_answer(&client);
    println!(
        "seed {seed}, {} s, {NUM_WORKERS} clients, {}",
        arguments.time.as_secs(),
        integration_tests::executable().display()
    );
    let target = Target { client: &client, address: server.address(), processes: &processes, tally: &tally, end: &end };
    std::thread::scope(|scope| {
        for number in 0..NUM_WORKERS {
            scope.spawn(move || worker::run(target, Draw::new(seed, number), number));
        }
        end.wait(arguments.time);
        end.set();
    });
    println!("{}", tally.table());
    let mut faults = Vec::new();
    if tally.num_violations() > 0 {
        faults.push(format!("{} violations", tally.num_violations()));
    }
    if !processes.are_alive() {
        faults.push("a process ended".to_owned());
        return faults;
    }
    let found = aftermath::examine(&client, &processes, u64::MAX);
    faults.extend(found.structured.err().map(|reason| format!("structured output is refused: {reason}")));
    faults.extend(found.held.into_iter().map(|gauge| format!("a gauge is above zero: {gauge}")));
    let after = plain_answer(&client);
    if before.is_err() || after != before {
        faults.push(format!("a plain request was answered {before:?}, and in the end {after:?}"));
    }
    let status = server.stop().status;
    if status.code() != Some(0) {
        faults.push(format!("the server ended with {status}"));
    }
    faults
}

/// Sends a greedy request and returns the answer.
fn plain_answer(client: &Client) -> Result<String, String> {
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 60}}).to_string();
    match client.post_bytes("/generate", body.as_bytes()) {
        Ok(response) if response.status == 200 => Ok(response.text),
        Ok(response) => Err(format!("{} {}", response.status, response.text)),
        Err(error) => Err(error.to_string()),
    }
}
