//! gpt-oss's messages: each has a header with its channel and maybe a recipient. Thoughts are in the channel
//! `analysis`, calls are JSON objects sent to `functions.<name>`, and every other message is content.

use super::call::{Arguments, CallSyntax, Head, Tail};
use super::scan::{Cursor, Miss, Scan};
use super::tools::Tools;

pub(super) const OPENERS: [&str; 5] = ["<|start|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>"];
pub(super) const SYNTAX: CallSyntax = CallSyntax {
    begin: "",
    before_name: "<|channel|>commentary to=functions.",
    before_arguments: " <|constrain|>json<|message|>",
    after_arguments: "",
    separator: "<|end|><|start|>assistant",
    end: "",
};
const HEADER_END: &str = "<|message|>";
/// The marks that end a message, and with it a thought.
const THOUGHT_ENDS: [&str; 3] = ["<|end|>", "<|return|>", "<|call|>"];

pub(super) fn head(opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    if opener != "<|start|>" && opener != "<|channel|>" {
        return Ok(Head::Nothing);
    }
    let header = cursor.until(HEADER_END)?;
    let recipient = header.split("to=functions.").nth(1).unwrap_or_default();
    let name = recipient.split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or_default();
    let channel = header.split("<|channel|>").last().unwrap_or_default().trim_start();
    if let Some(tool) = tools.find(name) {
        cursor.skip_space();
        return match cursor.peek() {
            Ok('{') => Ok(Head::Call { name: tool.name.clone(), arguments: Arguments::Json }),
            Err(Miss::Short) => Err(Miss::Short),
            Ok(_) | Err(Miss::Other) => Ok(Head::Nothing),
        };
    }
    Ok(if channel.starts_with("analysis") { Head::Thought(&THOUGHT_ENDS) } else { Head::Nothing })
}

/// Reads nothing, because the mark that ends the message is an opener.
pub(super) fn tail(_cursor: &mut Cursor<'_>) -> Scan<Tail> {
    Ok(Tail::Text)
}
