//! Tests features of templates against the output of Python's Jinja.

use serde_json::json;

use super::*;

fn compile(source: &str) -> ChatTemplate {
    let special_tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let special_tokens = special_tokens.map(|(name, token)| (name.to_owned(), token.to_owned()));
    ChatTemplate::compile(source, special_tokens.into()).unwrap()
}

fn messages(messages: Json) -> Vec<Map<String, Json>> {
    serde_json::from_value(messages).unwrap()
}

fn inputs() -> ChatInputs {
    ChatInputs {
        messages: messages(json!([{"role": "user", "content": "hi"}])),
        now: jiff::civil::date(2026, 3, 7).at(9, 5, 2, 0),
        ..ChatInputs::default()
    }
}

fn render(source: &str, inputs: &ChatInputs) -> Result<String, ChatTemplateError> {
    compile(source).render(inputs)
}

fn check(source: &str, expected: &str) {
    assert_eq!(render(source, &inputs()).as_deref(), Ok(expected), "{source}");
}

/// Checks a template with a variable `x`.
fn check_with(x: &Json, source: &str, expected: &str) {
    let inputs = ChatInputs { variables: Map::from_iter([("x".to_owned(), x.clone())]), ..inputs() };
    assert_eq!(render(source, &inputs).as_deref(), Ok(expected), "{source} with {x}");
}

#[test]
fn the_context_is_that_of_transformers() {
    check("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}", "<s>hi</s>");
    check(
        "{{ add_generation_prompt }} {{ tools is none }} {{ documents }} {{ nothing is defined }}",
        "True True None False",
    );
    let variables = Map::from_iter([("bos_token".to_owned(), json!("<b>")), ("messages".to_owned(), json!(7))]);
    let given = ChatInputs { variables, ..inputs() };
    assert_eq!(render("{{ bos_token }}{{ messages | length }}", &given).as_deref(), Ok("<b>1"));
}

#[test]
fn white_space_is_that_of_transformers() {
    check("{% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb");
    check("  {# x #}\n{%- if true -%}  a  {%- endif %}  \n", "a  ");
    check("a\r\nb\r\n", "a\nb");
    check("{% for i in [1, 2] %}\n    {%- if i == 2 %}{% break %}{% endif %}\n{{ i }}\n{% endfor %}", "1\n");
    check("{% generation %}\nx\n{% set y = 1 %}\n{% endgeneration %}\n{{ y }}", "x\n");
}

