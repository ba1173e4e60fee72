//! The messages of HyperCLOVA X SEED Think 14B. A header has the role of the assistant, then `/think` before a thought
//! or ` -> tool/function_call` before a list of calls. The prompt ends after the role of the first message.

use super::call::{CallSyntax, Head, MessageSyntax};
use super::json_calls;
use super::scan::{Cursor, Scan};
use super::tools::Tools;

const START: &str = "<|im_start|>";
const END: &str = "<|im_end|>";
const THINK: &str = "/think";
const HEADER_END: &str = "\n";
const CALLS: &str = "-> tool/function_call";
pub(super) const OPENERS: [&str; 2] = [START, END];
/// The rest of the first header.
pub(super) const FIRST_OPENERS: [&str; 3] = [THINK, CALLS, HEADER_END];
pub(super) const MESSAGES: MessageSyntax = MessageSyntax {
    begin_thought: "/think\n",
    end_thought: "<|im_end|>\n<|im_start|>assistant",
    begin_content: HEADER_END,
    after_thought: "\n",
};
pub(super) const SYNTAX: CallSyntax = CallSyntax {
    begin: " -> tool/function_call\n[",
    before_name: "{\"name\": \"",
    before_arguments: "\", \"arguments\": ",
    after_arguments: "}",
    separator: ", ",
    end: "]",
};

pub(super) fn head(opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    match if opener == START { header(cursor)? } else { opener } {
        END => Ok(Head::Nothing),
        THINK => cursor.eat(HEADER_END).map(|()| Head::Thought(&[END])),
        HEADER_END => Ok(Head::Message),
        // After `CALLS`, or after a call.
        _ => json_calls::head(opener, cursor, tools),
    }
}

/// Reads the header of a later message, and returns the mark that would begin such a message at the start of an answer.
fn header(cursor: &mut Cursor<'_>) -> Scan<&'static str> {
    cursor.eats("assistant")?;
    if cursor.eats(THINK)? {
        return Ok(THINK);
    }
    cursor.eats(" ")?;
    Ok(if cursor.eats(CALLS)? { CALLS } else { HEADER_END })
}
