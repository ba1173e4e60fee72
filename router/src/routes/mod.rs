//! To add a route:
//! 1. `routes/<name>.rs`: its handler, at most 30 lines: parse, call `generation`, shape the response; its test.
//! 2. One row in the table here, one line in [`router`], one row in `openapi/table.rs`.
//! 3. A type that a second route needs goes to `api/`.
//!
//! | file | method | path | purpose |
//! |---|---|---|---|
//! | `generate` | POST | `/generate` | a generation as one JSON object |
//! | `generate_stream` | POST | `/generate_stream` | a generation as server-sent events |
//! | `compat` | POST | `/` | either, by the field `stream` |
//! | `chat_tokenize` | POST | `/chat_tokenize` | the text and the tokens of a conversation |
//! | `completions` | POST | `/v1/completions` | OpenAI's completions |
//! | `chat_completions` | POST | `/v1/chat/completions` | OpenAI's chat completions |
//! | `responses` | POST | `/v1/responses` | OpenAI's newer API, without stored conversations |
//! | `messages` | POST | `/v1/messages`, `/v1/messages/count_tokens` | Anthropic's API |
//! | `models` | GET | `/v1/models`, `/v1/models/{id}` | the model, as OpenAI lists models |
//! | `not_done` | POST | `/v1/embeddings` and others | 501: this server generates text |
//! | `invocations` | POST | `/invocations` | one of the routes above, by the body |
//! | `vertex` | POST | `/vertex` | several generations, as Vertex AI asks for them |
//! | `tokenize` | POST | `/tokenize` | the tokens of a prompt |
//! | `openapi` | GET | `/api-doc/openapi.json` | all routes, for programs |
//! | `docs` | GET | `/docs` | the same document as a page |
//! | `playground` | GET | `/playground` | a page to try the model |
//! | `page` | GET | `/page.js`, `/favicon.ico` | the files that both pages share |
//! | `health` | GET | `/health`, `/ping` | 200 or 503 |
//! | `home` | GET | `/` | the same as `/health`, with the playground for browsers |
//! | `info` | GET | `/info` | facts about the server |
//! | `metrics` | GET | `/metrics` | metrics as Prometheus' text |
//! | `access` | any | any | asks for a key, if the server has keys |
//! | `whole_answers` | POST | any | counts the memory of a response until the client has read it |
//! | `fallback` | any | any other | 404 or 405, naming the path and the method |

mod access;
mod chat_completions;
mod chat_tokenize;
mod compat;
mod completions;
mod docs;
mod fallback;
mod generate;
mod generate_stream;
mod health;
mod home;
mod info;
mod invocations;
mod messages;
mod metrics;
mod models;
mod not_done;
pub(crate) mod openapi;
mod page;
mod playground;
mod responses;
#[cfg(test)]
mod tests;
mod tokenize;
mod vertex;
mod whole_answers;

use axum::Router;
use axum::http::{HeaderValue, Method, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::api::{GENERATION_HEADERS, REQUEST_ID, request_id};
use crate::error::ApiError;
use crate::state::AppState;

/// Returns all routes, with the layers that apply to each: a request id, cross-origin rules, and 500 instead of a
/// panic.
pub(crate) fn router(state: AppState) -> Router {
    let cors = cors(&state.info().config.cors_allow_origin);
    Router::new()
        .route("/generate", post(generate::generate))
        .route("/generate_stream", post(generate_stream::generate_stream))
        .route("/", post(compat::compat_generate).get(home::home))
        .route("/chat_tokenize", post(chat_tokenize::chat_tokenize))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat_completions::chat_completions))
        .route("/v1/responses", post(responses::responses))
        .route("/v1/messages", post(messages::messages))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/models", get(models::models))
        .route("/v1/models/{*id}", get(models::model))
        .route("/v1/embeddings", post(not_done::embeddings))
        .route("/v1/images/generations", post(not_done::images))
        .route("/v1/audio/speech", post(not_done::sound))
        .route("/v1/audio/transcriptions", post(not_done::sound))
        .route("/v1/moderations", post(not_done::moderations))
        .route("/invocations", post(invocations::invocations))
        .route("/vertex", post(vertex::vertex))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/api-doc/openapi.json", get(openapi::openapi))
        .route("/docs", get(docs::page))
        .route("/docs/style.css", get(docs::style))
        .route("/docs/script.js", get(docs::script))
        .route("/page.js", get(page::script))
        .route("/favicon.ico", get(page::icon))
        .route("/playground", get(playground::page))
        .route("/playground/style.css", get(playground::style))
        .route("/playground/script.js", get(playground::script))
        .route("/health", get(health::health))
        .route("/ping", get(health::health))
        .route("/info", get(info::info))
        .route("/metrics", get(metrics::metrics))
        .fallback(fallback::not_found)
        .method_not_allowed_fallback(fallback::method_not_allowed)
        .layer(from_fn_with_state(state.clone(), whole_answers::count))
        .layer(from_fn_with_state(state.clone(), access::check_key))
        .with_state(state)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(cors)
        .layer(from_fn(request_id))
}

/// Returns the response after a panic, which the panic hook has logged.
fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    ApiError::Panic.into_response()
}

/// Returns the cross-origin rules. Pages of these origins may call the server, or pages of any origin if the list is
/// empty. They may send any header, because SDKs send many of their own, and read the headers of responses.
fn cors(origins: &[String]) -> CorsLayer {
    let allows_any = origins.is_empty() || origins.iter().any(|origin| origin == "*");
    let origins = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok());
    let allow_origin = if allows_any { AllowOrigin::any() } else { AllowOrigin::list(origins) };
    CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(
            GENERATION_HEADERS
                .into_iter()
                .chain([REQUEST_ID, header::RETRY_AFTER, header::WWW_AUTHENTICATE])
                .collect::<Vec<_>>(),
        )
        .allow_origin(allow_origin)
}
