//! OpenAI's dialect: the data that its clients send and receive.
//!
//! | file | content |
//! |---|---|
//! | `body` | a request's body; fields that are not supported are refused by name |
//! | `sampling`, `structured_output` | the fields of all routes that generate |
//! | `tools` | the tools of a request, and the client's choice among them |
//! | `tool_calls` | the calls of an answer |
//! | `completion` | `/v1/completions` |
//! | `chat_completion` | `/v1/chat/completions` |
//! | `logprobs` | log-probabilities in OpenAI's two forms |
//! | `reply` | the parts of all responses: id, time, model, usage, finish reasons |
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
