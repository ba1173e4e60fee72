//! Tests that texts in each format are read correctly, however they are cut into pieces.

use serde_json::{Value as Json, json};

use super::form::FORMATS;
use super::*;

pub(super) fn tools() -> Vec<Json> {
    let parameters = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"}, "tags": {"type": "array"}}});
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    vec![tool("get"), tool("get_time")]
}

pub(super) fn form(format: &str, thinking: &str, prompt: &str) -> AnswerForm {
    let format = FORMATS.iter().find(|known| known.name == format);
    AnswerForm::new((format, thinking_of(thinking)), prompt, Tools::new(&tools()))
}

/// Returns the events without ids, with consecutive texts of one kind joined.
pub(super) fn read<'a>(form: &AnswerForm, pieces: impl IntoIterator<Item = &'a str>) -> Vec<AnswerEvent> {
    let mut parser = AnswerParser::new(form.clone());
    let mut events = Vec::new();
    pieces.into_iter().for_each(|piece| parser.push(piece, &mut events));
    parser.finish(&mut events);
    let mut joined: Vec<AnswerEvent> = Vec::new();
    for event in events {
        match (joined.last_mut(), event) {
            (Some(AnswerEvent::Content(text)), AnswerEvent::Content(more))
            | (Some(AnswerEvent::Reasoning(text)), AnswerEvent::Reasoning(more))
            | (Some(AnswerEvent::Arguments(text)), AnswerEvent::Arguments(more)) => text.push_str(&more),
            (_, AnswerEvent::CallStarted { name, .. }) => {
                joined.push(AnswerEvent::CallStarted { id: String::new(), name });
            }
            (_, event) => joined.push(event),
        }
    }
    joined
}

/// A short notation of events: `~thought`, `text`, `name(arguments)`.
fn shown(events: &[AnswerEvent]) -> Vec<String> {
    let mut shown: Vec<String> = Vec::new();
    for event in events {
        match event {
            AnswerEvent::Reasoning(text) => shown.push(format!("~{text}")),
            AnswerEvent::Content(text) => shown.push(text.clone()),
            AnswerEvent::CallStarted { name, .. } => shown.push(format!("{name}(")),
            AnswerEvent::Arguments(text) => shown.last_mut().unwrap().push_str(text),
            AnswerEvent::CallEnded => shown.last_mut().unwrap().push(')'),
        }
    }
    shown
}

/// Checks the events of the text as a whole, in single characters, and cut in two at every position.
pub(super) fn check_form(form: &AnswerForm, text: &str, expected: &[&str]) {
    let whole = read(form, [text]);
    assert_eq!(shown(&whole), expected, "{text:?}");
    let characters: Vec<String> = text.chars().map(String::from).collect();
    assert_eq!(read(form, characters.iter().map(String::as_str)), whole, "{text:?} in characters");
    for at in (1..text.len()).filter(|at| text.is_char_boundary(*at)) {
        assert_eq!(read(form, [&text[..at], &text[at..]]), whole, "{text:?} cut at {at}");
    }
}

pub(super) fn check(format: &str, text: &str, expected: &[&str]) {
    check_form(&form(format, "", ""), text, expected);
}

