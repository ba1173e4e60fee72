//! **Invariant**: the answer to a request does not depend on its neighbours, on the prefix cache, on the chunks of its
//! prompt, on the window of steps, or on preemption. On the CPU this holds to the last bit of every log-probability.

use integration_tests::{Client, Server, test_device};
use serde_json::{Value, json};
use test_support::join_scoped;

/// The flags of a server and the number of other requests on it.
struct Setting {
    flags: &'static [(&'static str, &'static str)],
    num_neighbours: usize,
    /// True if the server must have preempted sequences, that is, sent them back to the queue.
    preempts: bool,
}

const SETTINGS: [Setting; 5] = [
    Setting { flags: &[], num_neighbours: 16, preempts: false },
    Setting { flags: &[("--step-window", "1")], num_neighbours: 16, preempts: false },
    Setting { flags: &[("--max-batch-prefill-tokens", "16")], num_neighbours: 16, preempts: false },
    Setting {
        flags: &[("--max-batch-prefill-tokens", "64"), ("--step-window", "1")],
        num_neighbours: 16,
        preempts: false,
    },
    Setting {
        flags: &[("--max-batch-total-tokens", "384"), ("--max-batch-prefill-tokens", "64")],
        num_neighbours: 16,
        preempts: true,
    },
];

/// Returns the observed requests: greedy, sampled with top-k, top-p and typical-p, with penalties, and with all
/// details.
fn observed() -> Vec<Value> {
    let prompt = "The quick brown fox jumps over the lazy dog and then rests";
    let body = |parameters: Value| {
        let mut body = json!({"inputs": prompt, "parameters": {"max_new_tokens": 40, "details": true}});
        for (name, value) in parameters.as_object().expect("parameters are an object") {
            body["parameters"][name] = value.clone();
        }
        body
    };
    vec![
        body(json!({})),
        body(json!({"do_sample": true, "temperature": 1.3, "top_k": 40, "top_p": 0.95, "typical_p": 0.95, "seed": 7})),
        body(json!({"repetition_penalty": 1.3, "frequency_penalty": 0.4, "seed": 9, "temperature": 0.8})),
        body(json!({"decoder_input_details": true, "top_n_tokens": 3, "ignore_eos_token": true})),
    ]
}

/// Returns the request of a neighbour. Some of these requests begin like the observed ones.
fn neighbour(number: usize) -> Value {
    let beginnings = ["The quick brown fox jumps over", "Once upon a time", "In the garden", ""];
    let inputs = format!("{} {number} {}", beginnings[number % 4], "la ".repeat(number % 9));
    let parameters =
        json!({"max_new_tokens": 20 + number * 5 % 30, "temperature": 1.1, "seed": number, "ignore_eos_token": true});
    json!({"inputs": inputs, "parameters": parameters})
}

fn post(client: &Client, body: &Value) -> Value {
    let response = client.post("/generate", body);
    assert_eq!(response.status, 200, "{}", response.text);
    response.json()
}

/// Returns the answers to the observed requests while neighbours run.
fn among_others(client: &Client, num_neighbours: usize) -> Vec<Value> {
    std::thread::scope(|scope| {
        let others: Vec<_> =
            (0..num_neighbours).map(|number| scope.spawn(move || post(client, &neighbour(number)))).collect();
        let observed: Vec<_> = observed().into_iter().map(|body| scope.spawn(move || post(client, &body))).collect();
        others.into_iter().for_each(|thread| _ = join_scoped(thread, "the response to a neighbour"));
        observed.into_iter().map(|thread| join_scoped(thread, "a response")).collect()
    })
}

/// Compares two answers. On the CPU they must be equal. On devices where another batch size is another program,
/// log-probabilities may differ a little.
fn check_same(answer: &Value, expected: &Value, what: &str) {
    if test_device() == "cpu" {
        assert_eq!(answer, expected, "{what}");
        return;
    }
    let tokens = |answer: &Value| answer["details"]["tokens"].as_array().expect("details").clone();
    let (tokens, expected_tokens) = (tokens(answer), tokens(expected));
    assert_eq!(tokens.len(), expected_tokens.len(), "{what}");
    for (token, expected) in tokens.iter().zip(&expected_tokens) {
        assert_eq!(token["id"], expected["id"], "{what}");
        let [logprob, expected] = [token, expected].map(|token| token["logprob"].as_f64().expect("a number"));
        assert!((logprob - expected).abs() <= 1e-4, "{what}: {logprob} instead of {expected}");
    }
}

