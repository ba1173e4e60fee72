//! Tests with many clients at the same time: each client gets the same answer as alone, overload is reported, and
//! clients that leave hold nothing on the server.

use std::time::{Duration, Instant};

use integration_tests::{Client, Server, send_signal, test_device};
use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::join_scoped;

fn body(number: u64) -> Value {
    let subjects = ["The little dog", "Once upon a time", "Anna has a red ball.", "In the garden", "My name is"];
    let subject = subjects[number as usize % subjects.len()];
    let mut parameters = json!({"max_new_tokens": 5 + number * 7 % 90, "details": true});
    if number % 3 == 1 {
        parameters["do_sample"] = true.into();
        parameters["temperature"] = 1.2.into();
        parameters["seed"] = number.into();
    }
    if number % 3 == 2 {
        parameters["repetition_penalty"] = 1.3.into();
    }
    json!({"inputs": format!("{subject} {number}"), "parameters": parameters})
}

fn post_all_at_once(client: &Client, bodies: &[Value]) -> Vec<Value> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = bodies
            .iter()
            .map(|body| {
                scope.spawn(move || {
                    let response = client.post("/generate", body);
                    assert_eq!(response.status, 200, "{}", response.text);
                    response.json()
                })
            })
            .collect();
        threads.into_iter().map(|thread| join_scoped(thread, "a response")).collect()
    })
}

/// Waits until a metric has this value.
fn wait_for(client: &Client, name: &str, value: f64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while client.metrics().value(name) != value {
        assert!(Instant::now() < deadline, "{name} is {} instead of {value}", client.metrics().value(name));
    }
}

/// Waits until the server holds nothing for any request.
pub(crate) fn wait_idle(client: &Client) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let metrics = client.metrics();
        let held = ["tgi_queue_size", "tgi_batch_current_size", "hilo_slots_used", "hilo_kv_blocks_used"];
        let held: Vec<_> =
            held.iter().map(|name| (*name, metrics.value(name))).filter(|(_, value)| *value != 0.0).collect();
        if held.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "still held: {held:?}");
    }
}

#[test]
fn a_hundred_at_once_get_what_each_gets_alone() {
    // In bf16 on a processor with AMX, XLA-CPU rounds differently for each batch size, which is enough to choose
    // another token. So other devices than the CPU compute in f32 here.
    let server = Server::demo();
    let server = if test_device() == "cpu" { server } else { server.flag("--dtype", "float32") }.start();
    let client = server.client();
    let bodies: Vec<Value> = (0..100).map(body).collect();
    let together = post_all_at_once(&client, &bodies);
    for (body, together) in bodies.iter().zip(&together) {
        check_same(together, &client.post("/generate", body).json(), &body.to_string());
    }
    wait_idle(&client);
}

/// Compares two answers. On the CPU they are equal to the last bit. On other devices another batch size is another
/// program, which may add numbers in another order: the tokens are equal, and the log-probabilities almost.
fn check_same(together: &Value, alone: &Value, body: &str) {
    let tolerance = if test_device() == "cpu" { 0.0 } else { 1e-4 };
    let (mut together, mut alone) = (together.clone(), alone.clone());
    let [left, right] = [take_logprobs(&mut together), take_logprobs(&mut alone)];
    assert_eq!(together, alone, "{body}");
    assert_eq!(left.len(), right.len(), "{body}");
    for (left, right) in left.iter().zip(right) {
        assert!((left - right).abs() <= tolerance, "{body}: {left} instead of {right}");
    }
}

/// Removes the log-probabilities of the generated tokens from the answer, and returns them.
fn take_logprobs(answer: &mut Value) -> Vec<f64> {
    let tokens = answer["details"]["tokens"].as_array_mut().expect("details were asked for");
    tokens.iter_mut().map(|token| token["logprob"].take().as_f64().expect("a number")).collect()
}

#[test]
fn two_hundred_clients_that_leave_hold_nothing() {
    let server = Server::demo().flag("--max-concurrent-requests", 256).start();
    let client = server.client();
    std::thread::scope(|scope| {
        for number in 0..200 {
            let client = &client;
            scope.spawn(move || {
                let body = json!({"inputs": format!("Once upon a time {number}"), "parameters": {"max_new_tokens": 900, "do_sample": true, "temperature": 2.0}});
                let mut stream = client.stream("/generate_stream", &body).unwrap();
                assert_eq!(stream.status, 200);
                for _ in 0..number % 4 {
                    let _ = stream.next();
                }
            });
        }
    });
    wait_idle(&client);
    assert_eq!(client.generate("The cat", 5), client.generate("The cat", 5));
}

/// Checks that requests of clients that leave are not computed. The clients leave while the shard is stopped, so only
/// steps that had reached the shard by then may run.
fn check_abandoned(num_clients: usize, leave: impl Fn(&Client) + Sync) {
    let server = Server::demo().flag("--max-concurrent-requests", 256).start();
    let client = server.client();
    let shard = server.child("shard");
    send_signal(shard, Signal::STOP);
    std::thread::scope(|scope| {
        for _ in 0..num_clients {
            scope.spawn(|| leave(&client));
        }
    });
    wait_for(&client, "tgi_request_failure{err=\"dropped\"}", num_clients as f64);
    send_signal(shard, Signal::CONT);
    wait_idle(&client);
    let metrics = client.metrics();
    let num_steps: f64 = ["prefill", "decode"]
        .iter()
        .map(|method| metrics.value(&format!("tgi_batch_inference_count{{method=\"{method}\"}}")))
        .sum();
    assert!(num_steps <= 2.0, "{num_steps} steps for clients that had left");
}

#[test]
fn streams_that_nobody_reads_are_not_computed() {
    check_abandoned(200, |client| {
        let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 900}});
        assert_eq!(client.stream("/generate_stream", &body).unwrap().status, 200);
    });
}

#[test]
fn plain_requests_that_nobody_awaits_are_not_computed() {
    check_abandoned(20, |client| {
        let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 900}});
        let impatient = client.with_timeout(Duration::from_millis(500));
        assert!(impatient.post_bytes("/generate", body.to_string().as_bytes()).is_err());
    });
}

#[test]
fn too_many_requests_are_told_so_at_once() {
    let server = Server::demo().flag("--max-concurrent-requests", 1).start();
    let client = server.client();
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 900, "do_sample": true, "temperature": 2.0}});
    let mut running = client.stream("/generate_stream", &body).unwrap();
    assert!(running.next().is_some());
    // The stopped shard keeps the one request from ending, so the limit stays reached.
    let shard = server.child("shard");
    send_signal(shard, Signal::STOP);
    for path in ["/generate", "/generate_stream", "/"] {
        let response = client.post(path, &body);
        assert_eq!(response.status, 429, "{path}: {}", response.text);
        assert_eq!(response.error(), ("Model is overloaded".into(), "overloaded".into()));
        assert!(response.header("retry-after").is_some(), "{:?}", response.headers);
    }
    drop(running);
    send_signal(shard, Signal::CONT);
    wait_idle(&client);
    assert_eq!(client.post("/generate", &json!({"inputs": "The", "parameters": {"max_new_tokens": 1}})).status, 200);
}
