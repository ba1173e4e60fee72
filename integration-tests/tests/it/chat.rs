//! Tests of `POST /chat_tokenize`: the demo model's template, templates that the user names, and hostile ones.

use integration_tests::Server;
use serde_json::{Value, json};

/// A template that takes all memory or time, or nests values without end, if the message asks for it.
const HOSTILE: &str = "{% set ns = namespace(x='a', y=[1], z=[1]) %}{% for i in range(60) %}\
    {% if messages[0].content == 'memory' %}{% set ns.x = ns.x ~ ns.x %}\
    {% elif messages[0].content == 'time' %}{% set ns.y = [ns.y, ns.y] %}{% set ns.z = [ns.z, ns.z] %}\
    {% elif messages[0].content == 'depth' %}{% for j in range(20000) %}{% set ns.y = [ns.y] %}{% endfor %}\
    {% endif %}{% endfor %}{% if ns.y == ns.z %}{{ messages[0].content }}{% endif %}";

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

#[test]
fn a_hostile_template_costs_its_own_conversation_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("template.jinja");
    std::fs::write(&path, HOSTILE).unwrap();
    let server = Server::mock().flag("--chat-template", path.display()).start();
    let client = server.client();
    for (question, limit) in [("memory", "MiB of memory"), ("time", "5 s of processor time"), ("depth", "nests values")]
    {
        let response = client.post("/chat_tokenize", &ask(question));
        let (message, error_type) = response.error();
        assert_eq!((response.status, error_type.as_str()), (400, "template_error"), "{message}");
        assert!(message.contains(limit), "{question}: {message}");
        assert_eq!(client.post("/chat_tokenize", &ask("é")).json()["templated_text"], "é");
    }
    assert!(!server.children("render-chats").is_empty());
    assert_eq!(server.stop().status.code(), Some(0));
}

#[test]
fn a_template_that_is_hostile_from_the_start_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("template.jinja");
    for (condition, limit) in
        [("'memory'", "MiB of memory"), ("'time'", "of processor time"), ("'depth'", "nests values")]
    {
        std::fs::write(&path, HOSTILE.replace("messages[0].content", condition)).unwrap();
        let finished = Server::mock().flag("--chat-template", path.display()).spawn().wait();
        assert_eq!(finished.status.code(), Some(2), "{finished:?}");
        let log = finished.log.join("\n");
        assert!(log.contains("fails in a trial at the start") && log.contains(limit), "{log}");
    }
}
