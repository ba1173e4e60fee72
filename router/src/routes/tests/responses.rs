//! Tests of OpenAI's newer API, `/v1/responses`: the shapes of responses, the order of events, and requests that need
//! stored conversations.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::anthropic::events;
use super::chat::serve_with;
use super::openai::saying;
use crate::testing::{FakeShard, TestServer, json as parse};

const SAID: &str = "<think>Hm.</think>Let me look.<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}</tool_call>";
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}</think>";

fn body(changes: &Value) -> Value {
    let mut body = json!({"model": "x", "input": "Hello", "temperature": 0});
    body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    body
}

fn weather() -> Value {
    json!({"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}, "strict": false})
}

/// Replaces the ids, which differ each time, with `null`.
fn without_ids(mut item: Value) -> Value {
    for key in ["id", "call_id"] {
        if let Some(id) = item.get_mut(key) {
            assert!(id.take().as_str().is_some_and(|id| id.len() > 8));
        }
    }
    item
}

#[tokio::test]
async fn an_answer_has_items_and_repeats_the_request() {
    let server = serve_with(TEMPLATE, saying("Hi there")).await;
    let answer =
        server.post_ok("/v1/responses", &body(&json!({"instructions": "Be kind.", "metadata": {"a": "b"}}))).await;
    assert!(answer["id"].as_str().unwrap().starts_with("resp_"), "{answer}");
    let part = json!({"type": "output_text", "text": "Hi there", "annotations": [], "logprobs": []});
    let message = json!({"type": "message", "id": null, "role": "assistant", "content": [part], "status": "completed"});
    assert_eq!(without_ids(answer["output"][0].clone()), message);
    for (key, value) in [
        ("object", json!("response")),
        ("status", json!("completed")),
        ("model", json!("demo")),
        ("instructions", json!("Be kind.")),
        ("metadata", json!({"a": "b"})),
        ("temperature", json!(0.0)),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("store", json!(false)),
        ("error", Value::Null),
        ("incomplete_details", Value::Null),
    ] {
        assert_eq!(answer[key], value, "{key}");
    }
    let usage = &answer["usage"];
    assert_eq!(usage["output_tokens"], 9);
    assert_eq!(usage["total_tokens"].as_u64(), Some(9 + usage["input_tokens"].as_u64().unwrap()));
    let tokens = server.post_ok("/tokenize", &json!({"inputs": "system:Be kind.;user:Hello;</think>"})).await;
    // `/tokenize` adds a beginning-of-sequence token.
    assert_eq!(usage["input_tokens"], tokens.as_array().unwrap().len() - 1);
    let short = server.post_ok("/v1/responses", &body(&json!({"max_output_tokens": 2}))).await;
    assert_eq!(
        (&short["status"], &short["incomplete_details"]),
        (&json!("incomplete"), &json!({"reason": "max_output_tokens"}))
    );
    assert_eq!(
        (&short["output"][0]["status"], &short["output"][0]["content"][0]["text"]),
        (&json!("incomplete"), &json!("Hi"))
    );
}

#[tokio::test]
async fn events_add_up_to_the_whole_answer() {
    let server = serve_with(TEMPLATE, saying(SAID)).await;
    let changes = json!({"tools": [weather()], "max_output_tokens": 200});
    let whole = server.post_ok("/v1/responses", &body(&changes)).await;
    let items: Vec<Value> = whole["output"].as_array().unwrap().iter().cloned().map(without_ids).collect();
    let call = json!({"type": "function_call", "id": null, "call_id": null, "name": "get_weather", "arguments": "{\"city\": \"Paris\"}", "status": "completed"});
    let thought = json!({"type": "reasoning", "id": null, "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}], "status": "completed"});
    assert_eq!((&items[0], &items[1]["content"][0]["text"], &items[2]), (&thought, &json!("Let me look."), &call));

    let mut streaming = body(&changes);
    streaming["stream"] = json!(true);
    let events = events(&server.post("/v1/responses", &streaming).await.text);
    assert!(
        events
            .iter()
            .enumerate()
            .all(|(number, (name, data))| data["type"] == *name && data["sequence_number"] == number)
    );
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    let part = |inner: [&'static str; 2]| {
        [
            "response.output_item.added",
            "response.content_part.added",
            inner[0],
            inner[1],
            "response.content_part.done",
            "response.output_item.done",
        ]
    };
    let expected = [
        &["response.created", "response.in_progress"][..],
        &part(["response.reasoning_text.delta", "response.reasoning_text.done"]),
        &part(["response.output_text.delta", "response.output_text.done"]),
        &[
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
        ],
        &["response.completed"],
    ];
    assert_eq!(names, expected.concat());
    let last = &events.last().unwrap().1["response"];
    let streamed: Vec<Value> = last["output"].as_array().unwrap().iter().cloned().map(without_ids).collect();
    assert_eq!((streamed, &last["usage"]["output_tokens"]), (items, &whole["usage"]["output_tokens"]));
    for (index, item) in last["output"].as_array().unwrap().iter().enumerate() {
        let of_item = events.iter().map(|(_, data)| data).filter(|data| data["output_index"] == index);
        let ids: Vec<&Value> = of_item.clone().map(|data| data.get("item_id").unwrap_or(&data["item"]["id"])).collect();
        assert!(ids.iter().all(|id| **id == item["id"]), "{ids:?}");
        let text: String = of_item.filter_map(|data| data["delta"].as_str()).collect();
        assert_eq!(text, ["Hm.", "Let me look.", "{\"city\": \"Paris\"}"][index]);
    }
}

#[tokio::test]
async fn tools_and_formats_can_be_enforced() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let choice = json!({"type": "function", "name": "get_weather"});
    let answer = server.post_ok("/v1/responses", &body(&json!({"tools": [weather()], "tool_choice": choice}))).await;
    assert_eq!(
        (&answer["output"][0]["name"], &answer["output"][0]["arguments"]),
        (&json!("get_weather"), &json!("{}"))
    );
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": false});
    let text = json!({"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": true}});
    let answer = server.post_ok("/v1/responses", &body(&json!({"text": text}))).await;
    let text = answer["output"][0]["content"][0]["text"].as_str().unwrap();
    assert!(parse(text)["n"].as_u64().unwrap() < 10, "{text}");
}

#[tokio::test]
async fn stateful_requests_are_refused_and_failures_are_events() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    for (changes, expected) in [
        (json!({"previous_response_id": "resp_1"}), "`previous_response_id` is not supported"),
        (json!({"conversation": "conv_1"}), "`conversation` is not supported"),
        (json!({"background": true}), "`background` is not supported"),
        (json!({"truncation": "auto"}), "`truncation` is not supported"),
        (json!({"tools": [{"type": "web_search"}]}), "\"web_search\" is not supported"),
        (json!({"input": []}), "there must be at least one"),
        (json!({"max_output_tokens": 0}), "`max_output_tokens` must be strictly positive"),
    ] {
        let answer = server.post("/v1/responses", &body(&changes)).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{changes}: {}", answer.text);
        let error = &parse(&answer.text)["error"];
        assert!(error["message"].as_str().unwrap().contains(expected), "{changes}: {error}");
    }
    let failing = TestServer::start(FakeShard { dies_at_step: Some(3), ..FakeShard::default() }, &[]).await;
    let answer = failing.post("/v1/responses", &body(&json!({"stream": true, "max_output_tokens": 50}))).await;
    let events = events(&answer.text);
    let (name, last) = events.last().unwrap();
    assert_eq!((name.as_str(), &last["response"]["status"]), ("response.failed", &json!("failed")));
    assert!(
        last["response"]["error"]["message"].as_str().unwrap().contains("Request failed during generation"),
        "{last}"
    );
}
