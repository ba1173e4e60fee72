//! Tests of grammars: texts follow them on every device and while other requests run, and bad grammars harm no other
//! client.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use integration_tests::aftermath::{self, most_afterwards};
use integration_tests::{Client, Processes, Server, pause, send_signal, test_device};
use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::join_scoped;

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 10},
            "age": {"type": "integer", "minimum": 0, "maximum": 30},
            "likes": {"type": "array", "items": {"enum": ["milk", "fish", "sun"]}, "minItems": 1, "maxItems": 2}
        },
        "required": ["name", "age", "likes"],
        "additionalProperties": false
    })
}

fn answer(client: &Client, parameters: &Value) -> String {
    let response = client.post("/generate", &json!({"inputs": "Tom has a cat.", "parameters": parameters}));
    assert_eq!(response.status, 200, "{}", response.text);
    response.json()["generated_text"].as_str().expect("a text").to_owned()
}

#[test]
fn texts_follow_their_grammars_beside_others() {
    let server = Server::demo().start();
    let plain = server.client().generate("Once upon a time", 60);
    std::thread::scope(|scope| {
        let plains: Vec<_> = (0..4).map(|_| scope.spawn(|| server.client().generate("Once upon a time", 60))).collect();
        let texts: Vec<_> = (0..12)
            .map(|seed| {
                let grammar = json!({"type": "json", "value": schema()});
                let parameters = match seed {
                    0 => json!({"grammar": grammar, "max_new_tokens": 400}),
                    _ => json!({"grammar": grammar, "max_new_tokens": 400, "do_sample": true, "seed": seed}),
                };
                let server = &server;
                scope.spawn(move || answer(&server.client(), &parameters))
            })
            .collect();
        for text in texts {
            let text = join_scoped(text, "a response");
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(value.as_object().unwrap().len(), 3, "{text}");
            assert!(value["name"].as_str().unwrap().chars().count() <= 10, "{text}");
            assert!((0..=30).contains(&value["age"].as_i64().unwrap()), "{text}");
            assert!((1..=2).contains(&value["likes"].as_array().unwrap().len()), "{text}");
        }
        let are_same = plains.into_iter().all(|text| join_scoped(text, "a response") == plain);
        // Devices other than the CPU do not promise equal bits for other batch sizes.
        assert!(are_same || test_device() != "cpu", "requests without a grammar got other texts");
    });
    let metrics = server.client().metrics();
    assert_eq!(metrics.value("tgi_batch_current_size"), 0.0);
}

/// Returns a grammar of about 45 KB whose terminals, written out, would be 12 000 nested groups.
fn nested_terminals() -> String {
    (0..800).fold("start: A0".to_owned(), |grammar, number| {
        format!("{grammar}\nA{number}: {}A{}{}", "(".repeat(15), number + 1, ")+".repeat(15))
    }) + "\nA800: \"x\""
}

/// Schemas, regular expressions and grammars that try to use up all time, memory or stack.
fn adversaries() -> Vec<(&'static str, Value)> {
    let properties = |count: usize| {
        let properties: serde_json::Map<_, _> =
            (0..count).map(|number| (format!("p{number}"), json!({"type": "string"}))).collect();
        json!({"type": "object", "properties": properties})
    };
    let many = |count: usize, schema: &dyn Fn(usize) -> Value| (0..count).map(schema).collect::<Vec<Value>>();
    let product = many(8, &|_| json!({"anyOf": many(8, &|number| properties(number))}));
    let json = |schema: Value| json!({"type": "json", "value": schema});
    let regex = |regex: &str| json!({"type": "regex", "value": regex});
    vec![
        ("ten thousand properties", json(properties(10_000))),
        ("a thousand properties", json(properties(1000))),
        ("alternatives of thousands of optional properties", json(json!({"anyOf": many(4, &|_| properties(1000))}))),
        ("endless references", json(json!({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}))),
        ("a product of alternatives", json(json!({"allOf": product}))),
        ("a thousand alternatives", json(json!({"anyOf": many(1000, &|number| json!({"const": number}))}))),
        ("a file", json(json!({"$ref": "file:///etc/passwd"}))),
        ("a network", json(json!({"$ref": "http://169.254.169.254/latest/meta-data"}))),
        ("repetitions of repetitions", regex("(.*){1000}{1000}")),
        ("an expression of a megabyte", regex(&"a?".repeat(500_000))),
        ("repetitions of much", regex("(.{0,500}a.{0,500}b){1,50}")),
        (
            "patterns that all hold",
            json(json!({"type": "string", "allOf": many(20, &|n| json!({"pattern": format!("^(.*a.{{{n}}})*$")}))})),
        ),
        ("remainders", json(json!({"type": "integer", "multipleOf": 9_999_991, "minimum": -1e15, "maximum": 1e15}))),
        ("repetitions in a chain of terminals", json!({"type": "lark", "value": nested_terminals()})),
        ("a grammar that goes in circles", json!({"type": "lark", "value": "start: a\na: b\nb: a"})),
        (
            "a grammar of rules",
            json!({"type": "lark", "value": (0..30_000).fold("start: a0".to_owned(), |grammar, number| {
                format!("{grammar}\na{number}: a{} \"x\" | \"y\"", number + 1)
            })}),
        ),
    ]
}

