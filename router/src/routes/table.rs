//! All routes, by API: each row mounts a handler and documents it. The examples are bodies to which the demo model can
//! respond.

use axum::handler::Handler;
use serde_json::{Value, json};

use super::info::Info;
use super::invocations::{InvocationsRequest, InvocationsResponse};
use super::kv_event_sources::KvEventSources;
use super::route::Dialect::{Anthropic, OpenAi, Server, Tgi};
use super::route::{JSON, Route, TEXT};
use super::vertex::{VertexRequest, VertexResponse};
use super::{
    chat_completions, chat_tokenize, compat, completions, docs, generate, generate_stream, health, home, info,
    invocations, kv_event_sources, messages, metrics, models, not_done, openapi, page, playground, render, responses,
    tokenize, vertex,
};
use crate::api::anthropic::{Message, MessagesRequest, TokenCount};
use crate::api::openai::{
    ChatCompletion, ChatCompletionChunk, ChatCompletionRequest, CompletionRequest, Model, Models, OpenAiBody,
    TextCompletion, TextCompletionChunk,
};
use crate::api::responses::{ResponseHead, ResponsesRequest};
use crate::api::{
    ChatRequest, ChatTokenizeResponse, CompatRequest, GenerateRequest, GenerateResponse, RenderedPrompt, SimpleToken,
    StreamResponse,
};
use crate::state::AppState;

type ChatBody = OpenAiBody<ChatCompletionRequest>;
type CompletionBody = OpenAiBody<CompletionRequest>;

/// Returns all routes, in the order of the document.
pub(super) fn routes() -> Vec<Route> {
    [tgi(), openai(), anthropic(), server()].into_iter().flatten().collect()
}

fn tgi() -> Vec<Route> {
    vec![
        Route::post(Tgi, "/generate", generate::generate, "The generated text, as one JSON object")
            .reads::<GenerateRequest>(native())
            .generates()
            .answers::<GenerateResponse>(),
        Route::post(
            Tgi,
            "/generate_stream",
            generate_stream::generate_stream,
            "The generated text, as server-sent events, one for each token",
        )
        .reads::<GenerateRequest>(native())
        .generates()
        .answers_events::<StreamResponse>(),
        Route::post(
            Tgi,
            "/",
            compat::compat_generate,
            "The response of `/generate_stream` if `stream` is true, else that of `/generate`, in a list",
        )
        .reads::<CompatRequest>(native())
        .generates()
        .answers_list::<GenerateResponse>()
        .answers_events::<StreamResponse>(),
        Route::post(Tgi, "/tokenize", tokenize::tokenize, "The tokens of a prompt")
            .reads::<GenerateRequest>(native())
            .answers_list::<SimpleToken<'_>>(),
        Route::post(
            Tgi,
            "/chat_tokenize",
            chat_tokenize::chat_tokenize,
            "The prompt that the chat template makes of a conversation, and its tokens",
        )
        .reads::<ChatRequest>(json!({"messages": messages()}))
        .answers::<ChatTokenizeResponse<'_>>(),
        Route::post(
            Tgi,
            "/invocations",
            invocations::invocations,
            "For SageMaker: as `/`, `/v1/chat/completions` or `/v1/completions`, depending on the body",
        )
        .may_speak_as_openai()
        .reads::<InvocationsRequest>(native())
        .generates()
        .answers::<InvocationsResponse>()
        .answers_events::<StreamResponse>(),
        Route::post(
            Tgi,
            "/vertex",
            vertex::vertex,
            "For Vertex AI: the generated texts for several prompts or conversations",
        )
        .reads::<VertexRequest>(json!({"instances": [native()]}))
        .generates()
        .answers::<VertexResponse>(),
    ]
}

