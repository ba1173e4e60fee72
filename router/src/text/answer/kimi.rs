//! Calls of Kimi K2: `<|tool_call_begin|>` with the call's id, which contains the name, then
//! `<|tool_call_argument_begin|>` and the arguments. The calls of an answer are in one section.

use super::call::{Arguments, CallSyntax, Head, Tail};
use super::scan::{Cursor, Scan};
use super::tools::Tools;

pub(super) const SECTION: &str = "<|tool_calls_section_begin|>";
pub(super) const CALL: &str = "<|tool_call_begin|>";
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";
const CALL_END: &str = "<|tool_call_end|>";
const SECTION_END: &str = "<|tool_calls_section_end|>";
/// The part of an id before the name.
const NAMESPACE: &str = "functions.";
pub(super) const MARKS: [&str; 3] = [ARGUMENTS, CALL_END, SECTION_END];
pub(super) const SYNTAX: CallSyntax = CallSyntax {
    begin: SECTION,
    before_name: "<|tool_call_begin|>functions.",
    before_arguments: ":0<|tool_call_argument_begin|>",
    after_arguments: CALL_END,
    separator: "",
    end: SECTION_END,
};

/// Returns the id of the call number `index` of an answer. The chat template writes it into later prompts, where the
/// model looks for the name.
pub(super) fn call_id(name: &str, index: usize) -> String {
    format!("{NAMESPACE}{name}:{index}")
}

pub(super) fn head(_opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    cursor.skip_space();
    if cursor.eats(CALL)? {
        cursor.skip_space();
    }
    cursor.eats(NAMESPACE)?;
    let name = cursor.tool(tools, &[":", ARGUMENTS])?.name.clone();
    if cursor.eats(":")? {
        cursor.while_in(|c| c.is_ascii_digit())?;
    }
    cursor.eat(ARGUMENTS)?;
    cursor.skip_space();
    cursor.clone().eat("{")?;
    Ok(Head::Call { name, arguments: Arguments::Json })
}

/// Reads up to the next call, or else the end of the section.
pub(super) fn tail(cursor: &mut Cursor<'_>) -> Scan<Tail> {
    cursor.skip_space();
    cursor.eats(CALL_END)?;
    cursor.skip_space();
    if cursor.clone().eats(CALL)? {
        return Ok(Tail::Call);
    }
    cursor.eats(SECTION_END)?;
    Ok(Tail::Text)
}
