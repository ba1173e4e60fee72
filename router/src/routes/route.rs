//! One route: its handler, and its part of the OpenAPI document, built from the types of its body and its responses.

use axum::handler::Handler;
use axum::routing::{self, MethodRouter};
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::extensions::ExtensionsBuilder;
use utoipa::openapi::path::{Operation, OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ArrayBuilder, OneOfBuilder, Ref, Schema};
use utoipa::openapi::{
    ContentBuilder, HttpMethod, ObjectBuilder, RefOr, Required, ResponseBuilder, SecurityRequirement, Type,
};

use crate::error::{AnthropicErrorBody, ErrorBody, OpenAiErrorBody};
use crate::state::AppState;

pub(super) const JSON: &str = "application/json";
pub(super) const EVENTS: &str = "text/event-stream";
pub(super) const TEXT: &str = "text/plain";

/// The OpenAPI extension that holds the schema of an event's data.
const EVENT_DATA: &str = "x-json";

/// The two ways to send an API key, by their names in the OpenAPI document.
pub(super) const BEARER: &str = "bearer";
pub(super) const X_API_KEY: &str = "x-api-key";

/// An error status, and the reason for it. `crate::error` has the whole table.
pub(super) type Refusal = (u16, &'static str);

/// The errors of every route that reads a body.
const READING: [Refusal; 8] = [
    (
        400,
        "The body is not valid JSON or is incomplete; the chat template is missing or rejects the conversation; or, below `/v1`, prompt and max new tokens exceed the context",
    ),
    (408, "The body arrived too slowly"),
    (413, "The body is larger than `--payload-limit`, or needs more memory than `--memory-budget` has for bodies"),
    (415, "The body is compressed, or a web page sent it without `Content-Type: application/json`"),
    (422, "A field is missing, has the wrong type, is out of range, or asks for something that is not supported"),
    (
        429,
        "Too many requests, too many waiting tokens, or not enough memory; the header `Retry-After` says when to retry",
    ),
    (500, "Internal error: a bug in this server"),
    (503, "The server is shutting down; send the request again, to another server"),
];
/// The errors of every route that generates.
const GENERATING: [Refusal; 2] = [
    (424, "The generation failed, for example because a device failed; retry on another server"),
    (504, "The request took longer than `--request-timeout`"),
];
const NO_KEY: Refusal = (401, "The server requires an API key, and the request has none that is valid");

/// The API to which a route belongs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Dialect {
    Tgi,
    OpenAi,
    Anthropic,
    Server,
}

/// A route: one row of `table`.
pub(super) struct Route {
    pub(super) method: HttpMethod,
    /// The path as axum matches it.
    pub(super) path: &'static str,
    pub(super) handler: MethodRouter<AppState>,
    /// The schemas of the route's types, by name. The same name may occur several times.
    schemas: Vec<(String, RefOr<Schema>)>,
    dialect: Dialect,
    operation: OperationBuilder,
    summary: &'static str,
    /// The response on success; `None` if the route never succeeds.
    answer: Option<ResponseBuilder>,
    is_open: bool,
    has_openai_errors: bool,
}

impl Dialect {
    pub(super) const ALL: [Self; 4] = [Self::Tgi, Self::OpenAi, Self::Anthropic, Self::Server];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tgi => "TGI",
            Self::OpenAi => "OpenAI",
            Self::Anthropic => "Anthropic",
            Self::Server => "Server",
        }
    }

    pub(super) fn description(self) -> &'static str {
        match self {
            Self::Tgi => "The API of text-generation-inference, and the routes that SageMaker and Vertex AI call",
            Self::OpenAi => "OpenAI's API; its clients need `/v1` of this server as their base URL",
            Self::Anthropic => "Anthropic's API",
            Self::Server => "Health, metrics, facts about the server, and its web pages",
        }
    }
}