fn openai() -> Vec<Route> {
    vec![
        Route::post(
            OpenAi,
            "/v1/chat/completions",
            chat_completions::chat_completions,
            "The next message of a conversation, whole or as server-sent events",
        )
        .reads::<ChatBody>(json!({"messages": messages(), "max_tokens": 50}))
        .generates()
        .answers::<ChatCompletion>()
        .answers_events::<ChatCompletionChunk<'static>>(),
        Route::post(
            OpenAi,
            "/v1/completions",
            completions::completions,
            "The completions of one or more prompts, whole or as server-sent events",
        )
        .reads::<CompletionBody>(json!({"prompt": "Once upon a time", "max_tokens": 50}))
        .generates()
        .answers::<TextCompletion>()
        .answers_events::<TextCompletionChunk<'static>>(),
        Route::post(
            OpenAi,
            "/v1/chat/completions/render",
            render::chat_completions,
            "The tokens that the model would read for the same request to `/v1/chat/completions`",
        )
        .reads::<ChatBody>(json!({"messages": messages(), "max_tokens": 50}))
        .answers::<RenderedPrompt>(),
        Route::post(
            OpenAi,
            "/v1/completions/render",
            render::completions,
            "The tokens that the model would read for each prompt of the same request to `/v1/completions`",
        )
        .reads::<CompletionBody>(json!({"prompt": "Once upon a time", "max_tokens": 50}))
        .answers_list::<RenderedPrompt>(),
        Route::post(
            OpenAi,
            "/v1/responses",
            responses::responses,
            "The response to a text or a list of items, whole or as events; nothing is stored",
        )
        .reads::<OpenAiBody<ResponsesRequest>>(json!({"input": "What is 3 + 4?", "max_output_tokens": 50}))
        .generates()
        .answers::<ResponseHead>()
        .answers_named_events(),
        Route::get(OpenAi, "/v1/models", models::models, "The model that this server serves, as a list of one")
            .answers::<Models>(),
        Route::get(OpenAi, "/v1/models/{*id}", models::model, "The model with this id")
            .has_parameter("id", "The model's id, as in `/v1/models`; it may contain slashes")
            .refuses(&[(404, "This server serves no model with this id")])
            .answers::<Model>(),
        refused("/v1/embeddings", not_done::embeddings),
        refused("/v1/images/generations", not_done::images),
        refused("/v1/audio/speech", not_done::sound),
        refused("/v1/audio/transcriptions", not_done::sound),
        refused("/v1/moderations", not_done::moderations),
    ]
}

fn anthropic() -> Vec<Route> {
    let body = json!({"messages": messages(), "max_tokens": 50});
    vec![
        Route::post(
            Anthropic,
            "/v1/messages",
            messages::messages,
            "The next message of a conversation, whole or as server-sent events",
        )
        .reads::<MessagesRequest>(body.clone())
        .generates()
        .answers::<Message>()
        .answers_named_events(),
        Route::post(
            Anthropic,
            "/v1/messages/count_tokens",
            messages::count_tokens,
            "The number of tokens of a conversation",
        )
        .reads::<MessagesRequest>(body.clone())
        .answers::<TokenCount>(),
        Route::post(
            Anthropic,
            "/v1/messages/render",
            render::messages,
            "The tokens that the model would read for the same request to `/v1/messages`",
        )
        .reads::<MessagesRequest>(body)
        .answers::<RenderedPrompt>(),
    ]
}

fn server() -> Vec<Route> {
    vec![
        check("/health", health::health),
        check("/ping", health::health),
        check("/ready", health::ready),
        check("/readyz", health::ready),
        check("/", home::home),
        Route::get(Server, "/info", info::info, "The model, the version and the limits of this server")
            .answers::<Info>(),
        Route::get(Server, "/metrics", metrics::metrics, "The metrics, in Prometheus' text format")
            .has_list_in_query(metrics::NAME, "The name of a metric to return; without names, all are returned")
            .answers_text(TEXT),
        Route::get(
            Server,
            "/kv_event_sources",
            kv_event_sources::kv_event_sources,
            "The publishers of changes of the KV cache, by data-parallel rank",
        )
        .answers::<KvEventSources>(),
        file("/page.js", page::script, "The script that `/playground` and `/docs` share", "text/javascript"),
        file("/favicon.ico", page::icon, "The icon of the web pages", "image/svg+xml"),
        file("/playground", playground::page, "A web page to try the model", "text/html"),
        file("/playground/style.css", playground::style, "The style sheet of `/playground`", "text/css"),
        file("/playground/script.js", playground::script, "The script of `/playground`", "text/javascript"),
        file("/docs", docs::page, "This document, as a web page", "text/html"),
        file("/docs/style.css", docs::style, "The style sheet of `/docs`", "text/css"),
        file("/docs/script.js", docs::script, "The script of `/docs`", "text/javascript"),
        file("/api-doc/openapi.json", openapi::openapi, "This OpenAPI document, as JSON", JSON),
    ]
}

/// Returns a route of OpenAI's API that this server does not serve.
fn refused<H: Handler<T, AppState>, T: 'static>(path: &'static str, handler: H) -> Route {
    let summary = "Not supported: this server only generates text";
    Route::post(OpenAi, path, handler, summary).refuses(&[(501, "Always")])
}

/// Returns a health check.
fn check<H: Handler<T, AppState>, T: 'static>(path: &'static str, handler: H) -> Route {
    let unhealthy = (503, "The server is stopping, or its shards failed");
    Route::get(Server, path, handler, "Health check: status 200 if the server can serve requests")
        .answers_nothing()
        .refuses(&[unhealthy])
        .without_key()
}

/// Returns a file of the web pages.
fn file<H: Handler<T, AppState>, T: 'static>(
    path: &'static str,
    handler: H,
    summary: &'static str,
    media_type: &str,
) -> Route {
    Route::get(Server, path, handler, summary).answers_text(media_type).without_key()
}

fn native() -> Value {
    json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 50}})
}

fn messages() -> Value {
    json!([{"role": "user", "content": "What is 3 + 4?"}])
}
