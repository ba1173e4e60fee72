//! Calls of MiniMax M2, dots and Step 3: one or several `<invoke name="…">` in a block, with `<parameter name="…">` and
//! an unquoted value for each parameter. The tool's schema says what type a value has.
//!
//! Step 3's tags begin with `steptml:`, each call has marks of its own, and the kind of tool may come before the call.

use serde_json::Value as Json;

use super::call::{Arguments, Head, Tail};
use super::scan::{Cursor, Scan};
use super::tools::{Tool, Tools};

pub(super) const CALLS: &str = "<minimax:tool_call>";
pub(super) const CALLS_END: &str = "</minimax:tool_call>";
pub(super) const DOTS_CALLS: &str = "<dots_function_call>";
pub(super) const DOTS_CALLS_END: &str = "</dots_function_call>";
pub(super) const STEP_OPENERS: [&str; 2] = ["<｜tool_calls_begin｜>", STEP_CALL];
pub(super) const STEP_MARKS: [&str; 3] = [STEP_CALL_END, STEP_CALLS_END, STEP_SEPARATOR];
const STEP_CALL: &str = "<｜tool_call_begin｜>";
const STEP_CALL_END: &str = "<｜tool_call_end｜>";
const STEP_CALLS_END: &str = "<｜tool_calls_end｜>";
const STEP_SEPARATOR: &str = "<｜tool_sep｜>";
pub(super) const STEP_INVOKE: &str = "<steptml:invoke name=\"";
const INVOKE: &str = "<invoke name=\"";
const PARAMETER: &str = "<parameter name=\"";
const NAME_END: &str = "\">";

pub(super) fn head(_opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    cursor.skip_space();
    cursor.eat(INVOKE)?;
    let name = cursor.tool(tools, &[NAME_END])?.name.clone();
    cursor.eat(NAME_END)?;
    Ok(Head::Call { name, arguments: Arguments::Parameters(parameter) })
}

/// Reads one parameter; returns `None` after the last one.
fn parameter(cursor: &mut Cursor<'_>, tool: &Tool) -> Scan<Option<(String, Json)>> {
    cursor.skip_space();
    if cursor.eats("</invoke>")? {
        return Ok(None);
    }
    cursor.eat(PARAMETER)?;
    let name = cursor.until(NAME_END)?.to_owned();
    let text = cursor.until("</parameter>")?;
    let text = text.strip_prefix('\n').unwrap_or(text);
    let value = tool.value(&name, text.strip_suffix('\n').unwrap_or(text));
    Ok(Some((name, value)))
}

/// Reads up to the next call, or else the end of the block.
pub(super) fn tail(cursor: &mut Cursor<'_>) -> Scan<Tail> {
    cursor.skip_space();
    if cursor.clone().eats(INVOKE)? {
        return Ok(Tail::Call);
    }
    cursor.eats_any(&[CALLS_END, DOTS_CALLS_END])?;
    Ok(Tail::Text)
}

pub(super) fn step_head(opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    cursor.skip_space();
    if opener != STEP_CALL {
        cursor.eat(STEP_CALL)?;
        cursor.skip_space();
    }
    if cursor.eats("function")? {
        cursor.eat(STEP_SEPARATOR)?;
        // The name may also come before the tag.
        if !cursor.clone().eats(STEP_INVOKE)? {
            cursor.tool(tools, &["\n"])?;
        }
        cursor.skip_space();
    }
    cursor.eat(STEP_INVOKE)?;
    let name = cursor.tool(tools, &[NAME_END])?.name.clone();
    cursor.eat(NAME_END)?;
    Ok(Head::Call { name, arguments: Arguments::Parameters(step_parameter) })
}

/// As [`parameter`]. White space in a value belongs to the value.
fn step_parameter(cursor: &mut Cursor<'_>, tool: &Tool) -> Scan<Option<(String, Json)>> {
    cursor.skip_space();
    if cursor.eats("</steptml:invoke>")? {
        return Ok(None);
    }
    cursor.eat("<steptml:parameter name=\"")?;
    let name = cursor.until(NAME_END)?.to_owned();
    let value = tool.value(&name, cursor.until("</steptml:parameter>")?);
    Ok(Some((name, value)))
}

/// Reads the marks between two calls and after the last one. The mark of the next call is an opener.
pub(super) fn step_tail(cursor: &mut Cursor<'_>) -> Scan<Tail> {
    cursor.skip_space();
    cursor.eats(STEP_CALL_END)?;
    cursor.skip_space();
    cursor.eats_any(&[STEP_SEPARATOR, STEP_CALLS_END])?;
    Ok(Tail::Text)
}
