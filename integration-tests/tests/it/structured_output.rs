//! Tests of grammars: texts follow them on every device and while other requests run, and bad grammars harm no other
//! client.

use integration_tests::{Client, Server, test_device};
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