fn start(fixture: &str, flags: &[(&str, &str)]) -> Server {
    let path = checkpoints::folder(fixture);
    let server = Server::model(path.to_str().expect("the path is text"));
    let server = server.flag("--max-batch-size", 20).flag("--max-total-tokens", 128);
    flags.iter().fold(server, |server, (name, value)| server.flag(name, value)).start()
}

fn check(fixture: &str, settings: &[Setting]) {
    let plain = start(fixture, &[("--prefix-caching", "false"), ("--step-window", "1")]);
    let expected: Vec<Value> = observed().iter().map(|body| post(&plain.client(), body)).collect();
    assert_eq!(plain.client().metrics().value("vllm:prefix_cache_hits_total"), 0.0);
    drop(plain);
    for Setting { flags, num_neighbours, preempts } in settings {
        let server = start(fixture, flags);
        let client = server.client();
        // On a busy machine the requests of a round may arrive too far apart for a preemption. Then there are more
        // rounds.
        for round in 0..10 {
            for (answer, expected) in among_others(&client, *num_neighbours).iter().zip(&expected) {
                check_same(answer, expected, &format!("{fixture}, {flags:?}, round {round}, among others"));
            }
            if round > 0 && (!preempts || client.metrics().value("vllm:num_preemptions_total") > 0.0) {
                break;
            }
        }
        for (body, expected) in observed().iter().zip(&expected) {
            check_same(&post(&client, body), expected, &format!("{fixture}, {flags:?}, warm, alone"));
        }
        let metrics = client.metrics();
        assert!(metrics.value("vllm:prefix_cache_hits_total") > 0.0, "{flags:?}");
        let num_preemptions = metrics.value("vllm:num_preemptions_total");
        assert!(!preempts || num_preemptions > 0.0, "nothing was preempted");
        // The warm-up must have compiled every program.
        assert_eq!(metrics.value("hilo_programs_compiled_total{phase=\"serving\"}"), 0.0);
    }
}

#[test]
fn an_answer_does_not_depend_on_what_else_happens() {
    // On other devices compiling takes long for each setting, so only the last setting, which also preempts, is tested
    // there.
    let settings = if test_device() == "cpu" { &SETTINGS[..] } else { &SETTINGS[4..] };
    check("tiny-llama-gqa-untied", settings);
}

#[test]
fn nor_does_that_of_a_model_with_scaled_positions() {
    if test_device() == "cpu" {
        check("tiny-llama3-rope", &SETTINGS[2..]);
    }
}

/// A system prompt that many requests share is computed only once, and of a longer conversation only the new part is
/// computed.
#[test]
fn a_prefix_is_computed_only_once() {
    let server = Server::demo().start();
    let client = server.client();
    let system = "Tom and Lily are in the garden. They see a big red ball. ".repeat(12);
    let num_cached = |response: &integration_tests::Response, name: &str| -> u32 {
        response.header(name).and_then(|number| number.parse().ok()).expect("the header has a number")
    };
    let ask = |inputs: &str| client.post("/generate", &json!({"inputs": inputs, "parameters": {"max_new_tokens": 60}}));
    let first = ask(system.trim());
    assert_eq!(num_cached(&first, "x-cached-tokens"), 0);
    for number in 1..10 {
        let response = ask(&format!("{system}What is red? {number}"));
        let [cached, all] = ["x-cached-tokens", "x-prompt-tokens"].map(|name| num_cached(&response, name));
        assert!(cached * 10 >= all * 9, "{cached} of {all} tokens");
    }
    let answer = first.json()["generated_text"].as_str().expect("a text").to_owned();
    let response = ask(&format!("{}{answer} And what is big?", system.trim()));
    let [cached, all] = ["x-cached-tokens", "x-prompt-tokens"].map(|name| num_cached(&response, name));
    // Only the new message is computed, and the tokens of the answer's last block, which was not full.
    assert!(answer.len() > 20 && all - cached <= 16 + 8, "{cached} of {all} tokens, after {answer:?}");
}
