//! OpenAI's dialect: what its clients write and read.
//!
//! | file | what |
//! |---|---|
//! | `body` | a body, with what this server would have to ignore refused by name |
//! | `sampling`, `structured_output` | fields that all routes which generate have |
//! | `tools` | which tools there are, and what is to be done with them |
//! | `tool_calls` | calls of an answer |
//! | `completion` | `/v1/completions` |
//! | `chat_completion` | `/v1/chat/completions` |
//! | `logprobs` | log-probabilities in the two forms that there are |
//! | `reply` | what all answers have: id, time, model, usage, reasons |
//! | `events` | both routes as server-sent events, which end with `[DONE]` |

mod body;
mod chat_completion;
mod completion;
mod events;
mod logprobs;
mod reply;
mod sampling;
mod structured_output;
mod tool_calls;
mod tools;

pub(crate) use body::OpenAiBody;
pub(crate) use chat_completion::{
    ChatChunks, ChatCompletion, ChatCompletionRequest, ChatForm, Chunk as ChatCompletionChunk,
};
pub(crate) use completion::{Chunk as TextCompletionChunk, CompletionChunks, CompletionRequest, TextCompletion};
pub(crate) use events::OpenAiEvents;
pub(crate) use reply::{Identity, Model, Models};
pub(crate) use sampling::OpenAiSampling;
pub(crate) use tools::{ToolFields, ToolUse};