#[test]
fn bad_grammars_are_answered_and_harm_nobody() {
    let server = Server::mock().start();
    let client = server.client();
    let alone = client.generate("Hello", 50);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4).map(|_| scope.spawn(|| server.client().generate("Hello", 50))).collect();
        let mut num_refused = 0;
        for (name, grammar) in adversaries() {
            let body = json!({"inputs": "x", "parameters": {"grammar": grammar, "max_new_tokens": 3}});
            let response = client.post("/generate", &body);
            assert!(
                response.status < 500 && response.text.len() < 1000,
                "{name}: {} {}",
                response.status,
                response.text
            );
            num_refused += usize::from(response.status >= 400);
        }
        assert!(num_refused >= 8, "{num_refused}");
        assert!(
            readers.into_iter().all(|reader| join_scoped(reader, "a response") == alone),
            "other clients got other texts"
        );
    });
    assert_eq!(answer(&client, &json!({"grammar": {"type": "regex", "value": "[a-c]{3}"}})).len(), 3);
}

#[test]
fn a_client_that_leaves_its_grammar_behind_is_in_nobodys_way() {
    let server = Server::mock().start();
    std::thread::scope(|scope| {
        // All adversaries send a request at the same time, while another client sends ordinary requests.
        let attackers: Vec<_> = adversaries()
            .into_iter()
            .map(|(_, grammar)| {
                let body = json!({"inputs": "x", "parameters": {"grammar": grammar, "max_new_tokens": 3}});
                let client = server.client();
                scope.spawn(move || client.post("/generate", &body).status)
            })
            .collect();
        for number in 0..5 {
            let grammar = json!({"type": "regex", "value": format!("[a-c]{{{}}}", number + 1)});
            assert_eq!(answer(&server.client(), &json!({"grammar": grammar})).len(), number + 1);
        }
        for attacker in attackers {
            let status = join_scoped(attacker, "the response to an attacker");
            assert!(status < 500, "{status}");
        }
    });
    assert_eq!(server.client().metrics().value("tgi_batch_current_size"), 0.0);
}

/// The maximum time until a child process that tries a grammar runs, or has ended.
const CHILD_DEADLINE: Duration = Duration::from_secs(60);

/// Returns the schema of texts that match `count` expressions at the same time, in which the last letters may be any.
/// Each expression doubles the number of terms that are computed together.
fn intersection(count: u8, num_last: usize) -> Value {
    let pattern =
        |n: u8| json!({"type": "string", "pattern": format!(".*[{}-z].{{{num_last}}}", char::from(b'a' + n))});
    json!({"allOf": (0..count).map(pattern).collect::<Vec<_>>()})
}

fn with_schema(schema: &Value) -> Value {
    json!({"inputs": "x", "parameters": {"max_new_tokens": 5, "grammar": {"type": "json", "value": schema}}})
}

/// Waits until the number of child processes that try a grammar is `wanted`, and returns their process ids.
fn wait_for_trials(server: &Server, wanted: usize) -> Vec<i32> {
    let start = Instant::now();
    loop {
        let trials = server.children("try-grammar");
        if trials.len() == wanted {
            return trials;
        }
        assert!(start.elapsed() < CHILD_DEADLINE, "{trials:?} instead of {wanted}");
        pause(Duration::from_millis(1));
    }
}

fn wait_until_gone(pid: i32) {
    let start = Instant::now();
    while std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()) {
        assert!(start.elapsed() < CHILD_DEADLINE, "process {pid} still runs");
        pause(Duration::from_millis(1));
    }
}

