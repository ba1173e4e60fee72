//! OpenAI's dialect: what its clients write and read.
//!
//! | file | what |
//! |---|---|
//! | `body` | a body, with what this server would have to ignore refused by name |
//! | `sampling` | fields that all routes which generate have |
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

pub(crate) use body::OpenAiBody;
pub(crate) use chat_completion::{ChatChunks, ChatCompletion, ChatCompletionRequest, ChatPlan};
pub(crate) use completion::{CompletionChunks, CompletionRequest, TextCompletion};
pub(crate) use events::OpenAiEvents;
pub(crate) use reply::{Identity, Model, Models};
pub(crate) use sampling::OpenAiSampling;
