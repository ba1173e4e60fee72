//! Tests of Anthropic's routes: the shapes of responses, events, stop sequences, errors.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::chat::serve_with;
use super::openai::saying;
use crate::testing::{FakeShard, TestServer, json as parse};

fn body(changes: &Value) -> Value {
    let mut body =
        json!({"model": "x", "max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}], "temperature": 0});
    body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    body
}

/// Returns the names and the data of a stream's events.
pub(super) fn events(text: &str) -> Vec<(String, Value)> {
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data = parse(data.strip_prefix("data: ").unwrap());
        (name.strip_prefix("event: ").unwrap().to_owned(), data)
    };
    text.split_terminator("\n\n").map(event).collect()
}

#[tokio::test]
async fn a_message_is_answered() {
    let server = TestServer::start(saying("Hi there"), &[]).await;
    let system = json!([{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]);
    let answer = server.post_ok("/v1/messages", &body(&json!({"system": system}))).await;
    assert!(answer["id"].as_str().unwrap().starts_with("msg_"), "{answer}");
    for (key, value) in [
        ("type", json!("message")),
        ("role", json!("assistant")),
        ("model", json!("demo")),
        ("content", json!([{"type": "text", "text": "Hi there"}])),
        ("stop_reason", json!("end_turn")),
        ("stop_sequence", Value::Null),
    ] {
        assert_eq!(answer[key], value, "{key}");
    }
    assert_eq!(answer["usage"]["output_tokens"], 9);
    let count = server.post_ok("/v1/messages/count_tokens", &body(&json!({"system": system}))).await;
    assert_eq!(count, json!({"input_tokens": answer["usage"]["input_tokens"]}));
}

#[tokio::test]
async fn events_have_names_and_an_order() {
    let server = TestServer::start(saying("Hi, you"), &[]).await;
    let answer = server.post("/v1/messages", &body(&json!({"stream": true, "stop_sequences": ["zzz", ", y"]}))).await;
    assert_eq!(answer.status, StatusCode::OK);
    let events = events(&answer.text);
    assert!(events.iter().all(|(name, data)| data["type"] == *name), "{events:?}");
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let text = events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect::<String>();
    assert_eq!(text, "Hi");
    let (_, last) = &events[events.len() - 2];
    assert_eq!(last["delta"], json!({"stop_reason": "stop_sequence", "stop_sequence": ", y"}));
    let whole = server.post_ok("/v1/messages", &body(&json!({"stop_sequences": ["zzz", ", y"]}))).await;
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("stop_sequence"), &json!(", y")));
}

#[tokio::test]
async fn thoughts_text_and_calls_are_blocks() {
    let said = "<think>Hm.</think>Let me look.<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}</tool_call>";
    let template = "{{ messages[-1].content }}</think>{{ thinking }}";
    let server = serve_with(template, saying(said)).await;
    let tool = json!({"name": "get_weather", "description": "x", "input_schema": {"type": "object", "properties": {}}});
    let changes = json!({"tools": [tool], "max_tokens": 200, "thinking": {"type": "enabled", "budget_tokens": 1024}});
    let mut answer = server.post_ok("/v1/messages", &body(&changes)).await;
    let id = answer["content"][2]["id"].take();
    assert!(id.as_str().is_some_and(|id| !id.is_empty()), "{answer}");
    let call = json!({"type": "tool_use", "id": null, "name": "get_weather", "input": {"city": "Paris"}});
    let thought = json!({"type": "thinking", "thinking": "Hm.", "signature": ""});
    assert_eq!(answer["content"], json!([thought, {"type": "text", "text": "Let me look."}, call]));
    assert_eq!(answer["stop_reason"], "tool_use");

    let mut streaming = body(&changes);
    streaming["stream"] = json!(true);
    let events = events(&server.post("/v1/messages", &streaming).await.text);
    let starts: Vec<&Value> =
        events.iter().filter(|(name, _)| name == "content_block_start").map(|(_, data)| data).collect();
    let kinds: Vec<&Value> = starts.iter().map(|data| &data["content_block"]["type"]).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use"]);
    assert_eq!(starts[2]["content_block"]["input"], json!({}));
    for (index, (field, expected)) in
        [("thinking", "Hm."), ("text", "Let me look."), ("partial_json", "{\"city\": \"Paris\"}")]
            .into_iter()
            .enumerate()
    {
        assert_eq!(starts[index]["index"], index);
        let of_block = events.iter().filter(|(_, data)| data["index"] == index);
        assert_eq!(of_block.clone().next_back().unwrap().0, "content_block_stop");
        assert_eq!(of_block.filter_map(|(_, data)| data["delta"][field].as_str()).collect::<String>(), expected);
    }
    let (_, last) = &events[events.len() - 2];
    assert_eq!(last["delta"]["stop_reason"], "tool_use");
}

