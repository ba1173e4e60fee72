//! gpt-oss's messages. Each has a header with a role, a channel and maybe a recipient, in this order or with the
//! recipient before the channel. The prompt ends after the role of the first message.
//!
//! Messages to `functions.<name>` are calls. Thoughts are messages in the channel `analysis`, messages to built-in
//! tools such as `python` or `browser.search`, and messages of other roles than the assistant's. Every other message is
//! content. The format is that of <https://github.com/openai/harmony>.

use super::call::{Arguments, CallSyntax, Head, MessageSyntax, Tail};
use super::scan::{Cursor, Miss, Scan};
use super::tools::{Tool, Tools};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";
const RECIPIENT: &str = "to=";
const FUNCTIONS: &str = "functions.";
const ASSISTANT: &str = "assistant";
pub(super) const OPENERS: [&str; 7] = [START, CHANNEL, CONSTRAIN, MESSAGE, "<|end|>", "<|return|>", "<|call|>"];
/// The recipient is an opener only where the header of the first message may have it.
pub(super) const FIRST_OPENERS: [&str; 1] = [RECIPIENT];
/// The marks at which a message ends. The last two begin another one, if the model has left out the end.
const MESSAGE_ENDS: [&str; 5] = ["<|end|>", "<|return|>", "<|call|>", START, CHANNEL];
pub(super) const MESSAGES: MessageSyntax = MessageSyntax {
    begin_thought: "<|channel|>analysis<|message|>",
    end_thought: "<|end|><|start|>assistant",
    begin_content: "<|channel|>final<|message|>",
    after_thought: "<|end|><|start|>assistant<|channel|>commentary<|message|>",
};
pub(super) const SYNTAX: CallSyntax = CallSyntax {
    begin: "",
    before_name: "<|channel|>commentary to=functions.",
    before_arguments: " <|constrain|>json<|message|>",
    after_arguments: "",
    separator: "<|end|><|start|>assistant",
    end: "",
};

/// The header of a message. Missing parts are empty.
#[derive(Default)]
struct Header<'a> {
    role: &'a str,
    channel: &'a str,
    recipient: &'a str,
    /// True if the header has a mark of its own.
    has_marks: bool,
    /// True if the mark between header and message was read.
    is_whole: bool,
}

pub(super) fn head(opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    if ![START, CHANNEL, CONSTRAIN, RECIPIENT].contains(&opener) {
        return Ok(Head::Nothing);
    }
    let Header { role, channel, recipient, has_marks, is_whole } = header(opener, cursor)?;
    // Without other parts of a header, `to=` is text. If the answer is cut off here, the name of a function is enough.
    let is_cut = !is_whole && cursor.rest().is_empty();
    let is_header = has_marks || (is_cut && recipient.starts_with(FUNCTIONS));
    if opener == RECIPIENT && !is_header {
        return Err(Miss::Other);
    }
    if is_cut {
        return Ok(Head::Nothing);
    }
    let is_own = role.is_empty() || role == ASSISTANT;
    let tool = tools.find(recipient.strip_prefix(FUNCTIONS).unwrap_or(recipient)).filter(|_| is_own);
    if let Some(tool) = tool {
        return call(tool, cursor);
    }
    let is_to_tool = !["", ASSISTANT, "user"].contains(&recipient) && !recipient.starts_with(FUNCTIONS);
    let is_thought = !is_own || channel == "analysis" || (is_to_tool && channel != "final");
    Ok(if is_thought { Head::Thought(&MESSAGE_ENDS) } else { Head::Message })
}

/// Reads the header after `opener`. A header that lacks its end is read as far as it goes, and the message follows.
fn header<'a>(opener: &'static str, cursor: &mut Cursor<'a>) -> Scan<Header<'a>> {
    let mut header = Header::default();
    match opener {
        START => header.role = word(cursor)?,
        CHANNEL => header.channel = word(cursor)?,
        RECIPIENT => header.recipient = word(cursor)?,
        _ => {}
    }
    loop {
        cursor.skip_space();
        if cursor.eats(MESSAGE)? {
            return Ok(Header { has_marks: true, is_whole: true, ..header });
        }
        if cursor.eats(CHANNEL)? {
            (header.channel, header.has_marks) = (word(cursor)?, true);
        } else if cursor.eats(CONSTRAIN)? {
            header.has_marks = true;
        } else if cursor.eats(RECIPIENT)? {
            header.recipient = word(cursor)?;
        } else {
            match bare_word(cursor)? {
                None => return Ok(header),
                Some(name) if name.starts_with(FUNCTIONS) => header.recipient = name,
                // The type of the message, such as `json`.
                Some(_) => {}
            }
        }
    }
}

fn word<'a>(cursor: &mut Cursor<'a>) -> Scan<&'a str> {
    cursor.skip_space();
    cursor.while_in(|c| !c.is_whitespace() && c != '<')
}

/// Reads a word if another part of the header, or the end of the answer, comes after it.
fn bare_word<'a>(cursor: &mut Cursor<'a>) -> Scan<Option<&'a str>> {
    let mut ahead = cursor.clone();
    let name = word(&mut ahead)?;
    ahead.skip_space();
    let is_in_header = ahead.clone().eats_any(&[MESSAGE, CHANNEL, CONSTRAIN])? || ahead.rest().is_empty();
    if name.is_empty() || !is_in_header {
        return Ok(None);
    }
    *cursor = ahead;
    Ok(Some(name))
}

/// Reads up to the arguments of a call. A message that is empty has the arguments `{}`, unless it is cut off.
fn call(tool: &Tool, cursor: &mut Cursor<'_>) -> Scan<Head> {
    cursor.skip_space();
    let arguments = match cursor.peek() {
        Err(Miss::Short) => return Err(Miss::Short),
        Err(Miss::Other) => Arguments::Read(String::new()),
        Ok(_) if cursor.clone().eats_any(&MESSAGE_ENDS)? => Arguments::Read("{}".to_owned()),
        Ok(_) => Arguments::Message(&MESSAGE_ENDS),
    };
    Ok(Head::Call { name: tool.name.clone(), arguments })
}

/// Reads up to the next mark: text after the arguments is not part of the answer.
pub(super) fn tail(cursor: &mut Cursor<'_>) -> Scan<Tail> {
    cursor.skip_to_any(&OPENERS)?;
    Ok(Tail::Text)
}
