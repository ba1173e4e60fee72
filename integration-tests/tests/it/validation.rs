//! Tests of invalid requests: each gets the status and the message that TGI's clients know, and no other client is
//! affected.

use integration_tests::{Client, Server};
use serde_json::{Value, json};

fn check(client: &Client, body: &Value, sentence: &str) {
    for path in ["/generate", "/generate_stream", "/"] {
        let response = client.post(path, body);
        assert_eq!(response.status, 422, "{path} {body}: {}", response.text);
        assert_eq!(
            response.error(),
            (format!("Input validation error: {sentence}"), "validation".into()),
            "{path} {body}"
        );
    }
}

#[test]
fn every_row_of_the_validation_table() {
    let server = Server::mock().flag("--max-input-tokens", 50).flag("--max-total-tokens", 60).start();
    let client = server.client();
    let with = |parameters: Value| json!({"inputs": "Hello", "parameters": parameters});
    for (parameters, sentence) in [
        (json!({"temperature": 0.0}), "`temperature` must be strictly positive"),
        (json!({"temperature": -1.0}), "`temperature` must be strictly positive"),
        (json!({"repetition_penalty": 0.0}), "`repetition_penalty` must be strictly positive"),
        (json!({"frequency_penalty": 2.5}), "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        (json!({"top_p": 0.0}), "`top_p` must be > 0.0 and <= 1.0"),
        (json!({"top_p": 1.5}), "`top_p` must be > 0.0 and <= 1.0"),
        (json!({"typical_p": 0.0}), "`typical_p` must be > 0.0 and <= 1.0"),
        (json!({"min_p": -0.5}), "`min_p` must be >= 0.0 and <= 1.0"),
        (json!({"presence_penalty": -2.5}), "`presence_penalty` must be >= -2.0 and <= 2.0"),
        (
            json!({"max_new_tokens": 2, "min_new_tokens": 3}),
            "`min_new_tokens` must be <= 2, the maximum number of tokens that this request can generate. Given: 3",
        ),
        (json!({"top_k": 0}), "`top_k` must be strictly positive"),
        (json!({"top_k": -3}), "`top_k` must be strictly positive"),
        (json!({"max_new_tokens": 0}), "`max_new_tokens` must be strictly positive"),
        (json!({"stop": ["a", "b", "c", "d", "e"]}), "`stop` supports up to 4 stop sequences. Given: 5"),
        (json!({"top_n_tokens": 6}), "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
        (json!({"truncate": 0}), "`truncate` must be strictly positive and less than 50. Given: 0"),
        (json!({"truncate": 51}), "`truncate` must be strictly positive and less than 50. Given: 51"),
        (
            json!({"grammar": {"type": "regex", "value": "a("}}),
            "grammar is not valid: at 1(8): invalid regex \"a(\" (in regex): regex parse error: a( ^ error: unclosed group \
             1 | start: /a(/ ^",
        ),
    ] {
        check(&client, &with(parameters), sentence);
    }
    check(&client, &json!({"inputs": ""}), "`inputs` cannot be empty");

    let long = "word ".repeat(200);
    let response = client.post("/generate", &json!({"inputs": long, "parameters": {"max_new_tokens": 1}}));
    assert_eq!(response.status, 422);
    assert!(response.error().0.contains("must"), "{}", response.text);
    let too_many = client.post("/generate", &with(json!({"max_new_tokens": 100}))).error().0;
    assert!(
        too_many.starts_with("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 60. Given: "),
        "{too_many}"
    );
    assert_eq!(client.generate("Hello", 3), client.generate("Hello", 3));
}

#[test]
fn best_of_has_rules_of_its_own() {
    let server = Server::mock().start();
    let client = server.client();
    let sentence = |parameters: Value| {
        let response = client.post("/generate", &json!({"inputs": "Hello", "parameters": parameters}));
        assert_eq!(response.status, 422, "{}", response.text);
        response.error().0
    };
    assert_eq!(sentence(json!({"best_of": 2})), "Input validation error: you must use sampling when `best_of` is > 1");
    assert_eq!(
        sentence(json!({"best_of": 2, "do_sample": true, "seed": 1})),
        "Input validation error: `seed` must not be set when `best_of` > 1"
    );
    assert_eq!(sentence(json!({"best_of": 3})), "Input validation error: `best_of` must be > 0 and <= 2. Given: 3");
}

#[test]
fn streams_refuse_what_they_cannot_do() {
    let server = Server::mock().start();
    let client = server.client();
    for (parameters, sentence) in [
        (json!({"best_of": 2, "do_sample": true}), "`best_of` != 1 is not supported when streaming tokens"),
        (
            json!({"decoder_input_details": true}),
            "`decoder_input_details` == true is not supported when streaming tokens",
        ),
    ] {
        let response = client.post("/generate_stream", &json!({"inputs": "Hello", "parameters": parameters}));
        assert_eq!(response.status, 422, "{}", response.text);
        assert_eq!(response.error().0, format!("Input validation error: {sentence}"));
    }
}

#[test]
fn bytes_that_are_no_request() {
    let server = Server::mock().start();
    let client = server.client();
    let check = |body: &[u8], status: u16| {
        let response = client.post_bytes("/generate", body).unwrap();
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!(response.status, status, "{shown}: {}", response.text);
        let (error, error_type) = response.error();
        assert!(!error.is_empty() && !error_type.is_empty(), "{shown}: {}", response.text);
    };
    check(b"{", 400);
    check(b"", 400);
    check(b"\xff\xfe", 400);
    check(br#"{"inputs":"\ud800"}"#, 400);
    let nested = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    check(format!(r#"{{"inputs":"a","parameters":{{"grammar":{{"type":"json","value":{nested}}}}}}}"#).as_bytes(), 400);
    check(b"[]", 422);
    check(b"null", 422);
    check(b"{}", 422);
    check(br#"{"inputs":7}"#, 422);
    check(br#"{"inputs":["a"]}"#, 422);
    check(br#"{"inputs":"a","parameters":{"max_new_tokens":-1}}"#, 422);
    check(br#"{"inputs":"a","parameters":{"max_new_tokens":4294967296}}"#, 422);
    check(br#"{"inputs":"a","parameters":{"best_of":1000000}}"#, 422);
    assert_eq!(client.get("/health").status, 200);
}

#[test]
fn a_body_over_the_limit_is_refused() {
    let server = Server::mock().flag("--payload-limit", 1000).start();
    let client = server.client();
    let response = client.post("/generate", &json!({"inputs": "x".repeat(2000)}));
    assert_eq!(response.status, 413, "{}", response.text);
    assert!(response.error().0.contains("length limit exceeded"), "{}", response.text);

    let body = json!({"inputs": "x".repeat(10_000_000)}).to_string();
    // The server may close the connection before it has read the whole body.
    if let Ok(response) = client.post_bytes("/generate", body.as_bytes()) {
        assert_eq!(response.status, 413, "{}", response.text);
    }
    assert_eq!(client.get("/health").status, 200);
}

#[test]
fn unknown_routes_and_methods_say_what_was_asked() {
    let server = Server::mock().start();
    let client = server.client();
    let response = client.get("/nothing/here");
    assert_eq!(response.status, 404);
    assert!(response.error().0.contains("/nothing/here"), "{}", response.text);
    let response = client.get("/generate");
    assert_eq!(response.status, 405);
    assert!(response.error().0.contains("GET"), "{}", response.text);
}
