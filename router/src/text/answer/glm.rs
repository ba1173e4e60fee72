//! Calls of GLM 4.5 and later: the name after `<tool_call>`, then a key and an unquoted value between tags for each
//! parameter. The tool's schema says what type a value has.

use serde_json::Value as Json;

use super::call::{Arguments, Head, Tail};
use super::scan::{Cursor, Scan};
use super::tools::{Tool, Tools};

const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";
const CALL_END: &str = "</tool_call>";
pub(super) const MARKS: [&str; 5] = [CALL_END, KEY, KEY_END, VALUE, VALUE_END];

pub(super) fn head(_opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    cursor.skip_space();
    let name = cursor.tool(tools, &["\n", " ", KEY, CALL_END])?.name.clone();
    cursor.skip_space();
    if !cursor.clone().eats(KEY)? {
        cursor.clone().eat(CALL_END)?;
    }
    Ok(Head::Call { name, arguments: Arguments::Parameters(parameter) })
}

/// Reads one parameter; returns `None` after the last one.
fn parameter(cursor: &mut Cursor<'_>, tool: &Tool) -> Scan<Option<(String, Json)>> {
    cursor.skip_space();
    if cursor.eats(CALL_END)? {
        return Ok(None);
    }
    cursor.eat(KEY)?;
    let name = cursor.until(KEY_END)?.trim().to_owned();
    cursor.skip_space();
    cursor.eat(VALUE)?;
    let value = tool.value(&name, cursor.until(VALUE_END)?);
    Ok(Some((name, value)))
}

/// Reads nothing, because the closing mark was read after the last parameter.
pub(super) fn tail(_cursor: &mut Cursor<'_>) -> Scan<Tail> {
    Ok(Tail::Text)
}
