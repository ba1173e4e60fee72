//! Tests that the format of a family of models is recognized in a chat template like that of the family, and that
//! answers in the forms of the family's documentation are read, however they are cut into pieces.

use serde_json::{Map, Value as Json, json};

use super::tests::{check_form, tools};
use super::*;
use crate::text::chat_template::{ChatInputs, ChatTemplate, SpecialTokens};

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