#[test]
fn objects_between_marks() {
    let call = r#"{"name": "get", "arguments": {"city": "a\"}{b"}}"#;
    let expected = r#"get({"city": "a\"}{b"})"#;
    for format in ["", "hermes"] {
        check(format, &format!("<tool_call>\n{call}\n</tool_call>"), &[expected]);
        check(
            format,
            &format!("Hm. \n\n<tool_call>{call}</tool_call>\n<tool_call>{call}</tool_call>"),
            &["Hm.", expected, expected],
        );
        check(format, &format!("<tool_call>{call}"), &[expected]);
        check(format, "<tool_call>{\"name\": \"get\"}</tool_call> done", &["get({})", "done"]);
        check(
            format,
            "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"get_time\"}</tool_call>",
            &["get_time({\"a\": 1})"],
        );
        check(format, "<tool_call>{\"name\":\"get\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>", &["get({\"a\":1})"]);
        check(format, "<tool_call>{\"name\":\"get\",\"arguments\":null}</tool_call>", &["get({})"]);
        check(
            format,
            "<tool_call>{\"name\":\"get\",\"arguments\":{\"a\":1},\"id\":\"x\"}</tool_call>.",
            &["get({\"a\":1})", "."],
        );
    }
    check("granite", &format!("<|tool_call|>[{call}, {call}]"), &[expected, expected]);
    check("hunyuan", &format!("Hm.\n<tool_calls>[{call}, {call}]</tool_calls>"), &["Hm.", expected, expected]);
    check("hunyuan", &format!("<tool_calls>\n[\n{call}\n]\n</tool_calls>\nDone"), &[expected, "Done"]);
    check("phi", &format!("<|tool_call|>[{call}]<|/tool_call|>"), &[expected]);
    check("phi", &format!("functools[{call}]"), &[expected]);
    let cohere = r#"{"tool_call_id": "0", "tool_name": "get", "parameters": {"city": "b"}}"#;
    check("cohere", &format!("<|START_ACTION|>[\n    {cohere}\n]<|END_ACTION|>"), &[r#"get({"city": "b"})"#]);
}

#[test]
fn text_that_is_no_call_is_content_to_the_byte() {
    for text in [
        "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>",
        "<tool_call>\n{'name': 'get'}\n</tool_call>",
        "<tool_call>{\"name\": \"get\", \"sum\": 1}",
        "<tool_call>{\"name\": \"get\", \"argum",
        " <tool_call> and\n <tool_cal",
        "\n a < b <<tool_call ",
        "  ",
    ] {
        check("hermes", text, &[text]);
    }
    check("hermes", "<tool_call>x<tool_call>{\"name\":\"get\"}", &["<tool_call>x", "get({})"]);
    for text in
        ["{\"a\": {\"name\": \"get\"}}", "{}", "{\"name\": \"Bob\", \"parameters\": {}}", "x {\"name\": \"get\"}"]
    {
        check("llama", text, &[text]);
    }
}

#[test]
fn a_call_that_has_begun_stays_one() {
    check("hermes", "<tool_call>{\"name\":\"get\",\"arguments\":{\"city\": \"Par", &["get({\"city\": \"Par)"]);
    check("hermes", "<tool_call>{\"name\":\"get\",\"arguments\":{city: x}}</tool_call>", &["get({city: x})"]);
    check("qwen-coder", "<function=get>\n<parameter=city>\nPar", &["get()", "<parameter=city>\nPar"]);
}

#[test]
fn llama_begins_with_an_object() {
    check("llama", "{\"name\": \"get\", \"parameters\": {\"days\": 1}}", &["get({\"days\": 1})"]);
    check("llama", " {\"type\": \"function\", \"name\": \"get\", \"parameters\": {}}", &["get({})"]);
    check(
        "llama",
        "<|python_tag|>{\"name\": \"get\", \"parameters\": {}}; {\"name\": \"get_time\", \"parameters\": {\"x\": []}}",
        &["get({})", "get_time({\"x\": []})"],
    );
}

#[test]
fn mistral_has_lists_and_names() {
    check(
        "mistral",
        "[TOOL_CALLS] [{\"name\": \"get\", \"arguments\": {\"city\": \"a\"}}, {\"name\": \"get_time\", \"arguments\": {}}]",
        &["get({\"city\": \"a\"})", "get_time({})"],
    );
    check(
        "mistral",
        "Ok.[TOOL_CALLS]get[ARGS]{\"days\": 1}[TOOL_CALLS]get_time[ARGS]{}",
        &["Ok.", "get({\"days\": 1})", "get_time({})"],
    );
    check("mistral", "[TOOL_CALLS]get_time[CALL_ID]abc123XYZ[ARGS]{}", &["get_time({})"]);
    check("mistral", "[TOOL_CALLS]get_time{\"a\":1} then", &["get_time({\"a\":1})", "then"]);
    check("mistral", "[TOOL_CALLS]nothing[ARGS]{}", &["[TOOL_CALLS]nothing[ARGS]{}"]);
    let form = form("mistral", "", "");
    assert!(form.new_id("get", 0).len() == 9 && form.new_id("get", 0).chars().all(|c| c.is_ascii_alphanumeric()));
}

#[test]
fn qwen_coder_has_parameters() {
    let text = "Let me look.\n<tool_call>\n<function=get>\n<parameter=city>\n1\n</parameter>\n<parameter=days>\n2\n</parameter>\n\
         <parameter=exact>\nTrue\n</parameter>\n<parameter=tags>\n[\"a\"]\n</parameter>\n<parameter=other>\na\nb\n</parameter>\n\
         </function>\n</tool_call>";
    let arguments = "{\"city\": \"1\", \"days\": 2, \"exact\": true, \"tags\": [\"a\"], \"other\": \"a\\nb\"}";
    check("qwen-coder", text, &["Let me look.", &format!("get({arguments})")]);
    check("qwen-coder", "<function=get_time>\n</function>", &["get_time({})"]);
    check("seed-oss", "<seed:tool_call><function=get_time></function></seed:tool_call>", &["get_time({})"]);
}

/// The example of GLM 4.5's chat template, in the notation of GLM 4.5 and in that of GLM 4.7.
#[test]
fn glm_has_keys_and_values() {
    let text = "Let me look.\n<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>1</arg_value>\n<arg_key>days</arg_key>\n\
         <arg_value>2</arg_value>\n<arg_key>exact</arg_key>\n<arg_value>true</arg_value>\n<arg_key>tags</arg_key>\n\
         <arg_value>[\"a\"]</arg_value>\n<arg_key>other</arg_key>\n<arg_value>a\nb <c></arg_value>\n</tool_call>";
    let arguments = "{\"city\": \"1\", \"days\": 2, \"exact\": true, \"tags\": [\"a\"], \"other\": \"a\\nb <c>\"}";
    check("glm", text, &["Let me look.", &format!("get({arguments})")]);
    let glm_47 = text.replace(">\n<", "><").replace("get\n", "get");
    check("glm", &glm_47, &["Let me look.", &format!("get({arguments})")]);
    check("glm", "<tool_call>get_time</tool_call><tool_call>get_time\n</tool_call>", &["get_time({})", "get_time({})"]);
    let other = "<tool_call>other\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>";
    for text in [other, "<tool_call>get me one", "a <tool_call> mark", "<tool_call>get"] {
        check("glm", text, &[text]);
    }
    check(
        "glm",
        "<tool_call>get<arg_key>city</arg_key><arg_value>a",
        &["get()", "<arg_key>city</arg_key><arg_value>a"],
    );
    let thinks = |prompt| form("glm", "</think>", prompt);
    let call = "<tool_call>get_time</tool_call>";
    check_form(&thinks(""), &format!("\n<think>Hm.</think>\n{call}"), &["~Hm.", "get_time({})"]);
    check_form(&thinks("<think>"), &format!("Hm.</think>{call}"), &["~Hm.", "get_time({})"]);
}

/// The example of MiniMax M2's guide to tool calling.
#[test]
fn minimax_has_blocks_of_calls() {
    let text = "Sure.\n<minimax:tool_call>\n<invoke name=\"get\">\n<parameter name=\"tags\">[\"technology\", \"events\"]</parameter>\n\
         <parameter name=\"city\">\"OpenAI\" and \"release\"</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n\
         <invoke name=\"get_time\">\n</invoke>\n</minimax:tool_call>";
    let arguments = r#"get({"tags": ["technology","events"], "city": "\"OpenAI\" and \"release\"", "days": 2})"#;
    check("minimax", text, &["Sure.", arguments, "get_time({})"]);
    check_form(
        &form("minimax", "</think>", "<think>\n"),
        &format!("Hm.\n</think>\n\n{text}"),
        &["~Hm.", "Sure.", arguments, "get_time({})"],
    );
    let other = "<minimax:tool_call>\n<invoke name=\"other\">\n</invoke>\n</minimax:tool_call>";
    for text in [other, "<minimax:tool_call>", "<minimax:tool_call>\n<invoke name=\"get"] {
        check("minimax", text, &[text]);
    }
    check(
        "minimax",
        "<minimax:tool_call><invoke name=\"get\"><parameter name=\"city\">a",
        &["get()", "<parameter name=\"city\">a"],
    );
}

#[test]
fn apertus_names_functions_by_keys() {
    let calls = r#"<|tools_prefix|>[{"get": {"city": "a\"}]{b"}}, {"get_time": {}}]<|tools_suffix|>"#;
    let expected = [r#"get({"city": "a\"}]{b"})"#, "get_time({})"];
    check("apertus", calls, &expected);
    check("apertus", &format!("Hm. {calls} So."), &["Hm.", expected[0], expected[1], "So."]);
    check("apertus", "<|tools_prefix|>[{\"get\": {}}", &["get({})"]);
    for text in
        ["<|tools_prefix|>[{\"other\": {}}]<|tools_suffix|>", "<|tools_prefix|>[{\"get\": []}]", "<|tools_prefix|>[]"]
    {
        check("apertus", text, &[text]);
    }
    let thoughtful = form("apertus", "<|inner_prefix|><|inner_suffix|>", "");
    check_form(
        &thoughtful,
        &format!("<|inner_prefix|>Hm.<|inner_suffix|>{calls}"),
        &["~Hm.", expected[0], expected[1]],
    );
}

/// The forms of Hunyuan-A13B and ERNIE 4.5 Thinking.
#[test]
fn marks_around_content_are_left_out() {
    let call = r#"{"name": "get", "arguments": {"city": "b"}}"#;
    let expected = r#"get({"city": "b"})"#;
    for mark in ["answer", "response"] {
        let template = format!("</think> <{mark}> </{mark}>");
        let form = |prompt| form("hunyuan", &template, prompt);
        let text = format!("<think>\nHm.\n</think>\n\n<{mark}>\nYes, <{mark}> it is.\n</{mark}>\n");
        check_form(&form(""), &text, &["~Hm.", &format!("Yes, <{mark}> it is.")]);
        check_form(&form("<think>\n"), &format!("Hm.\n</think>\n<{mark}>\nYes"), &["~Hm.", "Yes"]);
        check_form(&form(""), &format!("<{mark}>Yes</{mark}>"), &["Yes"]);
        check_form(
            &form(""),
            &format!("<think>Hm.</think>\n<{mark}>\nSure.\n<tool_calls>[{call}]</tool_calls>\n</{mark}>"),
            &["~Hm.", "Sure.", expected],
        );
    }
    // Templates that do not know the marks have them in content.
    check_form(&form("", "</think>", ""), "<answer>Yes</answer>", &["<answer>Yes</answer>"]);
}

#[test]
fn schemas_say_which_values_are_strings() {
    let parameters = json!({"properties": {
        "optional": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "count": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
        "kinds": {"type": ["string", "integer"]}, "unit": {"enum": ["1", "2"]}, "any": {}}});
    let tools = Tools::new(&[json!({"type": "function", "function": {"name": "f", "parameters": parameters}})]);
    let value = |name: &str, text: &str| tools.find("f").unwrap().value(name, text);
    assert_eq!((value("optional", "12"), value("optional", "null")), (json!("12"), json!(null)));
    assert_eq!((value("count", "12"), value("kinds", "12"), value("unit", "1")), (json!(12), json!("12"), json!("1")));
    assert_eq!(
        (value("any", "12"), value("any", "twelve"), value("unknown", "12")),
        (json!(12), json!("twelve"), json!("12"))
    );
}

#[test]
fn deepseek_has_marks_of_its_own() {
    let old = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{\"city\": \"a\"}\n```<｜tool▁call▁end｜>\n\
         <｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    check("deepseek", old, &["get({\"city\": \"a\"})", "get_time({})"]);
    let new = "Hm<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{\"city\": \"a\"}<｜tool▁call▁end｜>\
         <｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    check("deepseek", new, &["Hm", "get({\"city\": \"a\"})", "get_time({})"]);
    let object = "<｜tool▁calls▁begin｜> <｜tool▁call▁begin｜> {\"name\": \"get\", \"parameters\": {}} <｜tool▁call▁end｜> <｜tool▁calls▁end｜>";
    check("deepseek", object, &["get({})"]);
}

/// The text of two calls, as in the documentation of Kimi K2.
#[test]
fn kimi_has_ids_with_names() {
    let text = "Hm<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{\"city\": \"a\"}\
         <|tool_call_end|><|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}<|tool_call_end|>\
         <|tool_calls_section_end|>";
    check("kimi", text, &["Hm", "get({\"city\": \"a\"})", "get_time({})"]);
    let mut parser = AnswerParser::new(form("kimi", "", ""));
    let mut events = Vec::new();
    parser.push(text, &mut events);
    let ids = events.iter().filter_map(|event| match event {
        AnswerEvent::CallStarted { id, .. } => Some(id.as_str()),
        _ => None,
    });
    assert_eq!(ids.collect::<Vec<_>>(), ["functions.get:0", "functions.get_time:1"]);
    let other = "<|tool_call_begin|>functions.put:0<|tool_call_argument_begin|>{}<|tool_call_end|>";
    check("kimi", other, &[other]);
}

#[test]
fn gemma_has_no_quotes() {
    let text = "<start_function_call>call:get{city:<escape>a, \"b\"<escape>,days:2,tags:[<escape>x<escape>,{a:true}]}<end_function_call>";
    let arguments = r#"get({"city":"a, \"b\"","days":2,"tags":["x",{"a":true}]})"#;
    check("function-gemma", text, &[arguments]);
    let text = "<|tool_call>call:get{city:<|\"|>a, \"b\"<|\"|>,days:2,tags:[<|\"|>x<|\"|>,{a:true}]}<tool_call|><|tool_call>call:get_time{}<tool_call|>";
    check("gemma", text, &[arguments, "get_time({})"]);
    check("gemma", "<|tool_call>call:get{city", &["<|tool_call>call:get{city"]);
}

/// As in Google's description of the format (ai.google.dev/gemma/docs/core/prompt-formatting-gemma4).
#[test]
fn gemma_4_names_its_thoughts() {
    let gemma = |prompt| form("gemma", "<channel|>", prompt);
    let call = "<|tool_call>call:get_time{}<tool_call|>";
    let text = format!("<|channel>thought\nHm.\n<channel|>It is late.{call}");
    check_form(&gemma(""), &text, &["~Hm.", "It is late.", "get_time({})"]);
    check_form(&gemma(""), "<|channel>thought\n<channel|>Hi", &["Hi"]);
    check_form(&gemma(""), "<|channel>thoughtful<channel|>Hi", &["~thoughtful", "Hi"]);
    check_form(&gemma(""), "<|channel>thou", &["~thou"]);
    for prompt in ["<|turn>model\n<|channel>", "<|turn>model\n<|channel>thought\n"] {
        check_form(&gemma(prompt), "Hm.\n<channel|>Hi", &["~Hm.", "Hi"]);
    }
    check_form(&gemma("<|channel>thought\n<channel|>"), "A thought", &["A thought"]);
}

#[test]
fn gemma_3_writes_python() {
    check(
        "tool-code",
        "Sure:\n```tool_code\nget(city='it\\'s \"a\"', days=2, exact=True, tags=[1, {\"a\": None}])\nprint(get_time())\n```\nDone",
        &["Sure:", r#"get({"city":"it's \"a\"","days":2,"exact":true,"tags":[1,{"a":null}]})"#, "get_time({})", "Done"],
    );
    check("tool-code", "```tool_code\nlen([1])\n```", &["```tool_code\nlen([1])\n```"]);
}

#[test]
fn harmony_has_channels() {
    check(
        "harmony",
        "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>\
         <|start|>assistant<|channel|>commentary to=functions.get <|constrain|>json<|message|>{\"city\":\"a\"}<|call|>",
        &["~Need it.", "Let me look.", "get({\"city\":\"a\"})"],
    );
    check(
        "harmony",
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi <b>!",
        &["~Hm", "Hi <b>!"],
    );
    check(
        "harmony",
        "<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{}",
        &["get_time({})"],
    );
    // A call of a function that the request lacks is content. Only its marks and its header are left out.
    check("harmony", "<|channel|>commentary to=functions.none json<|message|>{}<|call|>", &["{}"]);
    check("harmony", "<|channel|>commentary to=functions.get_time<|message|><|call|>", &["get_time({})"]);
    check("harmony", "<|channel|>commentary to=get_time<|message|>{}<|call|>", &["get_time({})"]);
    // Marks inside strings are text, except at the end of an answer. Text after the object is left out.
    let marks = "{\"city\":\"<|end|><|start|>assistant<|call|>\"}";
    check(
        "harmony",
        &format!("<|channel|>commentary to=functions.get<|message|>{marks}}}<|call|>"),
        &[&format!("get({marks})")],
    );
    // Answers that lack a header, the end of a header or the end of a message, and results that the model made up.
    check("harmony", "{\"a\": 1}", &["{\"a\": 1}"]);
    check("harmony", "to=5 <b>", &["to=5 <b>"]);
    check("harmony", "<|channel|>analysis Hm.<|end|><|start|>assistant<|channel|>final Hi all", &["~Hm.", "Hi all"]);
    check(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>Hi",
        &["~Hm.", "Hi"],
    );
    check(
        "harmony",
        "<|channel|>commentary to=functions.get_time<|message|>{}<|call|><|start|>functions.get_time to=assistant<|channel|>commentary<|message|>12<|end|>",
        &["get_time({})", "~12"],
    );
    let without_tools =
        AnswerForm::new((FORMATS.iter().find(|format| format.name == "harmony"), None), "", Tools::default());
    check_form(
        &without_tools,
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        &["~Hm", "Hi"],
    );
}

#[test]
fn thoughts_come_first() {
    let hermes = |prompt| form("hermes", "</think>", prompt);
    check_form(&hermes(""), "<think>\nHm.\n\nSo.\n</think>\n\nHi <think>", &["~Hm.\n\nSo.", "Hi <think>"]);
    check_form(&hermes(""), " \n<think></think>\n\nHi", &["Hi"]);
    check_form(&hermes(""), "Hi <think>x</think>", &["Hi <think>x</think>"]);
    check_form(
        &hermes("…<think>\n"),
        "Hm <tool_call>.\n</think>\n<tool_call>{\"name\":\"get\"}</tool_call>",
        &["~Hm <tool_call>.", "get({})"],
    );
    check_form(&hermes("<think>"), "Hm </th", &["~Hm </th"]);
    check_form(&hermes("<think>\n\n</think>\n\n"), " Hi", &[" Hi"]);
    check_form(&form("mistral", "[/THINK]", ""), "[THINK]Hm[/THINK]Hi", &["~Hm", "Hi"]);
}

#[test]
fn without_tools_nothing_is_a_call() {
    let form = AnswerForm::new((FORMATS.iter().find(|format| format.name == "hermes"), None), "", Tools::default());
    check_form(
        &form,
        " <tool_call>{\"name\":\"get\"}</tool_call>\n",
        &[" <tool_call>{\"name\":\"get\"}</tool_call>\n"],
    );
}

#[test]
fn one_call_may_be_all() {
    let form = AnswerForm { has_one_call: true, ..form("hermes", "", "") };
    let text =
        "a<tool_call>{\"name\":\"get\",\"arguments\":{}}</tool_call> <tool_call>{\"name\":\"get\"}</tool_call> b";
    check_form(&form, text, &["a", "get({})"]);
    let mut parser = AnswerParser::new(form);
    parser.push("<tool_call>{\"name\":\"get\",\"arguments\":{}", &mut Vec::new());
    assert!(parser.is_complete());
}

#[test]
fn the_start_of_a_closing_mark_is_not_content() {
    let call = "<tool_call>{\"name\":\"get\",\"arguments\":{}}";
    for len in 0.."</tool_call>".len() {
        check_form(&form("hermes", "", ""), &format!("{call}{}", &"</tool_call>"[..len]), &["get({})"]);
    }
    check_form(&form("hermes", "", ""), &format!("{call}\n</table>"), &["get({})", "</table>"]);
}

#[test]
fn openers_are_not_parts_of_each_other() {
    for format in &FORMATS {
        let openers = [format.openers, format.first_openers].concat();
        for (a, b) in openers.iter().flat_map(|a| openers.iter().map(move |b| (a, b))) {
            assert!(a == b || !a.contains(b), "{}: {a} contains {b}", format.name);
        }
    }
}
