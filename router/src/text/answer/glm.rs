//! Calls of GLM 4.5 and later, Hunyuan 3 and LongCat: the name after `<tool_call>`, then a key and an unquoted value
//! between tags for each parameter. The tool's schema says what type a value has.
//!
//! Hunyuan 3 has all calls between `<tool_calls>` and its closing mark, and `<tool_sep>` after the name. Published
//! models of Hunyuan have marks such as `<tool_call:opensource>`. LongCat has marks such as `<longcat_tool_call>`, and
//! a JSON object may replace the name and the parameters of a call.

use serde_json::Value as Json;

use super::call::{Arguments, CallSyntax, Head, Tail};
use super::json_calls;
use super::scan::{Cursor, Scan};
use super::tools::{Tool, Tools};

const CALLS: [&str; 2] = ["<tool_calls>", "<tool_calls:opensource>"];
const CALLS_END: [&str; 2] = ["</tool_calls>", "</tool_calls:opensource>"];
const CALL: [&str; 2] = ["<tool_call>", "<tool_call:opensource>"];
const CALL_END: [&str; 3] = ["</tool_call>", "</tool_call:opensource>", LONGCAT_CALL_END];
const SEPARATOR: [&str; 2] = ["<tool_sep>", "<tool_sep:opensource>"];
const KEY: [&str; 3] = ["<arg_key>", "<arg_key:opensource>", "<longcat_arg_key>"];
const KEY_END: [&str; 3] = ["</arg_key>", "</arg_key:opensource>", "</longcat_arg_key>"];
const VALUE: [&str; 3] = ["<arg_value>", "<arg_value:opensource>", "<longcat_arg_value>"];
const VALUE_END: [&str; 3] = ["</arg_value>", "</arg_value:opensource>", "</longcat_arg_value>"];
pub(super) const LONGCAT_CALL: &str = "<longcat_tool_call>";
pub(super) const LONGCAT_CALL_END: &str = "</longcat_tool_call>";
pub(super) const MARKS: [&str; 5] = [CALL_END[0], KEY[0], KEY_END[0], VALUE[0], VALUE_END[0]];
pub(super) const HUNYUAN_OPENERS: [&str; 4] = [CALLS[0], CALLS[1], CALL[0], CALL[1]];
pub(super) const HUNYUAN_MARKS: [&str; 14] = [
    CALLS_END[0],
    CALLS_END[1],
    CALL_END[0],
    CALL_END[1],
    SEPARATOR[0],
    SEPARATOR[1],
    KEY[0],
    KEY[1],
    KEY_END[0],
    KEY_END[1],
    VALUE[0],
    VALUE[1],
    VALUE_END[0],
    VALUE_END[1],
];

pub(super) const LONGCAT_MARKS: [&str; 5] = [LONGCAT_CALL_END, KEY[2], KEY_END[2], VALUE[2], VALUE_END[2]];
pub(super) const LONGCAT_SYNTAX: CallSyntax = CallSyntax {
    begin: "",
    before_name: "<longcat_tool_call>\n{\"name\": \"",
    before_arguments: "\", \"arguments\": ",
    after_arguments: "}\n</longcat_tool_call>",
    separator: "\n",
    end: "",
};

pub(super) fn head(opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    cursor.skip_space();
    if CALLS.contains(&opener) {
        cursor.eat_any(&CALL)?;
        cursor.skip_space();
    }
    let after_name = [&["\n", " "], &KEY[..], &CALL_END, &SEPARATOR].concat();
    let name = cursor.tool(tools, &after_name)?.name.clone();
    cursor.skip_space();
    cursor.eats_any(&SEPARATOR)?;
    cursor.skip_space();
    cursor.clone().eat_any(&[KEY, CALL_END].concat())?;
    Ok(Head::Call { name, arguments: Arguments::Parameters(parameter) })
}

/// Reads one parameter; returns `None` after the last one.
fn parameter(cursor: &mut Cursor<'_>, tool: &Tool) -> Scan<Option<(String, Json)>> {
    cursor.skip_space();
    if cursor.eats_any(&CALL_END)? {
        return Ok(None);
    }
    cursor.eat_any(&KEY)?;
    let name = cursor.until_any(&KEY_END)?.trim().to_owned();
    cursor.skip_space();
    cursor.eat_any(&VALUE)?;
    let value = tool.value(&name, cursor.until_any(&VALUE_END)?);
    Ok(Some((name, value)))
}

/// Reads nothing, because the closing mark was read after the last parameter.
pub(super) fn tail(_cursor: &mut Cursor<'_>) -> Scan<Tail> {
    Ok(Tail::Text)
}

/// Reads the mark after all calls of Hunyuan 3, if it is there.
pub(super) fn hunyuan_tail(cursor: &mut Cursor<'_>) -> Scan<Tail> {
    cursor.skip_space();
    cursor.eats_any(&CALLS_END)?;
    Ok(Tail::Text)
}

/// As [`head`], or reads a JSON object up to its arguments.
pub(super) fn longcat_head(opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    cursor.skip_space();
    if cursor.peek()? == '{' { json_calls::head(opener, cursor, tools) } else { head(opener, cursor, tools) }
}

/// Reads the rest of the call if a bracket or another key shows that it is a JSON object.
pub(super) fn longcat_tail(cursor: &mut Cursor<'_>) -> Scan<Tail> {
    cursor.skip_space();
    let is_object = cursor.clone().eats_any(&["}", ",\"", ", \""])?;
    if is_object { json_calls::tail(cursor) } else { Ok(Tail::Text) }
}