/// Starts to send a request whose grammar is tried, stops the child process that tries it so that it cannot end by
/// itself, and returns the connection and the child's process id.
fn request_with_stopped_trial(server: &Server) -> (TcpStream, i32) {
    let body = with_schema(&intersection(20, 12)).to_string();
    let head = format!(
        "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut connection = TcpStream::connect(server.address()).expect("the server listens");
    connection.write_all((head + &body).as_bytes()).expect("the server reads");
    let trial = wait_for_trials(server, 1)[0];
    send_signal(trial, Signal::STOP);
    (connection, trial)
}

#[test]
fn costly_intersections_are_refused_while_others_are_served() {
    let server = Server::mock().start();
    let client = server.client();
    let processes = Processes::of(&server);
    assert_eq!(answer(&client, &json!({"grammar": {"type": "regex", "value": "[a-c]{9}"}})).len(), 9);
    let before = processes.now();
    std::thread::scope(|scope| {
        let bombs: Vec<_> = [(20, 12), (16, 12), (20, 8)]
            .into_iter()
            .map(|(count, num_last)| {
                let (client, body) = (server.client(), with_schema(&intersection(count, num_last)));
                scope.spawn(move || client.post("/generate", &body))
            })
            .collect();
        for number in 0..8 {
            let grammar = json!({"type": "regex", "value": format!("[a-c]{{{}}}", number + 1)});
            assert_eq!(answer(&server.client(), &json!({"grammar": grammar})).len(), number + 1);
        }
        for bomb in bombs {
            let response = join_scoped(bomb, "a bomb");
            assert_eq!(response.status, 422, "{}", response.text);
            let (message, _) = response.error();
            let begins = "Input validation error: grammar is not valid: its intersections, complements or repeated groups \
                          take more than ";
            assert!(message.starts_with(begins) && message.ends_with("; simplify them"), "{message}");
        }
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": intersection(20, 11)}});
    let messages = json!([{"role": "user", "content": "x"}]);
    let body = json!({"model": "x", "messages": messages, "response_format": format});
    let response = client.post("/v1/chat/completions", &body);
    assert_eq!(response.status, 400, "{}", response.text);
    assert!(response.text.contains("response_format is not valid: its intersections"), "{}", response.text);
    wait_for_trials(&server, 0);
    let most = most_afterwards(before, 32 << 20);
    let resident = aftermath::examine(&client, &processes, most).resident;
    assert!(resident.router <= most, "{resident:?} after {before:?}");
    // An intersection that is not costly is followed.
    let name = json!({"type": "string", "pattern": "^[a-c]+$", "minLength": 2, "maxLength": 4});
    let parameters = json!({"grammar": {"type": "json", "value": name}, "max_new_tokens": 50});
    let text: String = serde_json::from_str(&answer(&client, &parameters)).unwrap();
    assert!((2..=4).contains(&text.len()) && text.bytes().all(|byte| (b'a'..=b'c').contains(&byte)), "{text}");
}

#[test]
fn the_trial_of_a_grammar_ends_with_its_client_and_with_the_router() {
    let server = Server::mock().start();
    let (connection, trial) = request_with_stopped_trial(&server);
    drop(connection);
    wait_until_gone(trial);
    assert_eq!(answer(&server.client(), &json!({"grammar": {"type": "regex", "value": "[a-c]{3}"}})).len(), 3);
    let (_connection, trial) = request_with_stopped_trial(&server);
    send_signal(server.child("router"), Signal::KILL);
    wait_until_gone(trial);
}

#[test]
fn a_stop_tells_a_request_whose_grammar_is_tried() {
    let server = Server::mock().flag("--shutdown-timeout", 0).start();
    let (mut connection, trial) = request_with_stopped_trial(&server);
    server.signal(Signal::TERM);
    let mut answer = String::new();
    connection.set_read_timeout(Some(CHILD_DEADLINE)).unwrap();
    connection.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"stopping\""), "{answer}");
    assert_eq!(server.wait().status.code(), Some(0));
    wait_until_gone(trial);
}

#[test]
fn values_of_wrong_types_are_named_and_panic_nowhere() {
    let server = Server::mock().start();
    let client = server.client();
    let long = "é".repeat(60);
    for keyword in ["minimum", "multipleOf", "minLength", "required"] {
        let schema = json!({"properties": {"age": {"type": "integer", keyword: long}}});
        let response = client.post("/generate", &with_schema(&schema));
        assert_eq!(response.status, 422, "{}", response.text);
        let (message, _) = response.error();
        let begins =
            format!("Input validation error: grammar is not valid: its `{keyword}` at #/properties/age must be ");
        assert!(message.starts_with(&begins), "{message}");
    }
    let log = server.stop().log.join("\n");
    assert!(!log.contains("panic") && !log.contains("ERROR"), "{log}");
}

#[test]
fn counts_that_cannot_be_followed_are_the_clients_error() {
    let server = Server::mock().start();
    for regex in ["(([a-z]{1,500}){1,500}){1,500}", "([a-z]{1,100}){1,100}"] {
        let grammar = json!({"type": "regex", "value": regex});
        let body = json!({"inputs": "x", "parameters": {"max_new_tokens": 300, "grammar": grammar}});
        let response = server.client().post("/generate", &body);
        assert_eq!(response.status, 422, "{regex}: {}", response.text);
    }
}
