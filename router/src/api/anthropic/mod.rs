//! Anthropic's dialect: `/v1/messages`, whole and as events, and `/v1/messages/count_tokens`.
//!
//! | file | content |
//! |---|---|
//! | `request` | the body of a request |
//! | `conversation` | the messages and tools of a request, converted to OpenAI's form |
//! | `reply` | the whole response |
//! | `events` | the response as events |
//!
//! Content blocks with images or documents are refused with an error that names their type.

mod conversation;
mod events;
mod reply;
mod request;

pub(crate) use events::MessageEvents;
pub(crate) use reply::Message;
pub(crate) use request::{MessagesRequest, TokenCount};
