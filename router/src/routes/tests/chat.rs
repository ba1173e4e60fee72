//! Tests of conversations: the text and the tokens that the model would read, and conversations that templates refuse.

use axum::http::StatusCode;
use serde_json::json;

use crate::testing::{FakeShard, TestServer, json as parsed};

/// Starts a server with the chat template `template`.
pub(super) async fn serve(template: &str) -> TestServer {
    serve_with(template, FakeShard::default()).await
}

pub(super) async fn serve_with(template: &str, shard: FakeShard) -> TestServer {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("template.jinja");
    std::fs::write(&path, template).unwrap();
    TestServer::start(shard, &[&format!("--chat-template={}", path.display())]).await
}

#[tokio::test]
async fn a_conversation_is_rendered_and_tokenized_with_one_token_for_the_beginning() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "naïve?"}]);
    let answer = server.post_ok("/chat_tokenize", &json!({"model": "tgi", "messages": messages})).await;
    let text = "<|bos|><|system|>Be brief.<|user|>naïve?<|assistant|>";
    assert_eq!(answer["templated_text"], text);
    let tokens = answer["tokenize_response"].as_array().unwrap();
    assert_eq!(tokens[0], json!({"id": 0, "text": "<|bos|>", "start": 0, "stop": 7}));
    assert_ne!(tokens[1]["id"], 0);
    assert_eq!(tokens.last().unwrap()["stop"], text.len());
}

#[tokio::test]
async fn the_assistants_last_message_is_continued_unless_told_otherwise() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]);
    for (options, expected) in [
        (json!({}), "<|bos|><|user|>hi<|assistant|>ho"),
        (json!({"add_generation_prompt": true}), "<|bos|><|user|>hi<|assistant|>ho<|eos|><|assistant|>"),
        (json!({"add_generation_prompt": false}), "<|bos|><|user|>hi<|assistant|>ho<|eos|>"),
    ] {
        let mut body = options;
        body["messages"] = messages.clone();
        let answer = server.post_ok("/chat_tokenize", &body).await;
        assert_eq!(answer["templated_text"], expected, "{body}");
    }
}

#[tokio::test]
async fn the_template_sees_tools_in_the_order_of_their_keys_and_further_variables() {
    let server = serve("[TOOL_CALLS]{{ tools | tojson }}{{ documents }}{{ mood }}").await;
    let tool =
        json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": {"b": 1.0, "a": 2}}});
    let body = json!({
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [tool],
        "chat_template_kwargs": {"mood": "good"},
    });
    let answer = server.post_ok("/chat_tokenize", &body).await;
    let expected = r#"[TOOL_CALLS][{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"b": 1.0, "a": 2}}}]Nonegood"#;
    assert_eq!(answer["templated_text"], expected);
}

#[tokio::test]
async fn errors_of_a_template_are_a_400_in_its_own_words() {
    let user = json!({"messages": [{"role": "user", "content": "hi"}]});
    for (template, expected) in [
        (
            "{{ raise_exception('Only the assistant may speak: ' + messages[0].role) }}",
            "Only the assistant may speak: user",
        ),
        ("{% if messages %}\n{{ nothing.at_all }}{% endif %}", "undefined value (in chat template:2)"),
        ("{% for %}", "the chat template cannot be read: syntax error"),
    ] {
        let server = serve(template).await;
        let answer = server.post("/chat_tokenize", &user).await;
        let error = parsed(&answer.text);
        assert_eq!(
            (answer.status, &error["error_type"]),
            (StatusCode::BAD_REQUEST, &json!("template_error")),
            "{error}"
        );
        assert!(error["error"].as_str().unwrap().starts_with(&format!("Template error: {expected}")), "{error}");
        server.post_ok("/generate", &json!({"inputs": "a", "parameters": {"max_new_tokens": 1}})).await;
    }
}

#[tokio::test]
async fn messages_that_are_none_are_refused() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    for body in [
        json!({}),
        json!({"messages": []}),
        json!({"messages": ["hi"]}),
        json!({"messages": [{"role": "user", "content": 7}]}),
    ] {
        let answer = server.post("/chat_tokenize", &body).await;
        let error_type = &parsed(&answer.text)["error_type"];
        assert_eq!(
            (answer.status, error_type),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!("validation")),
            "{}",
            answer.text
        );
    }
}
