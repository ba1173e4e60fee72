//! Tests of tools and thoughts: the text that the model reads, and the calls that clients receive.

use model_files::ModelFiles;
use serde_json::{Value, json};

use super::chat::serve_with;
use super::openai::{chat, chunks, saying, saying_tokens};
use crate::testing::{FakeShard, TestServer, harmony_files, json as parse};
use crate::text::Tokenizer;

const CALL: &str = "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}</tool_call>";

fn weather() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    json!({"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": parameters}})
}

fn with_tools(changes: &Value) -> Value {
    let mut body = chat(&json!({"tools": [weather()]}));
    body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_call_is_a_message_without_text() {
    let server = TestServer::start(saying(CALL), &[]).await;
    let answer = server.post_ok("/v1/chat/completions", &with_tools(&json!({}))).await;
    let mut choice = answer["choices"][0].clone();
    let id = choice["message"]["tool_calls"][0]["id"].take();
    assert!(id.as_str().unwrap().starts_with("call_"), "{id}");
    let function = json!({"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"});
    let calls = json!([{"id": null, "type": "function", "function": function}]);
    assert_eq!(
        choice,
        json!({"index": 0, "logprobs": null, "finish_reason": "tool_calls",
            "message": {"role": "assistant", "content": null, "tool_calls": calls}})
    );
}

#[tokio::test]
async fn calls_stream_their_name_and_then_their_arguments() {
    let server = TestServer::start(saying(&format!("Ok. {CALL}\n{CALL}")), &[]).await;
    let chunks = chunks(&server.post("/v1/chat/completions", &with_tools(&json!({"stream": true}))).await);
    let choices: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]).collect();
    assert_eq!(choices[0]["delta"], json!({"role": "assistant", "content": ""}));
    let text: String = choices.iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
    assert_eq!(text, "Ok.");
    let pieces: Vec<&Value> = choices.iter().filter_map(|choice| choice["delta"]["tool_calls"].get(0)).collect();
    let mut ids = Vec::new();
    for index in 0..2 {
        let of_call: Vec<&&Value> = pieces.iter().filter(|piece| piece["index"] == index).collect();
        let (first, others) = of_call.split_first().unwrap();
        assert_eq!(
            (&first["type"], &first["function"]),
            (&json!("function"), &json!({"name": "get_weather", "arguments": ""}))
        );
        ids.push(first["id"].as_str().unwrap());
        assert!(others.len() > 5, "{others:?}");
        let keys = |piece: &Value| piece.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        for piece in others {
            assert_eq!(
                (keys(piece), keys(&piece["function"])),
                (vec!["index".into(), "function".into()], vec!["arguments".into()])
            );
        }
        let arguments: String = others.iter().map(|piece| piece["function"]["arguments"].as_str().unwrap()).collect();
        assert_eq!(arguments, "{\"city\": \"Paris\"}");
    }
    assert!(ids[0] != ids[1] && ids.iter().all(|id| !id.is_empty()), "{ids:?}");
    let last = choices.last().unwrap();
    assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("tool_calls")));
}

#[tokio::test]
async fn calls_may_be_parallel_or_not() {
    let server = TestServer::start(saying(&format!("{CALL}{CALL}")), &[]).await;
    let num_tokens =
        server.post_ok("/v1/chat/completions", &with_tools(&json!({}))).await["usage"]["completion_tokens"].as_u64();
    for (parallel, num_calls) in [(Value::Null, 2), (json!(true), 2), (json!(false), 1)] {
        let body = with_tools(&json!({"parallel_tool_calls": parallel}));
        let answer = server.post_ok("/v1/chat/completions", &body).await;
        let choice = &answer["choices"][0];
        assert_eq!(choice["message"]["tool_calls"].as_array().unwrap().len(), num_calls, "{choice}");
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(
            answer["usage"]["completion_tokens"].as_u64() == num_tokens,
            num_calls == 2,
            "generation ends after the only call"
        );
    }
}