impl Route {
    pub(super) fn get<H: Handler<T, AppState>, T: 'static>(
        dialect: Dialect,
        path: &'static str,
        handler: H,
        summary: &'static str,
    ) -> Self {
        Self::new(HttpMethod::Get, dialect, path, routing::get(handler), summary)
    }

    pub(super) fn post<H: Handler<T, AppState>, T: 'static>(
        dialect: Dialect,
        path: &'static str,
        handler: H,
        summary: &'static str,
    ) -> Self {
        Self::new(HttpMethod::Post, dialect, path, routing::post(handler), summary)
    }

    fn new(
        method: HttpMethod,
        dialect: Dialect,
        path: &'static str,
        handler: MethodRouter<AppState>,
        summary: &'static str,
    ) -> Self {
        Self {
            method,
            path,
            handler,
            schemas: Vec::new(),
            dialect,
            operation: OperationBuilder::new().tag(dialect.name()).summary(Some(summary)),
            summary,
            answer: None,
            is_open: false,
            has_openai_errors: false,
        }
    }

    /// Returns the path as OpenAPI writes it, which has no wildcards.
    pub(super) fn documented_path(&self) -> String {
        self.path.replace("{*", "{")
    }

    /// Adds the type of the body, and the errors that reading a body can have.
    pub(super) fn reads<T: ToSchema>(mut self, example: Value) -> Self {
        let schema = self.schema::<T>();
        let content = ContentBuilder::new().schema(Some(schema)).example(Some(example)).build();
        let body = RequestBodyBuilder::new().content(JSON, content).required(Some(Required::True)).build();
        self.operation = self.operation.request_body(Some(body));
        self.refuses(&READING)
    }

    /// Adds the errors that generating can have.
    pub(super) fn generates(self) -> Self {
        self.refuses(&GENERATING)
    }

    /// Adds a response with a `T` as JSON.
    pub(super) fn answers<T: ToSchema>(mut self) -> Self {
        let schema = self.schema::<T>();
        self.has_content(JSON, schema)
    }

    /// Adds a response of server-sent events with a `T` as data.
    pub(super) fn answers_events<T: ToSchema>(mut self) -> Self {
        let schema = self.schema::<T>();
        self.has_events(&json!(schema))
    }

    /// Adds a response of named server-sent events of several types.
    pub(super) fn answers_named_events(self) -> Self {
        self.has_events(&json!({"type": "object", "required": ["type"]}))
    }

    /// Adds a response of server-sent events. OpenAPI 3.1 has no schema for the events of a stream (3.2 has), so one
    /// event is described, and the extension [`EVENT_DATA`] describes the JSON in its data.
    fn has_events(self, data: &Value) -> Self {
        let extensions = ExtensionsBuilder::new().add(EVENT_DATA, data.clone()).build();
        let text = || ObjectBuilder::new().schema_type(Type::String);
        let event =
            ObjectBuilder::new().property("event", text()).property("data", text().extensions(Some(extensions)));
        self.has_content(EVENTS, event.description(Some("One server-sent event")))
    }

    /// Adds a response with a list of `T` as JSON.
    pub(super) fn answers_list<T: ToSchema>(mut self) -> Self {
        let schema = ArrayBuilder::new().items(self.schema::<T>());
        self.has_content(JSON, schema)
    }

    /// Adds a response that is text of this media type.
    pub(super) fn answers_text(self, media_type: &str) -> Self {
        self.has_content(media_type, ObjectBuilder::new().schema_type(Type::String))
    }

    /// Adds a response without a body.
    pub(super) fn answers_nothing(mut self) -> Self {
        self.answer = Some(ResponseBuilder::new().description(self.summary));
        self
    }

    fn has_content(mut self, media_type: &str, schema: impl Into<RefOr<Schema>>) -> Self {
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let answer = self.answer.unwrap_or_else(|| ResponseBuilder::new().description(self.summary));
        self.answer = Some(answer.content(media_type, content));
        self
    }

    /// Adds a variable part of the path.
    pub(super) fn has_parameter(mut self, name: &str, description: &str) -> Self {
        let schema = ObjectBuilder::new().schema_type(Type::String);
        let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path).required(Required::True);
        let parameter = parameter.description(Some(description)).schema(Some(schema)).build();
        self.operation = self.operation.parameter(parameter);
        self
    }

    /// Adds a parameter of the query that may be absent and may occur several times.
    pub(super) fn has_list_in_query(mut self, name: &str, description: &str) -> Self {
        let schema = ArrayBuilder::new().items(ObjectBuilder::new().schema_type(Type::String));
        let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Query).required(Required::False);
        let parameter = parameter.description(Some(description)).schema(Some(schema)).build();
        self.operation = self.operation.parameter(parameter);
        self
    }

    /// Adds error responses.
    pub(super) fn refuses(mut self, refusals: &[Refusal]) -> Self {
        for (status, when) in refusals {
            let schema = match self.dialect {
                Dialect::Tgi if self.has_openai_errors => RefOr::T(self.either_error()),
                Dialect::Tgi | Dialect::Server => self.schema::<ErrorBody>().into(),
                Dialect::OpenAi => self.schema::<OpenAiErrorBody>().into(),
                Dialect::Anthropic => self.schema::<AnthropicErrorBody>().into(),
            };
            let content = ContentBuilder::new().schema(Some(schema)).build();
            let response = ResponseBuilder::new().description(*when).content(JSON, content).build();
            self.operation = self.operation.response(status.to_string(), response);
        }
        self
    }

    /// Documents that errors may also have OpenAI's shape. Must be called before errors are added.
    pub(super) fn may_speak_as_openai(mut self) -> Self {
        self.has_openai_errors = true;
        self
    }

    /// Marks the route as one that never asks for a key.
    pub(super) fn without_key(mut self) -> Self {
        self.is_open = true;
        self
    }

    /// Returns the route's operation in the OpenAPI document, and the schemas to which the operation refers.
    pub(super) fn finish(mut self) -> (Operation, Vec<(String, RefOr<Schema>)>) {
        if !self.is_open {
            self = self.refuses(&[NO_KEY]);
            // The empty first requirement means that a server may have no keys.
            let none = SecurityRequirement::default();
            let keys = [BEARER, X_API_KEY].map(|name| SecurityRequirement::new(name, Vec::<String>::new()));
            self.operation = self.operation.securities(Some([none].into_iter().chain(keys)));
        }
        if let Some(answer) = self.answer {
            self.operation = self.operation.response("200", answer.build());
        }
        (self.operation.build(), self.schemas)
    }

    fn either_error(&mut self) -> Schema {
        let errors = OneOfBuilder::new().item(self.schema::<ErrorBody>()).item(self.schema::<OpenAiErrorBody>());
        Schema::OneOf(errors.build())
    }

    fn schema<T: ToSchema>(&mut self) -> Ref {
        let name = T::name().into_owned();
        T::schemas(&mut self.schemas);
        self.schemas.push((name.clone(), T::schema()));
        Ref::from_schema_name(name)
    }
}
