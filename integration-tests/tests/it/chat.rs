//! Tests of `POST /chat_tokenize`: the demo model's template, and templates that the user names.

use integration_tests::Server;
use serde_json::{Value, json};

fn ask(question: &str) -> Value {
    json!({"messages": [{"role": "user", "content": question}]})
}

#[test]
fn the_demo_model_answers_a_rendered_conversation() {
    let server = Server::demo().start();
    let response = server.client().post("/chat_tokenize", &ask("What is 3 + 4?"));
    assert_eq!(response.status, 200, "{}", response.text);
    let text = response.json()["templated_text"].as_str().unwrap().to_owned();
    // `/generate` adds the BOS token to every prompt itself.
    let prompt = text.strip_prefix("<|bos|>").unwrap();
    assert_eq!(server.client().generate(prompt, 30), "3 + 4 is 7.");
}

#[test]
fn a_template_that_the_user_names_is_used_and_a_broken_one_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("template.jinja");
    std::fs::write(&path, "{{ eos_token }}{{ messages[0].content | upper }}").unwrap();
    let server = Server::mock().flag("--chat-template", path.display()).start();
    let response = server.client().post("/chat_tokenize", &ask("hi"));
    assert_eq!(response.json()["templated_text"], "<|eos|>HI");

    std::fs::write(&path, "{% if %}").unwrap();
    let server = Server::mock().flag("--chat-template", path.display()).start();
    let response = server.client().post("/chat_tokenize", &ask("hi"));
    assert_eq!((response.status, response.error().1.as_str()), (400, "template_error"));
    let finished = server.stop();
    assert!(finished.log.join("\n").contains("chat template cannot be read: syntax error"), "{:?}", finished.log);

    let finished = Server::mock().flag("--chat-template", "/nowhere/template.jinja").spawn().wait();
    assert_eq!(finished.status.code(), Some(2), "{finished:?}");
    assert!(finished.log.join("\n").contains("`chat_template` /nowhere/template.jinja"), "{:?}", finished.log);
}
