//! The parts of a tool call, for reading and for writing calls in any format.

use serde_json::Value as Json;

use super::scan::{Cursor, Scan};
use super::tools::Tool;

/// The texts around the names and arguments of calls in a format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallSyntax {
    pub(crate) begin: &'static str,
    pub(crate) before_name: &'static str,
    pub(crate) before_arguments: &'static str,
    pub(crate) after_arguments: &'static str,
    pub(crate) separator: &'static str,
    pub(crate) end: &'static str,
}

/// The marks around thoughts and content, in a format where these are messages of their own.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageSyntax {
    pub(super) begin_thought: &'static str,
    pub(super) end_thought: &'static str,
    pub(super) begin_content: &'static str,
    /// The text between a thought and the content before a call.
    pub(super) after_thought: &'static str,
}

/// The meaning of the text after an opener, such as `<tool_call>`.
#[derive(Debug)]
pub(super) enum Head {
    Call {
        name: String,
        arguments: Arguments,
    },
    /// A thought, which ends at one of these marks.
    Thought(&'static [&'static str]),
    /// Content in a message of its own. A line break separates it from content of earlier messages.
    Message,
    /// Text that is not part of the answer.
    Nothing,
}

/// The notation of arguments.
#[derive(Debug)]
pub(super) enum Arguments {
    /// A JSON object follows.
    Json,
    /// The rest of a message, which ends at one of these marks: a JSON object, or any text if the model failed.
    Message(&'static [&'static str]),
    /// Parameters follow one by one.
    Parameters(ReadParameter),
    /// The arguments, as JSON. They were read together with the name.
    Read(String),
}

/// Reads a parameter's name and value; `None` after the last one.
pub(super) type ReadParameter = fn(&mut Cursor<'_>, &Tool) -> Scan<Option<(String, Json)>>;

/// The meaning of the text after the arguments of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    /// Another call may follow: its head, the text up to its arguments, is read next.
    Call,
    Text,
}