#[test]
fn values_are_printed_as_python_does() {
    let x = json!({"b": [1, 2.0, "it's"], "a": {"é": null, "t": true}});
    check_with(&x, "{{ x }}", r#"{'b': [1, 2.0, "it's"], 'a': {'é': None, 't': True}}"#);
    check_with(&x, "{{ x.b | join(', ') }} {{ x.a | string | length }}", "1, 2.0, it's 22");
    check_with(&x, "{{ x.b[1:] }}{{ x.b[::-1] }}", r#"[2.0, "it's"]["it's", 2.0, 1]"#);
    check(
        "{{ none }} {{ true }} {{ undefined_name }} {{ 1e16 }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 1 < 2 }}",
        "None True  1e+16 3 3.5 True",
    );
}

#[test]
fn json_is_that_of_python() {
    let x = json!({"z": "<é'\"\n\u{7f}\u{1}>", "a": [1, 1.0, true, null, {}, []]});
    check_with(&x, "{{ x | tojson }}", "{\"z\": \"<é'\\\"\\n\u{7f}\\u0001>\", \"a\": [1, 1.0, true, null, {}, []]}");
    check_with(&x, "{{ x.z | tojson(ensure_ascii=True) }}", r#""<\u00e9'\"\n\u007f\u0001>""#);
    check_with(&json!({"b": [1], "a": {}}), "{{ x | tojson(indent=2) }}", "{\n  \"b\": [\n    1\n  ],\n  \"a\": {}\n}");
    check_with(
        &json!({"b": [1, 2], "a": 1}),
        "{{ x | tojson(separators=(',', ':'), sort_keys=true) }}",
        r#"{"a":1,"b":[1,2]}"#,
    );
    check_with(&json!([1]), "{{ x | tojson(indent='\t') }}", "[\n\t1\n]");
    check_with(&json!([1, 2, 3]), "{{ x[1:] | tojson }}{{ '🦜' | tojson(true) }}", "[2, 3]\"\\ud83e\\udd9c\"");
    assert!(matches!(render("{{ x | tojson }}", &inputs()), Err(ChatTemplateError::Failed(_))));
}

#[test]
fn methods_of_python_are_there() {
    for (expression, expected) in [
        ("' a '.strip() + 'xax'.strip('x') + ' a'.lstrip() + 'aa'.rstrip('a')", "aaa"),
        ("'a, b'.split(', ') | join('|') + 'a b  c '.split(none, 1) | join('|')", "a|ba|b  c "),
        ("'a b c'.rsplit(' ', 1) | join('|') + ' a b '.rsplit() | join('|')", "a b|ca|b"),
        ("'a b c'.split(maxsplit=1)[1] ~ 'a-b'.partition('-')[2]", "b cb"),
        ("'é<x>y'.find('<x>') ~ 'é<x>y<x>'.rfind('<x>') ~ 'a'.find('b') ~ 'aba'.find('a', 1)", "15-12"),
        ("'é</t>z'[:'é</t>z'.find('</t>')]", "é"),
        ("'abc'.startswith('ab') ~ 'abc'.endswith(('x', 'c')) ~ ''.isdigit() ~ '7'.isdigit()", "TrueTrueFalseTrue"),
        ("'a\\nb\\r\\nc'.splitlines() | length ~ 'ab'.removeprefix('a') ~ 'ab'.removesuffix('b')", "3ba"),
        ("'{} and {}'.format('a', 1) ~ 'aXbX'.replace('X', '-') ~ 'aXbX'.replace('X', '', 1)", "a and 1a-b-abX"),
        ("'a'.upper() ~ 'B'.lower() ~ 'cd'.capitalize() ~ 'ef gh'.title() ~ 'aba'.count('a')", "AbCdEf Gh2"),
        ("[1, 2].index(2) ~ [1, 1][0:].count(1)", "12"),
    ] {
        check(&format!("{{{{ {expression} }}}}"), expected);
    }
    let x = json!({"items": 1, "b": null});
    check_with(&x, "{% for k, v in x.items() %}{{ k }}={{ v }} {% endfor %}", "items=1 b=None ");
    check_with(&x, "{{ x.get('c') }} {{ x.get('c', 2) }} {{ x.get('b', 2) }} {{ x['items'] }}", "None 2 None 1");
    check_with(&x, "{{ x.keys() | list }} {{ x.values() | list }}", "['items', 'b'] [1, None]");
    for change in ["x.pop('b')", "x.update({})", "[].append(1)"] {
        let given = ChatInputs { variables: Map::from_iter([("x".to_owned(), x.clone())]), ..inputs() };
        assert!(
            matches!(render(&format!("{{{{ {change} }}}}"), &given), Err(ChatTemplateError::Failed(_))),
            "{change}"
        );
    }
}

#[test]
fn filters_and_tests_are_those_of_jinja() {
    for (expression, expected) in [
        ("'s' is sequence and {} is sequence and [] is iterable and 's' is iterable", "True"),
        ("none is iterable or 1 is sequence or 1 is iterable", "False"),
        ("true is number and 1 is number and 1 is integer and not true is integer", "True"),
        ("raise_exception is callable and not 's' is callable", "True"),
        ("'a\\n\\nb\\n' | indent(2)", "a\n\n  b\n"),
        ("'a\\nb' | indent('> ', first=True)", "> a\n> b"),
        ("'a\\n\\nb' | indent(width=1, blank=True)", "a\n \n b"),
        ("x | length ~ x | trim ~ x | join ~ x | list | length ~ x | items | list", "00[]"),
        ("'7' | int + 'x' | int + 'x' | int(5)", "12"),
        ("' \\x1f a' | trim ~ 'xax' | trim('x') ~ none | trim ~ 'aa' | replace('a', 'b', 1)", "aaNoneba"),
        ("[{'n': 1}, {'n': 2}] | map(attribute='n') | join('-') ~ [{'n': 1}] | join(attribute='n')", "1-21"),
        ("[{'r': 'a'}, {'r': 'b'}] | selectattr('r', 'equalto', 'b') | list", "[{'r': 'b'}]"),
        ("{'b': 1, 'A': 2} | dictsort | map('first') | join", "Ab"),
        ("['aB', none] | upper ~ 'aB' | lower ~ 'éB c' | capitalize ~ 'aB cD' | title", "['AB', NONE]abÉb cAb Cd"),
        ("'' | default('x', true) ~ x | default('y') ~ '<' | safe", "xy<"),
    ] {
        check(&format!("{{{{ {expression} }}}}"), expected);
    }
}

#[test]
fn statements_of_jinja_work() {
    check("{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3");
    check("{% macro f(a, b='y') %}{{ a }}{{ b }}{% endmacro %}{{ f('x') ~ f('x', b=1) }}", "xyx1");
    check(
        "{% for c in 'abc' if c != 'b' %}{{ loop.index }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.last }} {% endfor %}",
        "1cFalse 2aTrue ",
    );
    check(
        "{% set x %}a{% endset %}{% set y = 'b' if false %}{{ x }}{{ y }}{% for i in x.y %}{% else %}e{% endfor %}",
        "ae",
    );
}

#[test]
fn time_is_an_argument() {
    check(
        "{{ strftime_now('%d %b %Y|%Y-%m-%d %H:%M:%S|%B %-d|%A|%Y年%p') }}",
        "07 Mar 2026|2026-03-07 09:05:02|March 7|Saturday|2026年AM",
    );
    let error = render("{{ strftime_now('%!') }}", &inputs()).unwrap_err().to_string();
    assert!(error.contains("strftime_now(\"%!\")"), "{error}");
}

#[test]
fn errors_have_the_templates_own_sentence_or_place() {
    let raises =
        "{% macro f() %}{{ raise_exception('Roles must alternate: ' ~ messages[0].role) }}{% endmacro %}{{ f() }}";
    assert_eq!(render(raises, &inputs()), Err(ChatTemplateError::Raised("Roles must alternate: user".to_owned())));
    let error = render("\n{{ nothing.at_all }}", &inputs()).unwrap_err().to_string();
    insta::assert_snapshot!(error, @"undefined value (in chat template:2)");
    for source in ["{% for %}", "{{ x", "{% endif %}"] {
        assert!(matches!(ChatTemplate::compile(source, SpecialTokens::new()), Err(ChatTemplateError::Unreadable(_))));
    }
}

#[test]
fn no_template_runs_for_ever() {
    // A template is also rendered when it is compiled, with other messages; the condition leaves it empty there.
    let when_asked = |source: &str| format!("{{% if messages[0].content == 'hi' %}}{source}{{% endif %}}");
    let endless = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}";
    assert_eq!(render(&when_asked(endless), &inputs()), Err(ChatTemplateError::TooManySteps));
    assert_eq!(ChatTemplate::compile(endless, SpecialTokens::new()).err(), Some(ChatTemplateError::TooManySteps));
    assert!(render("{{ 'x' * 99999999999 }}", &inputs()).is_err());
    // minijinja panics in this case.
    assert!(matches!(render("{{ [][::-1] }}", &inputs()), Err(ChatTemplateError::Failed(_))));
    assert!(render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", &inputs()).is_err());
}

#[test]
fn messages_come_without_nulls_and_with_reasoning_under_all_names() {
    let given = json!([{"role": "assistant", "content": null, "tool_calls": null, "thinking": "t", "reasoning": null}]);
    let inputs = ChatInputs { messages: messages(given), ..inputs() };
    let source = "{{ messages[0].content is defined }}{{ messages[0].reasoning_content }}{{ messages[0].thinking }}";
    assert_eq!(render(source, &inputs).as_deref(), Ok("Falsett"));
}

#[test]
fn the_last_message_can_be_continued() {
    let template = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}</s>{% endfor %}{% if add_generation_prompt %}!{% endif %}";
    let keeps = template.replace(" | trim", "");
    let parts = template.replace("m.content", "m.content[0].text");
    let render_last = |source: &str, content: Json| {
        let messages =
            messages(json!([{"role": "user", "content": content}, {"role": "assistant", "content": content}]));
        render(source, &ChatInputs { messages, ending: ChatEnding::FinalMessage, ..inputs() })
    };
    assert_eq!(render_last(template, json!("so ")).as_deref(), Ok("[user]so</s>[assistant]so"));
    assert_eq!(render_last(&keeps, json!("so ")).as_deref(), Ok("[user]so </s>[assistant]so "));
    assert_eq!(
        render_last(&parts, json!([{"type": "text", "text": "so"}])).as_deref(),
        Ok("[user]so</s>[assistant]so")
    );
    assert_eq!(render_last(template, json!(null)), Err(ChatTemplateError::NothingToContinue));
    assert_eq!(render_last("{{ messages[0].content }}", json!("so")), Err(ChatTemplateError::NotContinued));
}

#[test]
fn messages_take_the_shape_that_the_template_reads() {
    let given = json!([
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
    ]);
    let render = |source: &str| {
        let knows_tools = "{% for t in tools or [] %}{{ t }}[TOOL_CALLS]{% endfor %}";
        compile(&[source, knows_tools].concat())
            .render_adapted(ChatInputs { messages: messages(given.clone()), ..inputs() })
            .unwrap()
            .text
    };
    let calls = "{% for c in messages[-1].tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}";
    assert_eq!(render(&["{{ messages[0].content }}", calls].concat()), "ab{\"x\": 1}");
    let reads_parts = "{% for p in messages[0].content %}({{ p.text }}){% endfor %}";
    let given_text = ChatInputs { messages: messages(json!([{"role": "user", "content": "ab"}])), ..inputs() };
    assert_eq!(compile(reads_parts).render_adapted(given_text).unwrap().text, "(ab)");
    let plain_calls = "{% for c in messages[-1].tool_calls or [] %}{{ '' + c.function.arguments }}{% endfor %}";
    assert_eq!(render(&[reads_parts, plain_calls].concat()), "(a)(b){\"x\": 1}");
}

#[test]
fn the_bytes_of_a_conversation_are_those_of_its_texts() {
    let object = |value: Json| value.as_object().cloned().unwrap();
    let inputs = ChatInputs {
        messages: vec![object(json!({"role": "user", "content": [{"text": "x".repeat(1000)}]}))],
        tools: Some(vec![json!({"name": "y".repeat(200)})]),
        documents: Some(vec![json!("z".repeat(30))]),
        variables: object(json!({"w": "w".repeat(5000)})),
        ..ChatInputs::default()
    };
    assert!((6230..6300).contains(&inputs.num_bytes()), "{}", inputs.num_bytes());
}
