//! Tests templates that take all memory or time, or nest values without end. Each costs its own conversation alone.

use std::path::Path;

use rustix::process::{Pid, kill_process};
use serde_json::{Map, json};
use test_support::exit_status;

use super::*;
use crate::text::caller::Caller;
use crate::text::chat_template::{ChatInputs, ChatTemplate, SpecialTokens};

fn inputs(content: &str) -> ChatInputs {
    let message = Map::from_iter([("role", "user"), ("content", content)].map(|(k, v)| (k.to_owned(), json!(v))));
    ChatInputs { messages: vec![message], ..ChatInputs::default() }
}

/// Compiles a template that renders `source` for the message `hostile`, and other messages as they are.
fn compile_conditional(source: &str) -> ChatTemplate {
    let source = format!(
        "{{% if messages[0].content == 'hostile' %}}{source}{{% else %}}{{{{ messages[0].content }}}}{{% endif %}}"
    );
    let mut template = ChatTemplate::compile(&source, SpecialTokens::new()).unwrap();
    template.template.limits.seconds = 2;
    template
}

/// Returns the error of a hostile template, after which the same template renders an honest conversation.
fn error_of_hostile(source: &str) -> ChatTemplateError {
    let template = compile_conditional(source);
    let error = template.render(&inputs("hostile")).map(|text| text.len()).expect_err(source);
    assert_eq!(template.render(&inputs("é")).as_deref(), Ok("é"), "{source}");
    error
}

fn set_often(times: u32, start: &str, step: &str, end: &str) -> String {
    format!(
        "{{% set ns = namespace(x={start}, y={start}) %}}{{% for i in range({times}) %}}{{% for j in range(1000) %}}\
         {step}{{% endfor %}}{{% endfor %}}{end}"
    )
}

fn set_40_times(start: &str, step: &str, end: &str) -> String {
    format!("{{% set ns = namespace(x={start}, y={start}) %}}{{% for i in range(40) %}}{step}{{% endfor %}}{end}")
}

#[test]
fn templates_that_fill_the_memory_fail_alone() {
    for source in [
        "{{ 'a\\nb' | indent(100000000000) }}".to_owned(),
        "{{ [1] | tojson(indent=1000000000000) }}".to_owned(),
        "{{ [[[1]]] | tojson(indent=30000000) }}".to_owned(),
        "{{ ([0] * 10000000000) | tojson }}".to_owned(),
        "{{ ([0] * 10000000000) | list }}".to_owned(),
        "{{ '%100000000000s' | format('a') }}".to_owned(),
        "{% for i in range(10000) %}{{ 'x' * 100000 }}{% endfor %}".to_owned(),
        set_40_times("'a'", "{% set ns.x = ns.x ~ ns.x %}", ""),
        set_40_times("'a'", "{% set ns.x = ns.x + ns.x %}", ""),
        set_40_times("'a'", "{% set ns.x = ns.x * 2 %}", ""),
        set_40_times("'é'", "{% set ns.x = ns.x | replace('é', 'éééééééééé') %}", ""),
        set_40_times("'a'", "{% set ns.x = ns.x.replace('a', 'aaaaaaaaaa') %}", ""),
        set_40_times("'a\\nb'", "{% set ns.x = ns.x | indent(ns.x, first=true) %}", ""),
        set_40_times("'a'", "{% set ns.x = [ns.x, ns.x] | join(ns.x) %}", ""),
        set_40_times("'a'", "{% set ns.x = ns.x.join([ns.x, ns.x]) %}", ""),
        set_40_times("'a'", "{% set ns.x = '%s%s' | format(ns.x, ns.x) %}", ""),
        set_40_times("'a'", "{% set ns.x = '{}{}'.format(ns.x, ns.x) %}", ""),
        set_40_times("'a'", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}", ""),
        set_40_times("[1]", "{% set ns.x = (ns.x + ns.x) | list %}", ""),
        set_40_times("[1]", "{% set ns.x = ns.x + ns.x %}", "{{ ns.x | list }}"),
        set_40_times("['x' * 99999]", "{% set ns.x = [ns.x, ns.x] %}", "{{ ns.x }}"),
        set_40_times("['x' * 99999]", "{% set ns.x = [ns.x, ns.x] %}", "{{ ns.x | tojson }}"),
        set_40_times("['x' * 99999]", "{% set ns.x = [ns.x, ns.x] %}", "{{ ns.x ~ 'x' }}"),
        set_40_times("['x' * 99999]", "{% set ns.x = {'a': ns.x, 'b': ns.x} %}", "{{ ns.x | string }}"),
    ] {
        let error = error_of_hostile(&source);
        assert!(matches!(error, ChatTemplateError::TooMuchMemory { .. }), "{error:?} of {source}");
    }
}

#[test]
fn values_without_end_fail_alone() {
    for source in [
        set_often(1000, "[]", "{% set ns.x = [ns.x] %}", "x"),
        set_often(1000, "[]", "{% set ns.x = {'a': ns.x} %}", "{{ ns.x == ns.y }}"),
        set_often(1000, "[]", "{% set ns.x = [ns.x] | batch(1) | list %}", "x"),
        set_often(1000, "[1]", "{% set ns.x = ns.x * 1 %}", "{{ ns.x | list }}"),
        set_often(1000, "[1]", "{% set ns.x = namespace(x=ns.x) %}", "x"),
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns ~ 'x' }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x ~ 'x' }}".to_owned(),
    ] {
        let error = error_of_hostile(&source);
        assert!(matches!(error, ChatTemplateError::TooMuchMemory { .. }), "{error:?} of {source}");
    }
}