#[tokio::test]
async fn text_that_is_no_call_stays_text() {
    let unknown = CALL.replace("get_weather", "other");
    let server = TestServer::start(saying(&unknown), &[]).await;
    for changes in [json!({}), json!({"stream": true})] {
        let body = with_tools(&changes);
        if changes == json!({}) {
            let choice = server.post_ok("/v1/chat/completions", &body).await["choices"][0].clone();
            assert_eq!(
                (&choice["message"], &choice["finish_reason"]),
                (&json!({"role": "assistant", "content": unknown}), &json!("stop"))
            );
        } else {
            let chunks = chunks(&server.post("/v1/chat/completions", &body).await);
            let text: String =
                chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
            assert_eq!(text, unknown);
        }
    }
    let server = TestServer::start(saying(CALL), &[]).await;
    for changes in [json!({"tools": null}), json!({"tool_choice": "none"})] {
        let answer = server.post_ok("/v1/chat/completions", &with_tools(&changes)).await;
        assert_eq!(answer["choices"][0]["message"]["content"], CALL, "{changes}");
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_off_says_so() {
    let server = TestServer::start(saying(CALL), &[]).await;
    let answer = server.post_ok("/v1/chat/completions", &with_tools(&json!({"max_tokens": CALL.len() - 20}))).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\": \"");
}

#[tokio::test]
async fn a_template_without_tools_describes_them_and_shows_calls_and_results_as_text() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}});
    let messages = json!([{"role": "user", "content": "Warm?"},
        {"role": "assistant", "content": null, "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "tool_call_id": "a", "content": "21"}, {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "22"}]}]);
    let text =
        server.post_ok("/chat_tokenize", &json!({"messages": messages, "tools": [weather()]})).await["templated_text"]
            .clone();
    let (system, conversation) = text.as_str().unwrap().split_once("<|assistant|>").unwrap();
    assert!(system.starts_with("<|bos|><|user|>Warm?\nYou may call"), "{system}");
    assert!(system.contains(&weather()["function"].to_string()), "{system}");
    let call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
    assert_eq!(
        conversation,
        format!(
            "{call}\n{call}<|eos|><|user|><tool_response>\n21\n</tool_response>\n<tool_response>\n22\n</tool_response><|assistant|>"
        )
    );
}

#[tokio::test]
async fn a_template_with_tools_reads_them_and_names_results() {
    let template = "{% for t in tools or [] %}{{ t | tojson }}<tool_call>{\"arguments\": }{% endfor %}{% for m in messages %}\
        {{ m.role }}:{{ m.name }}:{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}";
    let server = serve_with(template, saying(CALL)).await;
    let call = json!({"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}});
    let messages =
        json!([{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": "21"}]);
    let text =
        server.post_ok("/chat_tokenize", &json!({"messages": messages, "tools": [weather()]})).await["templated_text"]
            .clone();
    let expected = "<tool_call>{\"arguments\": }assistant::{\"city\": \"Paris\"};tool:get_weather:21;";
    assert!(text.as_str().unwrap().ends_with(expected), "{text}");
    let answer = server.post_ok("/v1/chat/completions", &with_tools(&json!({"messages": messages}))).await;
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "get_weather");
}

#[tokio::test]
async fn thoughts_are_not_the_answer() {
    let template = "{{ messages[0].content }}</think>{% if opened %}<think>\n{% endif %}";
    let thought = "Hm, so\n\nyes.";
    for (said, opened) in
        [(format!("<think>\n{thought}\n</think>\n\nHi <b>"), false), (format!("{thought}</think>Hi <b>"), true)]
    {
        let server = serve_with(template, saying(&said)).await;
        let body = chat(&json!({"chat_template_kwargs": {"opened": opened}}));
        let answer = server.post_ok("/v1/chat/completions", &body).await;
        let message = json!({"role": "assistant", "content": "Hi <b>", "reasoning_content": thought});
        assert_eq!(answer["choices"][0]["message"], message);
        // The tokens of the thought are counted from the last character of the opening mark. Two line breaks follow the
        // closing mark.
        let num_thought = said.find("Hi").unwrap() - if opened { 0 } else { "<think".len() + 2 };
        assert_eq!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], num_thought, "{said}");
        let mut body = body;
        body["stream"] = json!(true);
        let chunks = chunks(&server.post("/v1/chat/completions", &body).await);
        let all = |field: &str| {
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str()).collect::<String>()
        };
        assert_eq!((all("reasoning_content").as_str(), all("content").as_str()), (thought, "Hi <b>"));
    }
}

/// Checks that a model must call a tool, with a fake shard that chooses any of the allowed tokens. `said_before` only
/// identifies the case in messages.
async fn check_enforced(template: Option<&str>, said_before: &str) {
    let shard = FakeShard { max_total_tokens: 4000, ..FakeShard::default() };
    let server = match template {
        Some(template) => serve_with(template, shard).await,
        None => TestServer::start(shard, &[]).await,
    };
    let time = json!({"type": "function", "function": {"name": "get_time"}});
    let parameters = json!({"type": "object", "required": ["n", "unit"], "properties": {
        "n": {"$ref": "#/$defs/n"}, "unit": {"enum": ["c", "f"]}}, "$defs": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}});
    let weather = json!({"type": "function", "function": {"name": "get_weather", "parameters": parameters}});
    for (choice, parallel, names) in [
        (json!("required"), true, vec!["get_time", "get_weather"]),
        (json!("required"), false, vec!["get_time", "get_weather"]),
        (json!({"type": "function", "function": {"name": "get_weather"}}), true, vec!["get_weather"]),
    ] {
        for seed in 0..4 {
            let body = json!({"messages": [{"role": "user", "content": "x"}], "tools": [time, weather], "tool_choice": choice,
                "parallel_tool_calls": parallel, "seed": seed});
            let choice = server.post_ok("/v1/chat/completions", &body).await["choices"][0].clone();
            let message = &choice["message"];
            assert!(message["content"].is_null(), "{said_before}: {choice}");
            assert_eq!(choice["finish_reason"], "tool_calls");
            let calls = message["tool_calls"].as_array().unwrap();
            assert!(!calls.is_empty() && (calls.len() == 1 || (parallel && names.len() == 2)), "{choice}");
            for call in calls {
                let (name, arguments) =
                    (call["function"]["name"].as_str().unwrap(), call["function"]["arguments"].as_str().unwrap());
                let arguments = parse(arguments);
                assert!(names.contains(&name), "{choice}");
                match name {
                    "get_time" => assert_eq!(arguments, json!({})),
                    _ => assert!(
                        arguments["n"].as_u64().unwrap() < 100
                            && ["c", "f"].contains(&arguments["unit"].as_str().unwrap())
                    ),
                }
            }
        }
    }
}

#[tokio::test]
async fn calls_can_be_enforced_in_the_models_format() {
    check_enforced(None, "").await;
    for marks in [
        "<tool_call>{\"arguments\": }",
        "[TOOL_CALLS]",
        "[TOOL_CALLS][ARGS]",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        "<|tool_call|>",
        "<|START_ACTION|>",
        "\"parameters\": dictionary of argument name and its value",
        // Formats whose syntax cannot be enforced: the generic format is enforced instead.
        "<start_function_call>",
        "```tool_code",
        "<function=<parameter=",
    ] {
        // Some of these marks are special tokens in some models; the demo model has none of them.
        let template =
            format!("{{% for t in tools or [] %}}{{{{ t }}}}{{% endfor %}}{}", marks.replace('{', "{{ '{' }}"));
        check_enforced(Some(&template), marks).await;
    }
}

#[tokio::test]
async fn a_thought_may_come_before_enforced_calls() {
    let call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\":\"Paris\"}}\n</tool_call>";
    let template = "{% for t in tools or [] %}{{ t }}{% endfor %}<tool_call>{{ '{' }}\"arguments\": }</think>{% if opened %}<think>{% endif %}";
    for (said, opened, thought) in [
        (format!("<think>Hm.</think>\n{call}"), false, Some("Hm.")),
        (call.to_owned(), false, None),
        (format!("Hm.</think>{call}"), true, Some("Hm.")),
        // The grammar forbids this text outside of a thought, so it becomes a thought.
        (format!("Ah.</think>{call}"), false, Some("Ah.")),
    ] {
        let server = serve_with(template, saying(&said)).await;
        let body = with_tools(&json!({"tool_choice": "required", "chat_template_kwargs": {"opened": opened}}));
        let message = server.post_ok("/v1/chat/completions", &body).await["choices"][0]["message"].clone();
        assert_eq!(message["reasoning_content"].as_str(), thought, "{said}: {message}");
        assert!(message["content"].is_null(), "{said}: {message}");
        let arguments = "{\"city\":\"Paris\"}";
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], arguments, "{said}: {message}");
    }
}

