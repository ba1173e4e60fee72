//! `/v1/responses`, OpenAI's newer dialect, without stored conversations: the request contains everything, and nothing
//! is kept.
//!
//! | file | content |
//! |---|---|
//! | `request` | the body |
//! | `input` | its items and tools, converted to those of chat completions |
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
