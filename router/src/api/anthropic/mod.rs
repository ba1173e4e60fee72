//! Anthropic's dialect: `/v1/messages`, whole and as events, and `/v1/messages/count_tokens`.
//!
//! | file | what |
//! |---|---|
//! | `request` | the body |
//! | `conversation` | its messages and tools, in the words of the other dialects |
//! | `reply` | the answer in one piece |
//! | `events` | the answer as events |
//!
//! Blocks of images and documents are errors that name them.

mod conversation;
mod events;
mod reply;
mod request;

pub(crate) use events::MessageEvents;
pub(crate) use reply::Message;
pub(crate) use request::{MessagesRequest, TokenCount};