#[tokio::test]
async fn an_answer_in_a_form_may_be_a_call_instead() {
    let template = "{% for t in tools or [] %}{{ t }}{% endfor %}<tool_call>{{ '{' }}\"arguments\": }";
    let call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\":\"Paris\"}}\n</tool_call>";
    let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "maximum": 9}}, "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    for (said, choice, content) in [
        ("{\"n\":3}", json!("auto"), Some("{\"n\":3}")),
        ("{\"n\":3}", json!("none"), Some("{\"n\":3}")),
        (call, json!("auto"), None),
        (call, json!("required"), None),
    ] {
        let server = serve_with(template, saying(said)).await;
        let body = with_tools(&json!({"tool_choice": choice, "response_format": format}));
        let message = server.post_ok("/v1/chat/completions", &body).await["choices"][0]["message"].clone();
        assert_eq!(message["content"].as_str(), content, "{said}: {message}");
        assert_eq!(message["tool_calls"].is_array(), content.is_none(), "{said}: {message}");
    }
    // Whichever tokens the model prefers, the answer either has the format or is a call.
    let server = serve_with(template, FakeShard { max_total_tokens: 4000, ..FakeShard::default() }).await;
    for seed in 0..20 {
        let body = with_tools(&json!({"response_format": format, "seed": seed, "max_tokens": 3000}));
        let message = server.post_ok("/v1/chat/completions", &body).await["choices"][0]["message"].clone();
        match message["content"].as_str() {
            Some(content) => assert!(parse(content)["n"].as_i64().unwrap() <= 9, "{content}"),
            None => assert_eq!(message["tool_calls"][0]["function"]["name"], "get_weather"),
        }
    }
}

