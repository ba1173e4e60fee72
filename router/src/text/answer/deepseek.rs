//! DeepSeek's calls: `<｜tool▁call▁begin｜>` with the name, `<｜tool▁sep｜>`, and the arguments. Up to version 3 the kind
//! of tool comes before the name, and the arguments are in a code block. Some templates of version 3 have a JSON object
//! with the name and the arguments instead.

use super::call::{Arguments, CallSyntax, Head, Tail};
use super::json_calls;
use super::scan::{Cursor, Miss, Scan};
use super::tools::Tools;

pub(super) const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
pub(super) const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const CALLS_END: &str = "<｜tool▁calls▁end｜>";
pub(super) const MARKS: [&str; 3] = [SEPARATOR, CALL_END, CALLS_END];
pub(super) const SYNTAX: CallSyntax = CallSyntax {
    begin: "<｜tool▁calls▁begin｜>",
    before_name: "<｜tool▁call▁begin｜>",
    before_arguments: "<｜tool▁sep｜>",
    after_arguments: "<｜tool▁call▁end｜>",
    separator: "",
    end: "<｜tool▁calls▁end｜>",
};
pub(super) const CODE_SYNTAX: CallSyntax = CallSyntax {
    before_name: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    before_arguments: "\n```json\n",
    after_arguments: "\n```<｜tool▁call▁end｜>",
    separator: "\n",
    ..SYNTAX
};
const CODE: &str = "```";

pub(super) fn head(_opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    cursor.skip_space();
    if cursor.eats(CALL_BEGIN)? {
        cursor.skip_space();
    }
    if cursor.peek()? == '{' {
        return json_calls::head("", cursor, tools);
    }
    if cursor.eats("function")? && !cursor.eats(SEPARATOR)? {
        return Err(Miss::Other);
    }
    let tool = cursor.tool(tools, &[SEPARATOR, "\n"])?;
    if !cursor.eats(SEPARATOR)? {
        cursor.skip_space();
        cursor.eat(CODE)?;
        cursor.eats("json")?;
    }
    cursor.skip_space();
    cursor.clone().eat("{")?;
    Ok(Head::Call { name: tool.name.clone(), arguments: Arguments::Json })
}

pub(super) fn tail(cursor: &mut Cursor<'_>) -> Scan<Tail> {
    cursor.skip_space();
    // If the call is an object, the object ends after the arguments.
    if cursor.eats("}")? {
        cursor.skip_space();
    }
    if cursor.eats(CODE)? {
        cursor.skip_space();
    }
    cursor.eats(CALL_END)?;
    cursor.skip_space();
    if cursor.clone().eats(CALL_BEGIN)? {
        return Ok(Tail::Call);
    }
    cursor.eats(CALLS_END)?;
    Ok(Tail::Text)
}
