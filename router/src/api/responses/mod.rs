//! `/v1/responses`, OpenAI's newer dialect, without stored conversations: each request contains the whole conversation,
//! and the server stores nothing.
//!
//! | file | content |
//! |---|---|
//! | `request` | the body of a request |
//! | `input` | the items and tools of a request, converted to the messages and tools of chat completions |
//! | `item` | the items of an answer: thoughts, messages, calls |
//! | `reply` | the whole response |
//! | `events` | the response as named events |

mod events;
mod input;
mod item;
mod reply;
mod request;

pub(crate) use events::ResponseEvents;
pub(crate) use reply::ResponseHead;
pub(crate) use request::ResponsesRequest;
