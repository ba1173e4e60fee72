//! The requests of the attacks, legal and illegal. Each is meant to be the worst of its kind that fits into a body.

use serde_json::{Value, json};

use crate::attack::Request;

/// The size of a text with which a body is just below the default size limit, in bytes.
const LARGE: usize = 1_900_000;

fn post(path: &'static str, body: &Value) -> Request {
    Request { path, body: body.to_string().into_bytes() }
}

fn generate(inputs: &str, parameters: &Value) -> Request {
    post("/generate", &json!({"inputs": inputs, "parameters": parameters}))
}

fn with_grammar(kind: &str, value: impl Into<Value>, max_new_tokens: u32) -> Request {
    let grammar = json!({"type": kind, "value": value.into()});
    generate("Tom has a cat.", &json!({"grammar": grammar, "max_new_tokens": max_new_tokens}))
}

/// Extreme parameters, alone and together: at or near the ends of their ranges, or far outside of them.
pub(crate) fn extreme_parameters() -> Vec<Request> {
    let grammar = json!({"type": "regex", "value": "🤣{2}"});
    let parameters = [
        json!({"temperature": 1e-40}),
        json!({"temperature": 1.2e-38}),
        json!({"temperature": 3.4e38, "top_p": 1e-45}),
        json!({"temperature": 1e-4, "repetition_penalty": 1e-4}),
        json!({"temperature": 1e-20, "repetition_penalty": 0.01}),
        json!({"repetition_penalty": 1e-38}),
        json!({"repetition_penalty": 0.01}),
        json!({"repetition_penalty": 3.4e38, "do_sample": true}),
        json!({"repetition_penalty": 100, "do_sample": true}),
        json!({"repetition_penalty": 100, "grammar": grammar}),
        json!({"frequency_penalty": 3.4e38, "presence_penalty": -3.4e38}),
        json!({"frequency_penalty": 2, "presence_penalty": -2}),
        json!({"logit_bias": {"5": 3.4e38, "6": -3.4e38}, "temperature": 1e-30}),
        json!({"logit_bias": {"5": 100, "6": -100}, "temperature": 1e-30}),
        json!({"top_p": 1e-45, "min_p": 1.0, "do_sample": true}),
        json!({"typical_p": 1e-45, "top_k": 1}),
    ];
    let requests = parameters.into_iter().map(|mut parameters| {
        parameters["max_new_tokens"] = 8.into();
        generate("Once upon a time a time", &parameters)
    });
    let message = json!([{"role": "user", "content": "hi"}]);
    let chat = json!({"model": "x", "messages": message, "max_tokens": 1, "temperature": 1e-40});
    requests.chain([post("/v1/chat/completions", &chat)]).collect()
}

/// Grammars that would take extremely long to compile for their length.
pub(crate) fn nested_grammars() -> Vec<Request> {
    [20_000, 40_000, 262_000].map(|len| with_grammar("lark", nested_grammar(len), 20)).into()
}

/// Returns a grammar of about `len` bytes, in whose rules the reference to the next rule is in 20 nested repetitions.
fn nested_grammar(len: usize) -> String {
    let mut text = "start: a0\n".to_owned();
    for rule in 0.. {
        let next = format!("{}a{}{}", "(".repeat(20), rule + 1, ")+".repeat(20));
        let line = format!("a{rule}: \"a\" {next} \"b\"\n");
        if text.len() + line.len() + 20 > len {
            text.push_str(&format!("a{rule}: \"c\"\n"));
            break;
        }
        text.push_str(&line);
    }
    text
}

/// Two requests for 20 choices: one has a stop string as long as the body allows, the other has stop strings as long as
/// the server accepts.
pub(crate) fn long_stop_strings() -> Vec<Request> {
    let body = |stop: Vec<String>| {
        post(
            "/v1/completions",
            &json!({"model": "x", "prompt": "Once", "n": 20, "max_tokens": 900, "stop": stop, "temperature": 1.0}),
        )
    };
    vec![body(vec!["a".repeat(LARGE)]), body(vec![" ".repeat(1024); 4])]
}

/// A request whose answer has several megabytes.
pub(crate) fn long_answers() -> Vec<Request> {
    vec![post(
        "/v1/completions",
        &json!({
            "model": "x", "prompt": "Once", "n": 16, "max_tokens": 900, "logprobs": 5, "temperature": 1.0,
            "ignore_eos": true, "stream": true
        }),
    )]
}

