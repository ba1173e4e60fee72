//! The routes, by API. The examples are bodies to which the demo model can respond.

use serde_json::{Value, json};

use super::route::Dialect::{Anthropic, OpenAi, Server, Tgi};
use super::route::{JSON, Route, TEXT};
use crate::api::anthropic::{Message, MessagesRequest, TokenCount};
use crate::api::openai::{
    ChatCompletion, ChatCompletionChunk, ChatCompletionRequest, CompletionRequest, Model, Models, OpenAiBody,
    TextCompletion, TextCompletionChunk,
};
use crate::api::responses::{ResponseHead, ResponsesRequest};
use crate::api::{
    ChatRequest, ChatTokenizeResponse, CompatRequest, GenerateRequest, GenerateResponse, SimpleToken, StreamResponse,
};
use crate::routes::info::Info;
use crate::routes::invocations::{InvocationsRequest, InvocationsResponse};
use crate::routes::vertex::{VertexRequest, VertexResponse};

type ChatBody = OpenAiBody<ChatCompletionRequest>;
type CompletionBody = OpenAiBody<CompletionRequest>;

/// Returns all routes, in the order of the document.
pub(super) fn routes() -> Vec<Route> {
    [tgi(), openai(), anthropic(), server()].into_iter().flatten().collect()
}

fn tgi() -> Vec<Route> {
    let post = |path, summary| Route::post(Tgi, path, summary);
    vec![
        post("/generate", "The generated text, as one JSON object")
            .reads::<GenerateRequest>(native())
            .generates()
            .answers::<GenerateResponse>(),
        post("/generate_stream", "The generated text, as server-sent events, one for each token")
            .reads::<GenerateRequest>(native())
            .generates()
            .answers_events::<StreamResponse>(),
        post("/", "The response of `/generate_stream` if `stream` is true, else that of `/generate`, in a list")
            .reads::<CompatRequest>(native())
            .generates()
            .answers_list::<GenerateResponse>()
            .answers_events::<StreamResponse>(),
        post("/tokenize", "The tokens of a prompt")
            .reads::<GenerateRequest>(native())
            .answers_list::<SimpleToken<'_>>(),
        post("/chat_tokenize", "The prompt that the chat template makes of a conversation, and its tokens")
            .reads::<ChatRequest>(json!({"messages": messages()}))
            .answers::<ChatTokenizeResponse<'_>>(),
        post(
            "/invocations",
            "For SageMaker: as `/`, `/v1/chat/completions` or `/v1/completions`, depending on the body",
        )
        .may_speak_as_openai()
        .reads::<InvocationsRequest>(native())
        .generates()
        .answers::<InvocationsResponse>()
        .answers_events::<StreamResponse>(),
        post("/vertex", "For Vertex AI: the generated texts for several prompts or conversations")
            .reads::<VertexRequest>(json!({"instances": [native()]}))
            .generates()
            .answers::<VertexResponse>(),
    ]
}

fn openai() -> Vec<Route> {
    let post = |path, summary| Route::post(OpenAi, path, summary);
    let not_done = |path| post(path, "Not supported: this server only generates text").refuses(&[(501, "Always")]);
    vec![
        post("/v1/chat/completions", "The next message of a conversation, whole or as server-sent events")
            .reads::<ChatBody>(json!({"messages": messages(), "max_tokens": 50}))
            .generates()
            .answers::<ChatCompletion>()
            .answers_events::<ChatCompletionChunk<'static>>(),
        post("/v1/completions", "The completions of one or more prompts, whole or as server-sent events")
            .reads::<CompletionBody>(json!({"prompt": "Once upon a time", "max_tokens": 50}))
            .generates()
            .answers::<TextCompletion>()
            .answers_events::<TextCompletionChunk<'static>>(),
        post("/v1/responses", "The response to a text or a list of items, whole or as events; nothing is stored")
            .reads::<OpenAiBody<ResponsesRequest>>(json!({"input": "What is 3 + 4?", "max_output_tokens": 50}))
            .generates()
            .answers::<ResponseHead>()
            .answers_named_events(),
        Route::get(OpenAi, "/v1/models", "The model that this server serves, as a list of one").answers::<Models>(),
        Route::get(OpenAi, "/v1/models/{id}", "The model with this id")
            .has_parameter("id", "The model's id, as in `/v1/models`; it may contain slashes")
            .refuses(&[(404, "This server serves no model with this id")])
            .answers::<Model>(),
        not_done("/v1/embeddings"),
        not_done("/v1/images/generations"),
        not_done("/v1/audio/speech"),
        not_done("/v1/audio/transcriptions"),
        not_done("/v1/moderations"),
    ]
}

fn anthropic() -> Vec<Route> {
    let body = json!({"messages": messages(), "max_tokens": 50});
    vec![
        Route::post(Anthropic, "/v1/messages", "The next message of a conversation, whole or as server-sent events")
            .reads::<MessagesRequest>(body.clone())
            .generates()
            .answers::<Message>()
            .answers_named_events(),
        Route::post(Anthropic, "/v1/messages/count_tokens", "The number of tokens of a conversation")
            .reads::<MessagesRequest>(body)
            .answers::<TokenCount>(),
    ]
}

fn server() -> Vec<Route> {
    let get = |path, summary| Route::get(Server, path, summary);
    let health = |path| {
        let unhealthy = (503, "The server is stopping, or its shards failed");
        get(path, "Health check: status 200 if the server can serve requests")
            .answers_nothing()
            .refuses(&[unhealthy])
            .without_key()
    };
    let file = |path, summary, media_type| get(path, summary).answers_text(media_type).without_key();
    vec![
        health("/health"),
        health("/ping"),
        health("/"),
        get("/info", "The model, the version and the limits of this server").answers::<Info>(),
        get("/metrics", "The metrics, in Prometheus' text format").answers_text(TEXT),
        file("/page.js", "The script that `/playground` and `/docs` share", "text/javascript"),
        file("/favicon.ico", "The icon of the web pages", "image/svg+xml"),
        file("/playground", "A web page to try the model", "text/html"),
        file("/playground/style.css", "The style sheet of `/playground`", "text/css"),
        file("/playground/script.js", "The script of `/playground`", "text/javascript"),
        file("/docs", "This document, as a web page", "text/html"),
        file("/docs/style.css", "The style sheet of `/docs`", "text/css"),
        file("/docs/script.js", "The script of `/docs`", "text/javascript"),
        file("/api-doc/openapi.json", "This OpenAPI document, as JSON", JSON),
    ]
}

fn native() -> Value {
    json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 50}})
}

fn messages() -> Value {
    json!([{"role": "user", "content": "What is 3 + 4?"}])
}
