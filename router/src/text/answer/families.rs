//! Tests that the format of a family of models is recognized in a chat template like that of the family, and that
//! answers in the forms of the family's documentation are read, however they are cut into pieces.

use std::sync::Arc;

use model_files::ModelFiles;
use serde_json::{Map, Value as Json, json};

use super::form::FORMATS;
use super::tests::{check_form, tools};
use super::*;
use crate::grammar::{self, GrammarCompiler};
use crate::testing::VOCAB_SIZE;
use crate::text::Tokenizer;
use crate::text::chat_template::{ChatInputs, ChatTemplate, SpecialTokens};

const EOS: u32 = 1;

/// Returns the form of answers to a conversation with tools, for a chat template with variables.
fn form_with(template: &str, variables: &Json) -> AnswerForm {
    let template = ChatTemplate::compile(template, SpecialTokens::new()).unwrap();
    let messages = serde_json::from_value(json!([{"role": "user", "content": "hi"}])).unwrap();
    let variables = variables.as_object().cloned().unwrap_or_else(Map::new);
    let inputs = ChatInputs { messages, tools: Some(tools()), variables, ..ChatInputs::default() };
    template.render_adapted(inputs).unwrap().answer_form
}

fn form_of(template: &str) -> AnswerForm {
    form_with(template, &Json::Null)
}

fn name_of(form: &AnswerForm) -> &'static str {
    form.format.map_or("none", |format| format.name)
}

/// A template that composes its marks, as that of Hunyuan 3 does.
const HY3: &str = "{% set suffix = ':opensource' %}\
    {% set begin, end = '<{}' + suffix + '>', '</{}' + suffix + '>' %}\
    {% for tool in tools or [] %}{{ tool | tojson + '\n' }}{% endfor %}\
    {% for m in messages %}{{ '<｜hy_' + m.role + '｜>' }}\
    {% if m.role == 'assistant' %}{{ begin.format('think') + (m.reasoning_content or '') + end.format('think') }}{% endif %}\
    {{ m.content }}{% if m.tool_calls %}{{ begin.format('tool_calls') + '\n' }}{% for call in m.tool_calls %}\
    {{ begin.format('tool_call') + call.function.name + begin.format('tool_sep') + '\n' }}\
    {% for key, value in call.function.arguments.items() %}{{ begin.format('arg_key') + key + end.format('arg_key') + '\n' }}\
    {{ begin.format('arg_value') + value + end.format('arg_value') + '\n' }}{% endfor %}\
    {{ end.format('tool_call') + '\n' }}{% endfor %}{{ end.format('tool_calls') }}{% endif %}{% endfor %}\
    {% if add_generation_prompt %}{{ '<｜hy_assistant｜>' + begin.format('think') }}\
    {% if reasoning_effort != 'high' %}{{ end.format('think') }}{% endif %}{% endif %}";