/// A short request, which is sent many times.
pub(crate) fn short_requests() -> Vec<Request> {
    vec![generate("Once", &json!({"max_new_tokens": 1}))]
}

/// Requests to routes that generate nothing, with texts of three lengths, the longest as long as a body allows.
pub(crate) fn long_texts() -> Vec<Request> {
    let of_len = |len: usize| {
        let text = "a ".repeat(len / 2);
        let messages = json!([{"role": "user", "content": text}]);
        [
            post("/tokenize", &json!({"inputs": text})),
            post("/chat_tokenize", &json!({"model": "x", "messages": messages})),
            post("/v1/messages/count_tokens", &json!({"model": "x", "messages": messages})),
        ]
    };
    [60_000, 260_000, LARGE].map(of_len).into_iter().flatten().collect()
}

/// Conversations of tens of thousands of messages.
pub(crate) fn many_messages() -> Vec<Request> {
    ["tool", "user", "assistant"]
        .map(|role| {
            let message = json!({"role": role, "content": "x"});
            let messages = vec![message.clone(); LARGE / (message.to_string().len() + 1)];
            post("/v1/chat/completions", &json!({"model": "x", "messages": messages, "max_tokens": 1}))
        })
        .into()
}

/// Requests for 128 choices, with prompts of two lengths, the longer one as long as a body allows.
pub(crate) fn many_choices() -> Vec<Request> {
    let of_len = |len: usize| {
        let text = "a ".repeat(len / 2);
        let messages = json!([{"role": "user", "content": text}]);
        [
            post("/v1/completions", &json!({"model": "x", "prompt": text, "n": 128, "max_tokens": 1})),
            post("/v1/chat/completions", &json!({"model": "x", "messages": messages, "n": 128, "max_tokens": 1})),
        ]
    };
    [260_000, LARGE].map(of_len).into_iter().flatten().collect()
}

/// Short regular expressions whose automata take megabytes.
pub(crate) fn wide_expressions() -> Vec<Request> {
    (0..32).map(|number| with_grammar("regex", format!("(.{{0,{}}}a.{{0,500}}b){{1,50}}", 500 - number), 300)).collect()
}

/// Short schemas of texts that match many expressions at the same time. The number of terms that are computed together
/// is exponential in the number of expressions.
pub(crate) fn costly_intersections() -> Vec<Request> {
    let pattern = |first: u8, num_last: u8| json!({"type": "string", "pattern": format!(".*[{}-z].{{{num_last}}}", char::from(b'a' + first))});
    let schema = |num_last| json!({"allOf": (0..20).map(|first| pattern(first, num_last)).collect::<Vec<_>>()});
    (8..40).map(|num_last| with_grammar("json", schema(num_last), 5)).collect()
}

/// A request with a body of almost the maximum size.
pub(crate) fn large_bodies() -> Vec<Request> {
    vec![generate(&"a ".repeat(LARGE / 2), &json!({"max_new_tokens": 1}))]
}

/// Schemas of objects with many optional members, whose masks are expensive.
pub(crate) fn many_properties() -> Vec<Request> {
    [400, 499, 700, 1000]
        .map(|count| {
            let properties: serde_json::Map<String, Value> =
                (0..count).map(|number| (format!("p{number}"), json!({"type": "integer"}))).collect();
            with_grammar("json", json!({"type": "object", "properties": properties}), 40)
        })
        .into()
}

/// A request for all sequences that one of two API keys may have at a time, running and waiting, each of 900 tokens.
pub(crate) fn all_rows_of_a_key() -> Vec<Request> {
    vec![post(
        "/v1/completions",
        &json!({"model": "x", "prompt": "Once", "n": 96, "max_tokens": 900, "temperature": 1.0, "ignore_eos": true}),
    )]
}

/// A request for almost half of the sequences that a server accepts, each of 900 tokens.
pub(crate) fn half_of_the_rows() -> Vec<Request> {
    vec![post(
        "/v1/completions",
        &json!({"model": "x", "prompt": "Once", "n": 60, "max_tokens": 900, "temperature": 1.0, "ignore_eos": true}),
    )]
}