#[tokio::test]
async fn a_thought_comes_before_an_answer_in_a_form() {
    let template = "x{% if opened %}<think>{% endif %}{# </think> #}";
    let formats = [
        json!({"response_format": {"type": "json_object"}}),
        json!({"guided_regex": "\\{\"a\": [0-9]\\}"}),
        json!({"guided_choice": ["{\"a\": 1}", "no"]}),
        json!({"guided_grammar": "start: \"{\" X \"}\"\nX: \"\\\"a\\\": \" /[0-9]/"}),
    ];
    for format in &formats {
        for (said, opened, thought) in [
            ("<think>Hm.</think>{\"a\": 1}", false, Some("Hm.")),
            ("Hm.</think>{\"a\": 1}", true, Some("Hm.")),
            ("{\"a\": 1}", false, None),
        ] {
            let server = serve_with(template, saying(said)).await;
            let mut body =
                json!({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"opened": opened}});
            body.as_object_mut().unwrap().extend(format.as_object().unwrap().clone());
            let message = server.post_ok("/v1/chat/completions", &body).await["choices"][0]["message"].clone();
            assert_eq!(message["reasoning_content"].as_str(), thought, "{said}, {format}: {message}");
            assert_eq!(message["content"], "{\"a\": 1}", "{said}, {format}: {message}");
        }
    }
}

/// A template of gpt-oss's format, with text that shows the format.
const HARMONY: &str =
    "{% for t in tools or [] %}{{ t }}{% endfor %}<|channel|><|message|>{{ messages[0].thinking }}<|start|>assistant";

#[tokio::test]
async fn gpt_oss_writes_messages() {
    let thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    let call = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"Paris\"}";
    let answer = "<|channel|>final<|message|>{\"n\": 3}";
    let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}, "additionalProperties": false});
    let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}});
    let required = json!({"tool_choice": "required"});
    for (said, changes) in
        [(call, json!({})), (answer, json!({})), (call, required), (answer, format.clone()), (call, format.clone())]
    {
        for (said, thought) in [(format!("{thought}{said}"), Some("Hm.")), (said.to_owned(), None)] {
            let server = serve_with(HARMONY, saying(&said)).await;
            let choice = server.post_ok("/v1/chat/completions", &with_tools(&changes)).await["choices"][0].clone();
            let message = &choice["message"];
            assert_eq!(message["reasoning_content"].as_str(), thought, "{said}, {changes}: {message}");
            let content = said.contains("final").then_some("{\"n\": 3}");
            assert_eq!(message["content"].as_str(), content, "{said}, {changes}: {message}");
            let arguments = message["tool_calls"][0]["function"]["arguments"].as_str();
            let (expected, reason) =
                if content.is_none() { (Some("{\"city\":\"Paris\"}"), "tool_calls") } else { (None, "stop") };
            assert_eq!((arguments, choice["finish_reason"].as_str()), (expected, Some(reason)), "{said}, {changes}");
        }
    }
    // Without tools, an answer that has a form begins with a header too.
    let server = serve_with(HARMONY, saying(answer)).await;
    let message = server.post_ok("/v1/chat/completions", &chat(&format)).await["choices"][0]["message"].clone();
    assert_eq!(message, json!({"role": "assistant", "content": "{\"n\": 3}"}));
}

