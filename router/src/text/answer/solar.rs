//! Solar Open's messages: thoughts after `<|think|>`, content after `<|content|>`, and calls after `<|tool_calls|>`.
//! Each call has an id, a name and arguments between marks. The prompt ends after the role of the first message.

use super::call::{Arguments, CallSyntax, Head, MessageSyntax, Tail};
use super::scan::{Cursor, Scan};
use super::tools::Tools;

const BEGIN: &str = "<|begin|>";
const END: &str = "<|end|>";
const THINK: &str = "<|think|>";
const CONTENT: &str = "<|content|>";
const CALL: &str = "<|tool_call:begin|>";
const NAME: &str = "<|tool_call:name|>";
const ARGUMENTS: &str = "<|tool_call:args|>";
const CALL_END: &str = "<|tool_call:end|>";
pub(super) const OPENERS: [&str; 7] = [BEGIN, END, THINK, CONTENT, "<|tool_calls|>", CALL, "<|calls|>"];
pub(super) const MARKS: [&str; 3] = [NAME, ARGUMENTS, CALL_END];
pub(super) const MESSAGES: MessageSyntax = MessageSyntax {
    begin_thought: THINK,
    end_thought: "<|end|><|begin|>assistant",
    begin_content: CONTENT,
    after_thought: "\n",
};
pub(super) const SYNTAX: CallSyntax = CallSyntax {
    begin: "<|tool_calls|>",
    before_name: "<|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>",
    before_arguments: ARGUMENTS,
    after_arguments: CALL_END,
    separator: "",
    end: "<|calls|>",
};

/// Returns an id of ten letters and digits, as the chat template asks for.
pub(super) fn call_id() -> String {
    std::iter::repeat_with(|| fastrand::char('0'..='z'))
        .filter(|c| c.is_ascii_digit() || c.is_ascii_lowercase())
        .take(10)
        .collect()
}

pub(super) fn head(opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    match opener {
        THINK => Ok(Head::Thought(&[END, BEGIN])),
        CONTENT => Ok(Head::Message),
        CALL => {
            cursor.while_in(|c| c.is_alphanumeric() || matches!(c, '_' | '-'))?;
            cursor.eat(NAME)?;
            let name = cursor.tool(tools, &[ARGUMENTS])?.name.clone();
            cursor.eat(ARGUMENTS)?;
            cursor.skip_space();
            cursor.clone().eat("{")?;
            Ok(Head::Call { name, arguments: Arguments::Json })
        }
        BEGIN => {
            cursor.skip_space();
            cursor.eats("assistant")?;
            Ok(Head::Nothing)
        }
        _ => Ok(Head::Nothing),
    }
}

pub(super) fn tail(cursor: &mut Cursor<'_>) -> Scan<Tail> {
    cursor.skip_space();
    cursor.eats(CALL_END)?;
    Ok(Tail::Text)
}
