//! `/v1/responses`, OpenAI's newer dialect, without memory: everything is in the request, and nothing is kept.
//!
//! | file | what |
//! |---|---|
//! | `request` | the body |
//! | `input` | its items and tools, in the words of chat completions |
//! | `item` | what an answer is made of: thoughts, messages, calls |
//! | `reply` | the answer, whole |
//! | `events` | the answer as events, each with its name |

mod events;
mod input;
mod item;
mod reply;
mod request;

pub(crate) use events::ResponseEvents;
pub(crate) use reply::ResponseHead;
pub(crate) use request::ResponsesRequest;
