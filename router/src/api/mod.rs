//! The data that clients send and receive: JSON shapes and headers of TGI's API, of OpenAI's (`openai`, `responses`)
//! and of Anthropic's (`anthropic`).
//!
//! The rest of the crate does not depend on these shapes, because the handlers in `routes` convert them to the types of
//! `generation` and `validation` and back. This folder checks the shape of bodies; `validation` checks the options of
//! generations.

mod answer_events;
pub(crate) mod anthropic;
mod body;
mod body_memory;
mod bounded;
mod chat;
mod context;
mod generate;
mod grammar;
mod headers;
mod incoming;
mod logit_bias;
mod nullable;
pub(crate) mod openai;
mod parameters;
mod rendered;
pub(crate) mod responses;
mod schemas;
mod sse;
mod stop;
mod token_list;
mod trace_context;

pub(crate) use answer_events::AnswerEvents;
pub(crate) use body::{JsonBody, parse as parse_body, parse_aside, read_as};
pub(crate) use chat::ChatRequest;
pub(crate) use context::{REQUEST_ID, RequestContext, request_id};
pub(crate) use generate::{CompatRequest, GenerateRequest, GenerateResponse, StreamResponse};
pub(crate) use headers::{ComputeType, GENERATION_HEADERS, generation_headers, stream_headers};
pub(crate) use parameters::GenerateParameters;
pub(crate) use rendered::RenderedPrompt;
pub(crate) use sse::{NativeEvents, event_stream};
pub(crate) use token_list::{ChatTokenizeResponse, SimpleToken, chat_token_list, token_list};
