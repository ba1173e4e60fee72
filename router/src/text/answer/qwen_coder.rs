//! Calls of Qwen Coder, Qwen 3.5 and Seed-OSS: `<function=name>`, then `<parameter=name>` and an unquoted value for
//! each parameter. The tool's schema says what type a value has.

use serde_json::Value as Json;

use super::call::{Arguments, Head, Tail};
use super::scan::{Cursor, Scan};
use super::tools::{Tool, Tools};

const FUNCTION: &str = "<function=";
const PARAMETER_END: &str = "</parameter>";

pub(super) fn head(opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    if opener != FUNCTION {
        cursor.skip_space();
        cursor.eat(FUNCTION)?;
    }
    let name = cursor.tool(tools, &[">"])?.name.clone();
    cursor.eat(">")?;
    Ok(Head::Call { name, arguments: Arguments::Parameters(parameter) })
}

/// Reads one parameter; returns `None` after the last one.
fn parameter(cursor: &mut Cursor<'_>, tool: &Tool) -> Scan<Option<(String, Json)>> {
    cursor.skip_space();
    if cursor.eats("</function>")? {
        return Ok(None);
    }
    cursor.eat("<parameter=")?;
    let name = cursor.until(">")?.to_owned();
    let text = cursor.until(PARAMETER_END)?;
    let text = text.strip_prefix('\n').unwrap_or(text);
    let value = tool.value(&name, text.strip_suffix('\n').unwrap_or(text));
    Ok(Some((name, value)))
}

pub(super) fn tail(cursor: &mut Cursor<'_>) -> Scan<Tail> {
    cursor.skip_space();
    cursor.eats_any(&["</tool_call>", "</seed:tool_call>"])?;
    Ok(Tail::Text)
}