#[tokio::test]
async fn special_tokens_are_marks_and_their_names_are_text() {
    let folder = harmony_files();
    let template = folder.path().join("template.jinja");
    std::fs::write(&template, HARMONY).unwrap();
    let files = ModelFiles::Directory(folder.path().to_owned());
    let tokenizer = Tokenizer::load(&files).unwrap();
    let spelled = "It begins with <|start|> & ends with <|end|><|start|>, not <|endless|>.";
    let tokens = |text: &str| tokenizer.tokenize_bare(text).unwrap();
    let letters: Vec<u32> = spelled.chars().flat_map(|character| tokens(&character.to_string())).collect();
    let parts = [
        tokens("<|channel|>analysis<|message|>"),
        letters.clone(),
        tokens("<|end|><|start|>assistant<|channel|>final<|message|>"),
        letters,
        vec![1],
    ];
    let flag = format!("--chat-template={}", template.display());
    let server = TestServer::start_with(saying_tokens(parts.concat()), &files, &[&flag]).await;
    // The stop strings make the server hold back the beginnings of marks.
    for stop in [json!(null), json!(["<|endless|>!", "<|message|>x", "|>}"])] {
        let mut body = chat(&json!({"stop": stop, "max_tokens": 300}));
        let choice = server.post_ok("/v1/chat/completions", &body).await["choices"][0].clone();
        let message = json!({"role": "assistant", "content": spelled, "reasoning_content": spelled});
        assert_eq!((&choice["message"], &choice["finish_reason"]), (&message, &json!("stop")));
        body["stream"] = json!(true);
        let chunks = chunks(&server.post("/v1/chat/completions", &body).await);
        let all = |field: &str| {
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str()).collect::<String>()
        };
        assert_eq!((all("reasoning_content").as_str(), all("content").as_str()), (spelled, spelled));
    }
}

#[tokio::test]
async fn the_effort_and_thoughts_reach_the_template() {
    // The template's errors show its inputs. It renders the test messages by which its shapes are found.
    let template = "{% if reasoning_effort or messages[-1].thinking %}\
        {{ raise_exception('it is ' ~ reasoning_effort ~ '/' ~ messages[-1].thinking ~ '/' ~ messages[-1].reasoning_content) }}{% endif %}";
    let server = serve_with(template, FakeShard::default()).await;
    let user = json!([{"role": "user", "content": "x"}]);
    let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let thinks = |field: &str| {
        let answer = json!({"role": "assistant", field: "Hm", "content": null, "tool_calls": [call]});
        json!({"messages": [answer], "add_generation_prompt": true, "reasoning_effort": "low"})
    };
    let item = json!({"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"});
    let thought = json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]});
    let thinking = json!({"type": "thinking", "thinking": "Hm", "signature": ""});
    let tool_use = json!({"type": "tool_use", "id": "a", "name": "f", "input": {}});
    for (path, body, expected) in [
        ("chat/completions", json!({"messages": user, "reasoning_effort": "high"}), "it is high//"),
        (
            "chat/completions",
            json!({"messages": user, "chat_template_kwargs": {"reasoning_effort": "high"}}),
            "it is high//",
        ),
        ("chat/completions", thinks("reasoning_content"), "it is low/Hm/Hm"),
        ("chat/completions", thinks("reasoning"), "it is low/Hm/Hm"),
        ("chat/completions", thinks("thinking"), "it is low/Hm/Hm"),
        ("responses", json!({"input": "x", "reasoning": {"effort": "high"}}), "it is high//"),
        ("responses", json!({"input": [thought, item], "reasoning": {"effort": "low"}}), "it is low/Hm/Hm"),
        (
            "messages",
            json!({"max_tokens": 5, "messages": [{"role": "assistant", "content": [thinking, tool_use]}], "output_config": {"effort": "low"}}),
            "it is low/Hm/Hm",
        ),
    ] {
        let text = server.post(&format!("/v1/{path}"), &body).await.text;
        assert!(text.contains(&format!("{expected}\"")), "{path}: {expected}: {text}");
    }
}
