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
        post("/generate", "a generation as one JSON object")
            .reads::<GenerateRequest>(native())
            .generates()
            .answers::<GenerateResponse>(),
        post("/generate_stream", "a generation as server-sent events, one for each token")
            .reads::<GenerateRequest>(native())
            .generates()
            .answers_events::<StreamResponse>(),
        post("/", "either, by the field `stream`")
            .reads::<CompatRequest>(native())
            .generates()
            .answers_list::<GenerateResponse>()
            .answers_events::<StreamResponse>(),
        post("/tokenize", "the tokens of a prompt")
            .reads::<GenerateRequest>(native())
            .answers_list::<SimpleToken<'_>>(),
        post("/chat_tokenize", "the text that the chat template makes of a conversation, and its tokens")
            .reads::<ChatRequest>(json!({"messages": messages()}))
            .answers::<ChatTokenizeResponse<'_>>(),
        post("/invocations", "what SageMaker calls: `/`, `/v1/chat/completions` or `/v1/completions`, by the body")
            .may_speak_as_openai()
            .reads::<InvocationsRequest>(native())
            .generates()
            .answers::<InvocationsResponse>()
            .answers_events::<StreamResponse>(),
        post("/vertex", "what Vertex AI calls: several prompts or conversations, and a text for each")
            .reads::<VertexRequest>(json!({"instances": [native()]}))
            .generates()
            .answers::<VertexResponse>(),
    ]
}

fn openai() -> Vec<Route> {
    let post = |path, summary| Route::post(OpenAi, path, summary);
    let not_done = |path| post(path, "not done here: this server generates text").refuses(&[(501, "always")]);
    vec![
        post("/v1/chat/completions", "the next message of a conversation, whole or as server-sent events")
            .reads::<ChatBody>(json!({"messages": messages(), "max_tokens": 50}))
            .generates()
            .answers::<ChatCompletion>()
            .answers_events::<ChatCompletionChunk<'static>>(),
        post("/v1/completions", "what follows a prompt, or several, whole or as server-sent events")
            .reads::<CompletionBody>(json!({"prompt": "Once upon a time", "max_tokens": 50}))
            .generates()
            .answers::<TextCompletion>()
            .answers_events::<TextCompletionChunk<'static>>(),
        post("/v1/responses", "an answer to a text or to items, whole or as server-sent events; nothing is kept")
            .reads::<OpenAiBody<ResponsesRequest>>(json!({"input": "What is 3 + 4?", "max_output_tokens": 50}))
            .generates()
            .answers::<ResponseHead>()
            .answers_named_events(),
        Route::get(OpenAi, "/v1/models", "the model that is served").answers::<Models>(),
        Route::get(OpenAi, "/v1/models/{id}", "the model, by its name")
            .has_parameter("id", "as `/v1/models` says it; it may have slashes")
            .refuses(&[(404, "another model is served")])
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
        Route::post(Anthropic, "/v1/messages", "the next message of a conversation, whole or as server-sent events")
            .reads::<MessagesRequest>(body.clone())
            .generates()
            .answers::<Message>()
            .answers_named_events(),
        Route::post(Anthropic, "/v1/messages/count_tokens", "how many tokens a conversation has")
            .reads::<MessagesRequest>(body)
            .answers::<TokenCount>(),
    ]
}

fn server() -> Vec<Route> {
    let get = |path, summary| Route::get(Server, path, summary);
    let health = |path| {
        let unhealthy = (503, "the server stops, or its shards failed");
        get(path, "whether requests can be served").answers_nothing().refuses(&[unhealthy]).without_key()
    };
    let file = |path, summary, media_type| get(path, summary).answers_text(media_type).without_key();
    vec![
        health("/health"),
        health("/ping"),
        health("/"),
        get("/info", "facts of the server").answers::<Info>(),
        get("/metrics", "metrics in the text format of Prometheus").answers_text(TEXT),
        file("/page.js", "what both pages do", "text/javascript"),
        file("/favicon.ico", "the picture of their tabs", "image/svg+xml"),
        file("/playground", "a page to try the model", "text/html"),
        file("/playground/style.css", "how it looks", "text/css"),
        file("/playground/script.js", "what it does", "text/javascript"),
        file("/docs", "this document as a page", "text/html"),
        file("/docs/style.css", "how it looks", "text/css"),
        file("/docs/script.js", "what it does", "text/javascript"),
        file("/api-doc/openapi.json", "this document", JSON),
    ]
}

fn native() -> Value {
    json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 50}})
}

fn messages() -> Value {
    json!([{"role": "user", "content": "What is 3 + 4?"}])
}
