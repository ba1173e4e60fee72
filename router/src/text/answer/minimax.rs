//! Calls of MiniMax M2: one or several `<invoke name="…">` in a block, with `<parameter name="…">` and an unquoted
//! value for each parameter. The tool's schema says what type a value has.

use serde_json::Value as Json;

use super::call::{Arguments, Head, Tail};
use super::scan::{Cursor, Scan};
use super::tools::{Tool, Tools};

pub(super) const CALLS: &str = "<minimax:tool_call>";
pub(super) const CALLS_END: &str = "</minimax:tool_call>";
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
    cursor.eats(CALLS_END)?;
    Ok(Tail::Text)
}