#[test]
fn steps_that_take_long_fail_alone() {
    let long = set_40_times("['x']", "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}", "");
    for source in [
        format!("{long}{{{{ ns.x == ns.y }}}}"),
        format!("{long}{{{{ [ns.x, ns.y] | sort | length }}}}"),
        format!("{long}{{{{ ns.x in [ns.y] }}}}"),
        set_often(20, "[1]", "{% set ns.x = ns.x[0:9] %}", "{{ ns.x | list }}"),
        format!("{long}{{{{ {{ns.x: 1}} | length }}}}"),
        "{% set x = 'a' * 8000000 %}{% for i in range(90000) %}{% if 'b' in x %}{% endif %}{% endfor %}".to_owned(),
        "{% set x = 'a' * 8000000 %}{% for i in range(90000) %}{% if x.find('b') > 0 %}{% endif %}{% endfor %}"
            .to_owned(),
    ] {
        let error = error_of_hostile(&source);
        assert_eq!(error, ChatTemplateError::TooMuchTime { seconds: 2 }, "{source}");
    }
    insta::assert_snapshot!(
        ChatTemplateError::TooMuchTime { seconds: MAX_SECONDS },
        @"rendering the conversation takes more than 5 s of processor time"
    );
}

#[test]
fn a_template_that_is_hostile_from_the_start_is_not_compiled() {
    let compile = |source: &str| ChatTemplate::compile(source, SpecialTokens::new()).map(drop);
    let bomb = set_40_times("'a'", "{% set ns.x = ns.x ~ ns.x %}", "");
    assert!(matches!(compile(&bomb), Err(ChatTemplateError::TooMuchMemory { .. })));
    let for_tools = format!("{{% if tools %}}{bomb}{{% endif %}}");
    assert!(matches!(compile(&for_tools), Err(ChatTemplateError::TooMuchMemory { .. })));
    for source in [format!("{{{{ x{} }}}}", ".a".repeat(400_000)), format!("{{{{ 1{} }}}}", "+1".repeat(400_000))] {
        let error = compile(&source).unwrap_err();
        assert!(error.ends_start(), "{error:?}");
    }
    let large = compile(&"x".repeat(MAX_SOURCE_BYTES + 1)).unwrap_err().to_string();
    insta::assert_snapshot!(
        large,
        @"the chat template cannot be read: it has 1048577 bytes; at most 1048576 are allowed"
    );
}

#[test]
fn memory_is_the_share_of_the_thread_and_of_the_inputs() {
    let mut template = compile_conditional("{{ messages[0].role[:1] * 20000000 }}");
    assert_eq!(template.render(&inputs("hostile")).map(|text| text.len()), Ok(20_000_000));
    template.limit_memory(0);
    let error = template.render(&inputs("hostile")).unwrap_err().to_string();
    insta::assert_snapshot!(
        error,
        @"rendering the conversation takes more than 16 MiB of memory, or nests values too deeply"
    );
    // The text of a long conversation needs no share.
    let long = "é".repeat(5_000_000);
    assert_eq!(template.render(&inputs(&long)).as_ref(), Ok(&long));
    template.limit_memory(usize::MAX);
    assert_eq!(template.template.limits.memory_bytes, MAX_MEMORY_BYTES);
}

#[test]
fn the_sentence_of_an_error_is_cut() {
    let template = compile_conditional("{{ raise_exception('é' * 100000) }}");
    let error = template.render(&inputs("hostile")).unwrap_err();
    assert_eq!(error, ChatTemplateError::Raised("é".repeat(8 << 10)));
}

#[test]
fn a_rendering_ends_when_its_client_leaves() {
    let long = set_40_times("['x']", "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}", "");
    let mut template = compile_conditional(&format!("{long}{{{{ ns.x == ns.y }}}}"));
    template.template.limits.seconds = 600;
    let caller = Caller::default();
    let view = caller.view();
    drop(caller);
    let error = view.during(|| template.render(&inputs("hostile"))).unwrap_err();
    assert_eq!(error, ChatTemplateError::Failed("the client has left".to_owned()));
    assert_eq!(template.render(&inputs("x")).as_deref(), Ok("x"));
}

#[test]
fn a_child_that_was_killed_is_replaced() {
    let template = compile_conditional("");
    assert_eq!(template.render(&inputs("x")).as_deref(), Ok("x"));
    let first = own_child();
    kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    RENDERERS.with_borrow_mut(|renderers| exit_status(&mut renderers[0].child, "the child"));
    assert_eq!(template.render(&inputs("y")).as_deref(), Ok("y"));
    assert_ne!(own_child(), first);
}

#[test]
fn children_end_with_their_thread() {
    let thread = std::thread::spawn(|| {
        for _ in 0..3 {
            compile_conditional("");
        }
        RENDERERS.with_borrow(|renderers| renderers.iter().map(|renderer| renderer.child.id()).collect::<Vec<_>>())
    });
    let children = test_support::join(thread, "the end of the thread");
    assert_eq!(children.len(), MAX_KEPT);
    for child in children {
        assert!(!Path::new(&format!("/proc/{child}")).exists(), "{child}");
    }
}

fn own_child() -> i32 {
    RENDERERS.with_borrow(|renderers| i32::try_from(renderers[0].child.id()).unwrap())
}
