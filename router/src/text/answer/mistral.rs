//! Mistral's calls: `[TOOL_CALLS]` before a list of objects, or since 2025 before each name, with an optional
//! `[CALL_ID]`, then `[ARGS]` and the arguments.

use super::call::{Arguments, CallSyntax, Head, Tail};
use super::json_calls;
use super::scan::{Cursor, Scan};
use super::tools::Tools;

pub(super) const SYNTAX: CallSyntax = CallSyntax {
    begin: "",
    before_name: "[TOOL_CALLS]",
    before_arguments: "[ARGS]",
    after_arguments: "",
    separator: "",
    end: "",
};
const ARGUMENTS: &str = "[ARGS]";
const ID: &str = "[CALL_ID]";

pub(super) fn head(_opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    cursor.skip_space();
    if matches!(cursor.peek()?, '[' | '{') {
        return json_calls::head("", cursor, tools);
    }
    let tool = cursor.tool(tools, &[ARGUMENTS, ID, "{", " "])?;
    cursor.skip_space();
    if cursor.eats(ID)? {
        cursor.while_in(|c| c.is_ascii_alphanumeric())?;
    }
    cursor.eats(ARGUMENTS)?;
    cursor.skip_space();
    cursor.clone().eat("{")?;
    Ok(Head::Call { name: tool.name.clone(), arguments: Arguments::Json })
}

/// Reads the end of an object, if a bracket or a comma shows that the call is an object. After bare arguments there is
/// nothing to read.
pub(super) fn tail(cursor: &mut Cursor<'_>) -> Scan<Tail> {
    cursor.skip_space();
    if cursor.clone().eats_any(&["}", ","])? { json_calls::tail(cursor) } else { Ok(Tail::Text) }
}

/// Returns an id of nine characters; Mistral's templates refuse ids of other lengths.
pub(super) fn call_id() -> String {
    std::iter::repeat_with(fastrand::alphanumeric).take(9).collect()
}
