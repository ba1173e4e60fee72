//! Random texts made of the parts of formats are read alike, however they are cut into pieces.

use proptest::prelude::*;

use super::AnswerEvent;
use super::form::FORMATS;
use super::tests::{form, read};

/// Parts of formats.
const PARTS: &[&str] = &[
    " ",
    "\n",
    "a",
    "{",
    "}",
    "[",
    "]",
    ",",
    ";",
    ":",
    "\"",
    "\\",
    "é",
    "<",
    "</",
    "1",
    "(",
    ")",
    "=",
    "'",
    "```",
    "```tool_code\n",
    "get",
    "get_time",
    "\"name\"",
    "\"name\": \"get\"",
    "\"arguments\": {",
    "\"parameters\"",
    "{\"name\": \"get\", \"arguments\": {}}",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|tool_call|>",
    "<|/tool_call|>",
    "<function=get>",
    "<parameter=city>",
    "</parameter>",
    "</function>",
    "<|python_tag|>",
    "<|python_start|>",
    "<|python_end|>",
    "[get(",
    "<|tool_call>",
    "call:get{",
    "<escape>",
    "<start_function_call>",
    "<end_function_call>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "json",
    "function",
    "<｜tool▁call▁end｜>",
    "<arg_key>city</arg_key>",
    "<arg_key>",
    "<arg_value>",
    "<tool_calls>",
    "</tool_calls:opensource>",
    "<tool_call:opensource>",
    "<tool_sep>",
    "</arg_value:opensource>",
    "</arg_value>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<invoke name=\"get\">",
    "<parameter name=\"city\">",
    "</invoke>",
    "<|start|>",
    "<|channel|>",
    "analysis",
    "<|message|>",
    "<|end|>",
    "commentary to=functions.get ",
    "<|START_ACTION|>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>functions.get:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "functools",
    "print(get(",
    "<function_calls>",
    "</function_calls>",
    "<TOOLCALL>",
    "</TOOLCALL>",
    "<|action_start|><|plugin|>",
    "<|action_end|>",
    "<longcat_tool_call>",
    "<longcat_arg_key>city</longcat_arg_key>",
    "</longcat_tool_call>",
    "<dots_function_call>",
    "<｜tool_call_begin｜>",
    "function<｜tool_sep｜>",
    "<steptml:invoke name=\"get\">",
    "<steptml:parameter name=\"city\">",
    "</steptml:invoke>",
    "<｜tool_call_end｜>",
    "<|begin|>assistant",
    "<|think|>",
    "<|tool_call:begin|>a1",
    "<|tool_call:name|>",
    "<|tool_call:args|>",
    "<|tool_call:end|>",
    "<|im_start|>assistant",
    "<|im_end|>",
    "/think\n",
    " -> tool/function_call\n",
];

/// Random texts made of the parts of formats, valid and broken.
fn texts() -> impl Strategy<Value = Vec<&'static str>> {
    prop::collection::vec(prop::sample::select(PARTS), 0..14)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pieces_make_no_difference(parts in texts(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6), thinks in any::<bool>()) {
        let text = parts.concat();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| text.floor_char_boundary(cut.index(text.len() + 1))).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
        for format in FORMATS.iter().map(|format| format.name).chain(["generic"]) {
            let form = form(format, if thinks { "</think>" } else { "" }, "");
            let whole = read(&form, [text.as_str()]);
            prop_assert_eq!(&read(&form, pieces.iter().copied()), &whole, "{}: {:?}", format, pieces);
            let started = whole.iter().filter(|event| matches!(event, AnswerEvent::CallStarted { .. })).count();
            let ended = whole.iter().filter(|event| matches!(event, AnswerEvent::CallEnded)).count();
            prop_assert_eq!(started, ended);
        }
    }

    #[test]
    fn text_without_marks_is_content(text in "[ \\na-z{}\\[\\]\",:é]{0,40}") {
        let form = form("hermes", "</think>", "");
        let expected = if text.is_empty() { vec![] } else { vec![AnswerEvent::Content(text.clone())] };
        prop_assert_eq!(read(&form, text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()])), expected);
    }
}