#[tokio::test]
async fn results_of_tools_are_read() {
    let template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
    let server = serve_with(template, saying("It is 21.")).await;
    let call = json!({"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}});
    let result = json!({"type": "tool_result", "tool_use_id": "a", "content": "21"});
    let messages = json!([{"role": "user", "content": "Warm?"}, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]);
    let answer = server.post_ok("/v1/messages", &body(&json!({"messages": messages}))).await;
    assert_eq!(answer["content"], json!([{"type": "text", "text": "It is 21."}]));
    let text = "user:Warm?;assistant:<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":1}}\n</tool_call>;user:<tool_response>\n21\n</tool_response>;";
    let tokens = server.post_ok("/tokenize", &json!({"inputs": text})).await.as_array().unwrap().len();
    // `/tokenize` adds a beginning-of-sequence token.
    assert_eq!(answer["usage"]["input_tokens"], tokens - 1);
}

#[tokio::test]
async fn errors_are_as_anthropics_clients_read_them() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let image = json!([{"role": "user", "content": [{"type": "image", "source": {}}]}]);
    for (body, message) in [
        (json!({"messages": []}), "messages: there must be at least one"),
        (json!({"messages": [{"role": "user", "content": "x"}]}), "missing field `max_tokens`"),
        (body(&json!({"tools": [{"input_schema": {}}]})), "tools[0].function.name: must be a string"),
        (
            body(&json!({"tools": [{"name": "f"}], "tool_choice": {"type": "tool", "name": "g"}})),
            "\"g\" is not the name of one of the tools",
        ),
        (body(&json!({"messages": image, "system": "s"})), "messages[0].content[0].type: \"image\" is not supported"),
        (body(&json!({"system": 7})), "system: must be a string or a list"),
    ] {
        let answer = server.post("/v1/messages", &body).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{body}: {}", answer.text);
        let error = parse(&answer.text);
        assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
        assert!(error["error"]["message"].as_str().unwrap().contains(message), "{body}: {error}");
    }
    let failing = TestServer::start(FakeShard { dies_at_step: Some(3), ..FakeShard::default() }, &[]).await;
    let answer = failing.post("/v1/messages", &body(&json!({"stream": true}))).await;
    let events = events(&answer.text);
    let (name, last) = events.last().unwrap();
    assert_eq!((name.as_str(), &last["error"]["type"]), ("error", &json!("api_error")));
}

#[tokio::test]
async fn an_answer_has_the_form_that_is_asked_for() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]});
    let format = json!({"type": "json_schema", "schema": schema});
    for changes in
        [json!({"output_config": {"format": format}}), json!({"output_format": format, "output_config": null})]
    {
        let answer = server.post_ok("/v1/messages", &body(&changes)).await;
        let text = answer["content"][0]["text"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!([json!({"a": 1}), json!({"a": 2})].contains(&value), "{value}");
        assert_eq!(answer["stop_reason"], "end_turn");
    }
    for (changes, expected) in [
        (json!({"output_config": {"format": format}, "output_format": format}), "cannot be given together"),
        (json!({"output_config": {"format": {"type": "yaml"}}}), "output_config.format: `type` \"yaml\""),
        (json!({"output_config": {"format": {"type": "json_schema"}}}), "must be a JSON schema"),
        (json!({"output_config": "low"}), "output_config: must be an object"),
        (json!({"output_config": {"effort": 3}}), "output_config.effort: must be a string"),
        (json!({"output_config": {"task_budget": {"total": 9}}}), "`output_config.task_budget` is not supported"),
    ] {
        let answer = server.post("/v1/messages", &body(&changes)).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{changes}: {}", answer.text);
        let error = parse(&answer.text);
        assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
        assert!(error["error"]["message"].as_str().unwrap().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn fields_that_would_change_an_answer_are_refused_by_name() {
    let server = TestServer::start(saying("Hi"), &[]).await;
    for field in ["mcp_servers", "container", "context_management", "compaction", "fallbacks", "thread"] {
        for (value, status) in [
            (json!([{"type": "url"}]), StatusCode::UNPROCESSABLE_ENTITY),
            (json!({"edits": [{"type": "clear"}]}), StatusCode::UNPROCESSABLE_ENTITY),
            (json!("x"), StatusCode::UNPROCESSABLE_ENTITY),
            (json!([]), StatusCode::OK),
            (json!({"edits": []}), StatusCode::OK),
            (Value::Null, StatusCode::OK),
        ] {
            for route in ["/v1/messages", "/v1/messages/count_tokens"] {
                let answer = server.post(route, &body(&json!({field: value}))).await;
                assert_eq!(answer.status, status, "{field} {value}: {}", answer.text);
                assert!(status == StatusCode::OK || answer.text.contains(&format!("`{field}` is not supported")));
            }
        }
    }
}
