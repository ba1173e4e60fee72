//! Anthropic's dialect: `/v1/messages`, whole and as events, and `/v1/messages/count_tokens`.
//!
//! | file | content |
//! |---|---|
//! | `request` | the body |
//! | `conversation` | its messages and tools, converted to those of the other dialects |
//! | `reply` | the whole response |
//! | `events` | the response as events |
//!
//! Blocks of images and documents are refused with an error that names them.

mod conversation;
mod events;
mod reply;
mod request;

pub(crate) use events::MessageEvents;
pub(crate) use reply::Message;
pub(crate) use request::{MessagesRequest, TokenCount};