/// The calls of `tests/tool_parsers/test_hy_v3_tool_parser.py` and `test_hy_v4_tool_parser.py` of vLLM.
#[test]
fn hunyuan_3_has_marks_with_a_suffix() {
    let calls = "<tool_calls>\n<tool_call>get<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Beijing</arg_value>\n\
        <arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_time<tool_sep>\n</tool_call>\n\
        </tool_calls>";
    let suffixed = |text: &str| text.replace('>', ":opensource>");
    let expected = [r#"get({"city": "Beijing", "days": 3})"#, "get_time({})"];
    let plain = HY3.replace("':opensource'", "''");
    for (template, spelled) in [(HY3, &suffixed as &dyn Fn(&str) -> String), (&plain, &|text: &str| text.to_owned())] {
        let form = form_of(template);
        assert_eq!((name_of(&form), form.begins_in_thought), ("hy3", false));
        let check = |text: &str, expected: &[&str]| check_form(&form, &spelled(text), expected);
        check(calls, &expected);
        check(&calls.replace('\n', ""), &expected);
        check(&calls.replace("<tool_sep>", ""), &expected);
        check(&format!("Checking.\n{calls}"), &["Checking.", expected[0], expected[1]]);
        check(&format!("{calls}\nSo."), &[expected[0], expected[1], "So."]);
        check("<tool_call>get_time<tool_sep></tool_call>", &["get_time({})"]);
        check("<tool_calls><tool_call>get_time<tool_sep></tool_call></tool_ca", &["get_time({})"]);
        let other = spelled("<tool_calls>\n<tool_call>other<tool_sep>\n</tool_call>\n</tool_calls>");
        check_form(&form, &other, &[&other]);
        check_form(
            &AnswerForm { has_one_call: true, ..form.clone() },
            &spelled(&format!("a{calls}")),
            &["a", expected[0]],
        );
        let thoughtful = form_with(template, &json!({"reasoning_effort": "high"}));
        assert!(thoughtful.begins_in_thought);
        check_form(
            &thoughtful,
            &spelled(&format!("Hm.</think>It is late.{calls}")),
            &["~Hm.", "It is late.", expected[0], expected[1]],
        );
    }
    // Arguments are not JSON, so that forced calls are generic.
    let mut form = form_of(HY3);
    form.make_enforceable();
    assert_eq!(name_of(&form), "generic");
}

/// Returns a template with `tools` before the messages, `calls` in answers that have calls, and `prompt` at the end.
fn template(tools: &str, calls: &str, prompt: &str) -> String {
    let tools =
        format!("{{% if tools %}}{tools}{{% for tool in tools %}}{{{{ tool | tojson }}}}{{% endfor %}}{{% endif %}}");
    let calls = format!("{{% if m.tool_calls %}}{calls}{{% endif %}}");
    format!(
        "{tools}{{% for m in messages %}}[{{{{ m.role }}}}]{{{{ m.content }}}}{calls}[end]{{% endfor %}}\
         {{% if add_generation_prompt %}}[assistant]{prompt}{{% endif %}}"
    )
}

/// Checks the events of an answer, and that `parallel_tool_calls: false` ends them after the first call.
fn check_answer(form: &AnswerForm, text: &str, expected: &[&str]) {
    check_form(form, text, expected);
    let first = expected.iter().position(|event| event.starts_with("get") && event.ends_with(')'));
    let num_events = first.map_or(expected.len(), |at| at + 1);
    check_form(&AnswerForm { has_one_call: true, ..form.clone() }, text, &expected[..num_events]);
}

const EACH_CALL: &str = "{% for c in m.tool_calls %}{% set f = c.function %}";

/// The answers of `tests/tool_parsers/test_deepseekv31_tool_parser.py` of vLLM, with the thoughts of DeepSeek's
/// description of its chat template. Unlike vLLM, the parser reads a call that lacks its first mark.
#[test]
fn deepseek_v3_1_has_names_without_a_kind() {
    let calls = format!(
        "<｜tool▁calls▁begin｜>{EACH_CALL}<｜tool▁call▁begin｜>{{{{ f.name }}}}<｜tool▁sep｜>{{{{ f.arguments }}}}\
         <｜tool▁call▁end｜>{{% endfor %}}<｜tool▁calls▁end｜>"
    );
    let template = template("## Tools\n", &calls, "{% if thinking %}<think>{% else %}</think>{% endif %}");
    let form = form_of(&template);
    assert_eq!((name_of(&form), form.begins_in_thought), ("deepseek", false));
    let calls = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{\"days\":1}<｜tool▁call▁end｜>\
        <｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{\"y\":2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let expected = ["some prefix text", "get({\"days\":1})", "get_time({\"y\":2})", "some suffix text"];
    check_answer(&form, &format!("some prefix text{calls} some suffix text"), &expected);
    let thoughtful = form_with(&template, &json!({"thinking": true}));
    check_answer(&thoughtful, &format!("Hm.</think>{calls}"), &["~Hm.", expected[1], expected[2]]);
    check_answer(&form, "<｜tool▁calls▁begin｜>get<｜tool▁sep｜>{\"x\":1}<｜tool▁calls▁end｜>", &["get({\"x\":1})"]);
    let cut = "Let me look that up.<｜tool▁calls▁begin｜>get_weather";
    check_answer(&form, cut, &[cut]);
}

/// The answers of `tests/tool_parsers/test_glm47_moe_tool_parser.py` of vLLM.
#[test]
fn glm_4_7_writes_calls_in_one_line() {
    let calls = format!(
        "{EACH_CALL}<tool_call>{{{{ f.name }}}}{{% for k, v in f.arguments.items() %}}<arg_key>{{{{ k }}}}</arg_key>\
         <arg_value>{{{{ v }}}}</arg_value>{{% endfor %}}</tool_call>{{% endfor %}}"
    );
    let form = form_of(&template("# Tools\n", &calls, "<think>{# </think> #}"));
    assert_eq!((name_of(&form), form.begins_in_thought), ("glm", true));
    let call = |city: &str| format!("<tool_call>get<arg_key>city</arg_key><arg_value>{city}</arg_value></tool_call>");
    let cities = [r#"get({"city": "Beijing"})"#, r#"get({"city": "Shanghai"})"#];
    let calls = format!("{}{}", call("Beijing"), call("Shanghai"));
    check_answer(&form, &format!("Hm.</think>{calls}"), &["~Hm.", cities[0], cities[1]]);
    check_answer(&form, &format!("</think>Checking.{calls}"), &["Checking.", cities[0], cities[1]]);
    check_answer(&form, "</think>  \n  <tool_call>get_time</tool_call>", &["get_time({})"]);
    check_answer(&form, "</think><tool_call>get_time\n</tool_call>", &["get_time({})"]);
}

/// Forms of `<tool_call>` with JSON: vLLM's tests of Granite 4 (`test_granite4_tool_parser.py`) and ERNIE 4.5
/// (`test_ernie45_moe_tool_parser.py`), and the chat template of EXAONE 4.
#[test]
fn granite_4_ernie_4_5_and_exaone_4_write_hermes_calls() {
    let calls = format!(
        "{EACH_CALL}<tool_call>\n{{\"name\": \"{{{{ f.name }}}}\", \"arguments\": {{{{ f.arguments | tojson }}}}}}\n\
         </tool_call>{{% endfor %}}"
    );
    let plain = form_of(&template("<tools>\n", &calls, ""));
    assert_eq!((name_of(&plain), plain.thinking), ("hermes", None));
    // Granite writes spaces beside the marks, and sometimes the JSON of the arguments in a string.
    let price = r#"<tool_call> {"name": "get", "arguments": {"city": "AAPL", "days": 2}} </tool_call>"#;
    let text = format!(
        "Here goes the bbox call: \n<tool_call> {} </tool_call> Now the stock price call: \n {price} See?",
        r#"{"name": "get", "arguments": "{\"tags\": [[23.54, 43.1], [4, 5]], \"city\": \"latlong\"}"}"#
    );
    let expected = [
        "Here goes the bbox call:",
        r#"get({"tags": [[23.54, 43.1], [4, 5]], "city": "latlong"})"#,
        "Now the stock price call:",
        r#"get({"city": "AAPL", "days": 2})"#,
        "See?",
    ];
    check_answer(&plain, &text, &expected);
    let thoughtful = form_of(&template("<tools>\n", &calls, "<think>\n{# </think> <response> </response> #}"));
    let call = r#"{"name": "get", "arguments": {"city": "Beijing"}}"#;
    let calls = format!("<tool_call>\n{call}\n</tool_call>\n<tool_call>\n{call}\n</tool_call>\n");
    let expected = ["~I need to call two tools.", r#"get({"city": "Beijing"})"#, r#"get({"city": "Beijing"})"#];
    check_answer(&thoughtful, &format!("I need to call two tools.\n</think>\n\n{calls}"), &expected);
    check_answer(&thoughtful, "Hm.\n</think>\n\n<response>\nIt is late.\n</response>\n", &["~Hm.", "It is late."]);
    check_answer(&plain, &calls, &expected[1..]);
}

/// The answers of `tests/tool_parsers/test_seed_oss_tool_parser.py` of vLLM.
#[test]
fn seed_oss_reflects_on_its_budget() {
    let calls = format!(
        "{EACH_CALL}<seed:tool_call>\n<function={{{{ f.name }}}}>\n{{% for k, v in f.arguments.items() %}}\
         <parameter={{{{ k }}}}>{{{{ v }}}}</parameter>\n{{% endfor %}}</function>\n</seed:tool_call>{{% endfor %}}"
    );
    let form = form_of(&template("Function:\n", &calls, "{# <seed:think> </seed:think> #}"));
    assert_eq!((name_of(&form), form.begins_in_thought), ("seed-oss", false));
    let call = "<seed:tool_call>\n<function=get>\n<parameter=city>Barcelona, Spain</parameter>\n</function>\n</seed:tool_call>";
    let expected = r#"get({"city": "Barcelona, Spain"})"#;
    check_answer(&form, call, &[expected]);
    // Calls inside a thought are part of the thought.
    let thought = "The budget is 512.</seed:cot_budget_reflect>\nThe format is <seed:tool_call>\n<function=get>\n</function>\n\
        </seed:tool_call>. Wait.\n<seed:cot_budget_reflect>I have used 131 tokens.</seed:cot_budget_reflect>\nSo.";
    let text = format!("<seed:think>{thought}</seed:think>\n{call}");
    check_answer(&form, &text, &[&format!("~{thought}"), expected]);
}

/// The chat templates of Phi 4, InternLM 3 and Hunyuan's dense models have no place for tools. That of SmolLM 3 reads
/// tools from a variable that OpenAI's API lacks, and asks for calls in the generic form.
#[test]
fn some_families_get_tools_as_text() {
    for template in [
        "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}\
         <|im_start|>assistant<|im_sep|>",
        "{% for m in messages %}<｜hy_{{ m.role }}｜>{{ m.content }}{% endfor %}<｜hy_Assistant｜>\
         {% if enable_thinking is false %}<think>\n\n</think>\n{% endif %}",
        "{% if xml_tools %}<tools>{{ xml_tools }}</tools>{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
         {{ m.content }}<|im_end|>{% endfor %}<|im_start|>assistant\n{# </think> #}",
    ] {
        let form = form_of(template);
        assert_eq!(name_of(&form), "generic");
        let call = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"a\"}}\n</tool_call>";
        let expected = r#"get({"city": "a"})"#;
        check_answer(&form, &format!("Sure.\n{call}\n{call}"), &["Sure.", expected, expected]);
        if form.thinking.is_some() {
            check_answer(&form, &format!("<think>\nHm.\n</think>\n{call}"), &["~Hm.", expected]);
        }
    }
}

/// The grammar allows calls of every format, after a thought if there are marks for it, and the calls are read.
#[tokio::test]
async fn forced_calls_are_allowed_and_read() {
    let tokenizer = Arc::new(Tokenizer::load(&ModelFiles::Demo).unwrap());
    let compiler = GrammarCompiler::new(Arc::clone(&tokenizer), VOCAB_SIZE, vec![EOS], 256 << 20);
    for format in &FORMATS {
        let mut form = AnswerForm { tools: Tools::new(&tools()).into(), format: Some(format), ..AnswerForm::default() };
        let syntax = form.make_enforceable();
        let CallSyntax { begin, before_name, before_arguments, after_arguments, separator, end } = syntax;
        let call = |name: &str| format!("{before_name}{name}{before_arguments}{{\"city\": \"a\"}}{after_arguments}");
        let text = format!("{begin}{}{separator}{}{end}", call("get"), call("get_time"));
        let calls = [r#"get({"city": "a"})"#, r#"get_time({"city": "a"})"#];
        check_answer(&form, &text, &calls);
        let thought = form.thought_marks().map(|(open, close)| format!("{}Hm.{close}", open.unwrap_or_default()));
        if let Some(thought) = &thought {
            check_answer(&form, &format!("{thought}{text}"), &["~Hm.", calls[0], calls[1]]);
        }
        let grammar = Arc::new(grammar::calls(&form, syntax, None).unwrap());
        let compiled = compiler.compile(&grammar).await.unwrap();
        for text in [Some(text.clone()), thought.map(|thought| format!("{thought}{text}"))].into_iter().flatten() {
            let (mut matcher, mut mask) = compiled.begin().unwrap();
            for token in tokenizer.tokenize_bare(&text).unwrap() {
                assert!(mask[token as usize / 8] >> (token % 8) & 1 == 1, "{}: {text:?} at {token}", format.name);
                mask = matcher.advance(token).unwrap();
            }
            assert!(mask[EOS as usize / 8] >> (EOS % 8) & 1 == 1, "{}: {text:?}", format.name);
        }
    }
}

/// The answers of `tests/tool_parsers/test_olmo3_tool_parser.py` of vLLM.
#[test]
fn olmo_3_writes_python_in_lines() {
    let calls = format!(
        "<function_calls>{EACH_CALL}{{{{ f.name }}}}({{% for k, v in f.arguments.items() %}}{{{{ k }}}}={{{{ v | tojson }}}}\
         {{% endfor %}}){{{{ '' if loop.last else '\n' }}}}{{% endfor %}}</function_calls>"
    );
    let form = form_of(&template("<functions>", &calls, ""));
    assert_eq!(name_of(&form), "olmo");
    let first = r#"get(city='Martha\'s Vineyard', tags=["a", {'b': null}], days=37, exact=true)"#;
    let expected =
        [r#"get({"city":"Martha's Vineyard","tags":["a",{"b":null}],"days":37,"exact":true})"#, "get_time({})"];
    check_answer(&form, &format!("<function_calls>{first}\nget_time()</function_calls>"), &expected);
    check_answer(&form, &format!("<function_calls>\n{first}\nget_time()\n</function_calls>"), &expected);
    let text = format!("Sure.\n<function_calls>{first}</function_calls>\nSo.");
    check_answer(&form, &text, &["Sure.", expected[0], "So."]);
    check_answer(&form, "<function_calls>get_time()", &["get_time({})"]);
    for text in
        ["<function_calls>other(x=1)</function_calls>", "<function_calls>get(x=1])</function_calls>", "get_time()"]
    {
        check_answer(&form, text, &[text]);
    }
    let thoughtful = form_of(&template("<functions>", &calls, "<think>{# </think> #}"));
    check_answer(&thoughtful, "Hm.</think><function_calls>get_time()</function_calls>", &["~Hm.", "get_time({})"]);
}

/// JSON between other marks: `test_nemotron_json_tool_parser.py`, `test_internlm2_tool_parser.py`,
/// `test_longcat_tool_parser.py` and `test_jamba_tool_parser.py` of vLLM.
#[test]
fn objects_have_marks_of_nemotron_internlm_longcat_and_jamba() {
    let object = "{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}";
    let shown = |begin: &str, before: &str, after: &str, end: &str| {
        let calls = format!("{begin}{EACH_CALL}{before}{object}{after}{{% endfor %}}{end}");
        form_of(&template("Tools:\n", &calls, "{# </think> #}"))
    };
    let first = r#"{"name": "get", "arguments": {"city": "a\"}]{b", "days": 2}}"#;
    let second = "{\n  \"name\": \"get_time\",\n  \"arguments\": {}\n}";
    let expected = [r#"get({"city": "a\"}]{b", "days": 2})"#, "get_time({})"];
    for (format, form, text) in [
        (
            "nemotron",
            shown("<TOOLCALL>[", "", ", ", "]</TOOLCALL>"),
            format!("<TOOLCALL>[{first}, {second}]</TOOLCALL>"),
        ),
        (
            "nemotron",
            shown("<TOOLCALL>[", "", ", ", "]</TOOLCALL>"),
            format!("<TOOLCALL>{first}</TOOLCALL><TOOLCALL>{second}"),
        ),
        (
            "hunyuan",
            shown("<tool_calls>[\n", "", ",", "\n]</tool_calls>"),
            format!("<tool_calls>[\n    {first},\n    {second}\n]</tool_calls>"),
        ),
        (
            "internlm",
            shown("", "<|action_start|><|plugin|>\n", "<|action_end|>", ""),
            format!(
                "<|action_start|><|plugin|>{first}<|action_end|>\n<|action_start|><|plugin|>\n{second}<|action_end|>"
            ),
        ),
        (
            "longcat",
            shown("", "<longcat_tool_call>\n", "\n</longcat_tool_call>\n", ""),
            format!("<longcat_tool_call>{first}</longcat_tool_call>\n<longcat_tool_call>{second}</longcat_tool_call>"),
        ),
    ] {
        assert_eq!(name_of(&form), format);
        check_answer(&form, &text, &expected);
        check_answer(&form, &format!("Sure.\n{text}\nSo."), &["Sure.", expected[0], expected[1], "So."]);
        check_answer(&form, &format!("<think>\nHm.\n</think>\n{text}"), &["~Hm.", expected[0], expected[1]]);
        check_answer(&form, &text.replace("arguments", "parameters"), &expected);
        let other = text.replace("get", "put");
        check_answer(&form, &other, &[&other]);
    }
    // Nemotron may write the JSON of arguments in a string.
    let nemotron = shown("<TOOLCALL>[", "", ", ", "]</TOOLCALL>");
    let quoted = r#"<TOOLCALL>[{"name": "get", "arguments": "{\"city\": \"select 1\"}"}]</TOOLCALL>"#;
    check_answer(&nemotron, quoted, &[r#"get({"city": "select 1"})"#]);
    check_answer(&nemotron, "<TOOLCALL>[]</TOOLCALL>", &["<TOOLCALL>[]</TOOLCALL>"]);
}

/// The form of LongCat Flash: tags instead of JSON. A model may write either.
#[test]
fn longcat_has_keys_and_values() {
    let calls = format!(
        "{EACH_CALL}<longcat_tool_call>{{{{ f.name }}}}\n{{% for k, v in f.arguments.items() %}}\
         <longcat_arg_key>{{{{ k }}}}</longcat_arg_key>\n<longcat_arg_value>{{{{ v }}}}</longcat_arg_value>\n{{% endfor %}}\
         </longcat_tool_call>\n{{% endfor %}}"
    );
    let form = form_of(&template("# Tools\n", &calls, "<longcat_think>\n{# </longcat_think> #}"));
    assert_eq!((name_of(&form), form.begins_in_thought), ("longcat-keys", true));
    let first = "<longcat_tool_call>get\n<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>Paris</longcat_arg_value>\n\
        <longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>3</longcat_arg_value>\n</longcat_tool_call>";
    let second = "<longcat_tool_call>get_time\n</longcat_tool_call>";
    let expected = ["~Hm.", r#"get({"city": "Paris", "days": 3})"#, "get_time({})"];
    check_answer(&form, &format!("Hm.\n</longcat_think>\n{first}\n{second}\n"), &expected);
    check_answer(&form, &format!("Hm.</longcat_think>{}", format!("{first}{second}").replace('\n', "")), &expected);
    let object = r#"<longcat_tool_call>{"name": "get", "arguments": {"city": "Paris", "days": 3}}</longcat_tool_call>"#;
    check_answer(&form, &format!("Hm.</longcat_think>{object}{second}"), &expected);
    let with_id = object.replace("}}", "}, \"id\": \"1\"}");
    check_answer(&form, &format!("Hm.</longcat_think>{with_id}{second}"), &expected);
}

/// The answers of `tests/tool_parsers/test_xlam_tool_parser.py` of vLLM. xLAM's template shows no calls in a mark.
#[test]
fn xlam_writes_a_bare_list() {
    let instructions = "Calls: [{\"name\": \"tool_call_name\", \"arguments\": {\"arg1\": \"value1\"}}, ...]\n";
    let form = form_of(&template(instructions, "{{ m.tool_calls | tojson }}", "{# </think> #}"));
    assert_eq!(name_of(&form), "xlam");
    let call = |city: &str| format!(r#"{{"name": "get", "arguments": {{"city": "{city}"}}}}"#);
    let list = format!("[{}, {}]", call("Dallas"), call("Orlando"));
    let expected = [r#"get({"city": "Dallas"})"#, r#"get({"city": "Orlando"})"#];
    check_answer(&form, &list, &expected);
    check_answer(&form, &format!("<think>Hm.</think>{list}"), &["~Hm.", expected[0], expected[1]]);
    check_answer(&form, &format!("Sure.<tool_call>{list}</tool_call>"), &["Sure.", expected[0], expected[1]]);
    for text in
        ["[1, 2]", "[{\"name\": \"put\", \"arguments\": {}}]", "[]", "See [{\"name\": \"get\", \"arguments\": {}}]"]
    {
        check_answer(&form, text, &[text]);
    }
}

/// The answers of `tests/tool_parsers/test_dots_tool_parser.py` of vLLM.
#[test]
fn dots_has_blocks_of_calls() {
    let calls = format!(
        "<dots_function_call>{EACH_CALL}<invoke name=\"{{{{ f.name }}}}\">{{% for k, v in f.arguments.items() %}}\
         <parameter name=\"{{{{ k }}}}\">{{{{ v }}}}</parameter>{{% endfor %}}</invoke>{{% endfor %}}</dots_function_call>"
    );
    let form = form_of(&template("Tools:\n", &calls, ""));
    assert_eq!(name_of(&form), "dots");
    let text = "ok<dots_function_call><invoke name=\"get\"><parameter name=\"tags\">[{\"city\": \"Shanghai\"}]</parameter>\
        <parameter name=\"days\">3</parameter><parameter name=\"exact\">true</parameter></invoke>\
        <invoke name=\"get_time\"></invoke></dots_function_call>";
    let expected = ["ok", r#"get({"tags": [{"city":"Shanghai"}], "days": 3, "exact": true})"#, "get_time({})"];
    check_answer(&form, text, &expected);
    let ghost = text.replace("\"get", "\"put");
    check_answer(&form, &ghost, &[&ghost]);
    check_answer(&form, "answer <dots_func", &["answer <dots_func"]);
}

/// The answers of `tests/tool_parsers/test_step3_tool_parser.py` of vLLM, and the form of SGLang's `step3_detector.py`.
#[test]
fn step_3_has_marks_around_each_call() {
    let calls = format!(
        "<｜tool_calls_begin｜>{EACH_CALL}<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"{{{{ f.name }}}}\">\
         {{% for k, v in f.arguments.items() %}}<steptml:parameter name=\"{{{{ k }}}}\">{{{{ v }}}}</steptml:parameter>\
         {{% endfor %}}</steptml:invoke><｜tool_call_end｜>{{% endfor %}}<｜tool_calls_end｜>"
    );
    let form = form_of(&template("# Tools\n", &calls, "<think>\n{# </think> #}"));
    assert_eq!((name_of(&form), form.begins_in_thought), ("step", true));
    let invoke = "<steptml:invoke name=\"get\"><steptml:parameter name=\"city\">    if x:\n</steptml:parameter>\
        <steptml:parameter name=\"days\"> 4 </steptml:parameter></steptml:invoke>";
    let second = "<steptml:invoke name=\"get_time\"></steptml:invoke>";
    let expected = ["~Hm.", r#"get({"city": "    if x:\n", "days": 4})"#, "get_time({})"];
    for (kind, between) in [
        ("", "<｜tool_sep｜>"),
        ("function<｜tool_sep｜>", ""),
        ("function<｜tool_sep｜>", "\n"),
        ("function<｜tool_sep｜>get\n", "\n"),
    ] {
        let (begin, end) = (format!("<｜tool_call_begin｜>{kind}"), "<｜tool_call_end｜>");
        let last = begin.replace("get\n", "get_time\n");
        let block =
            format!("<｜tool_calls_begin｜>{begin}{invoke}{end}{between}{last}{second}{end}<｜tool_calls_end｜>");
        check_answer(&form, &format!("Hm.\n</think>{block}"), &expected);
        check_answer(
            &form,
            &format!("</think>Let me check.\n\n{block}\n\nI'll get that."),
            &["Let me check.", expected[1], expected[2], "I'll get that."],
        );
    }
    let other = "<｜tool_calls_begin｜><｜tool_call_begin｜><steptml:invoke name=\"func\">";
    check_answer(&form, &format!("</think>{other}"), &[other]);
}

/// The chat template of Solar Open 100B.
#[test]
fn solar_open_has_messages() {
    let source = format!(
        "{{% for t in tools or [] %}}<|tool:begin|>{{{{ t.function | tojson }}}}<|tool:end|>{{% endfor %}}\
         {{% for m in messages %}}<|begin|>{{{{ m.role }}}}{{% if m.tool_calls %}}<|tool_calls|>{EACH_CALL}<|tool_call:begin|>\
         {{{{ c.id }}}}<|tool_call:name|>{{{{ f.name }}}}<|tool_call:args|>{{{{ f.arguments | tojson }}}}<|tool_call:end|>\
         {{% endfor %}}<|calls|>{{% else %}}<|content|>{{{{ m.content }}}}<|end|>{{% endif %}}{{% endfor %}}\
         {{% if add_generation_prompt %}}<|begin|>assistant{{% endif %}}"
    );
    let form = form_of(&source);
    assert_eq!((name_of(&form), form.thinking), ("solar", None));
    let calls = "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get<|tool_call:args|>{\"city\": \"a\"}<|tool_call:end|>\
        <|tool_call:begin|>f6<|tool_call:name|>get_time<|tool_call:args|>{}<|tool_call:end|><|calls|>";
    let expected = ["~Hm.", r#"get({"city": "a"})"#, "get_time({})"];
    check_answer(&form, calls, &expected[1..]);
    check_answer(&form, &format!("<|think|>Hm.<|end|><|begin|>assistant{calls}"), &expected);
    check_answer(&form, "<|think|>Hm.<|end|><|begin|>assistant<|content|>It is late.<|end|>", &["~Hm.", "It is late."]);
    check_answer(&form, "<|think|>Hm. <b> an", &["~Hm. <b> an"]);
    let both = format!("<|content|>Let me look.<|end|><|begin|>assistant{calls}");
    check_answer(&form, &both, &["Let me look.", expected[1], expected[2]]);
    let id = form.new_id("get", 0);
    assert!(id.len() == 10 && id.chars().all(|c| c.is_ascii_digit() || c.is_ascii_lowercase()), "{id}");
    // Without tools, thoughts and content are read all the same.
    let without_tools = AnswerForm { tools: Tools::default().into(), ..form };
    check_form(&without_tools, "<|think|>Hm.<|end|><|begin|>assistant<|content|>Hi", &["~Hm.", "Hi"]);
}

/// The answers of `tests/tool_parsers/test_hyperclovax_seed_think_14b_tool_parser.py` of vLLM, with the headers of the
/// chat template that is beside vLLM's examples. The models with 32B write calls in GLM's form.
#[test]
fn hyperclova_x_has_headers() {
    let source = format!(
        "{{% if tools %}}<|im_start|>tool_list\n{{{{ tools | tojson }}}}<|im_end|>\n{{% endif %}}\
         {{% for m in messages %}}<|im_start|>{{{{ m.role }}}}{{% if m.tool_calls %}} -> tool/function_call\n[{EACH_CALL}\
         {{\"name\": \"{{{{ f.name }}}}\", \"arguments\": {{{{ f.arguments | tojson }}}}}}{{% endfor %}}]{{% else %}}\n\
         {{{{ m.content }}}}{{% endif %}}<|im_end|>\n{{% endfor %}}{{% if add_generation_prompt %}}<|im_start|>assistant{{% endif %}}"
    );
    let form = form_of(&source);
    assert_eq!(name_of(&form), "hyperclova");
    let calls = " -> tool/function_call\n[{\"name\": \"get\", \"arguments\": {\"city\": \"Seoul\"}}, \
        {\"name\": \"get_time\", \"parameters\": {\"y\": 2}}]<|im_end|>";
    let expected = ["~Hm.", r#"get({"city": "Seoul"})"#, r#"get_time({"y": 2})"#];
    check_answer(&form, calls, &expected[1..]);
    check_answer(&form, &format!("/think\nHm.<|im_end|>\n<|im_start|>assistant{calls}"), &expected);
    let text = format!("/think\nHm.<|im_end|>\n<|im_start|>assistant\nSure.<|im_end|>\n<|im_start|>assistant{calls}");
    check_answer(&form, &text, &["~Hm.", "Sure.", expected[1], expected[2]]);
    check_answer(&form, "/think\nHm.<|im_end|>\n<|im_start|>assistant\nHi", &["~Hm.", "Hi"]);
    check_answer(&form, "\nI cannot find it.\n/think<|im_end|>", &["I cannot find it.\n/think"]);
    check_answer(&form, "/thinking", &["/thinking"]);
    check_answer(&form, "-> tool/get\n{\"city\": \"Seoul\"}", &["-> tool/get\n{\"city\": \"Seoul\"}"]);
}

/// The form of vLLM's `iquest_coder_tool_parser.py`: Qwen Coder's, with line breaks between calls.
#[test]
fn iquest_coder_writes_calls_of_qwen_coder() {
    let calls = format!(
        "{EACH_CALL}\n<tool_call>\n<function={{{{ f.name }}}}>\n{{% for k, v in f.arguments.items() %}}\
         <parameter={{{{ k }}}}>\n{{{{ v }}}}\n</parameter>\n{{% endfor %}}</function>\n</tool_call>{{% endfor %}}"
    );
    let form = form_of(&template("# Tools\n", &calls, ""));
    assert_eq!(name_of(&form), "qwen-coder");
    let text = "\n<tool_call>\n<function=get>\n<parameter=city>\nx\n</parameter>\n<parameter=days>\n5\n</parameter>\n</function>\n\
        </tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>\n";
    check_answer(&form, text, &[r#"get({"city": "x", "days": 5})"#, "get_time({})"]);
}
