//! `GET /api-doc/openapi.json`: a description of every route with its body, its responses and its errors. Its schemas
//! are generated from the API types.
//!
//! Each row of [`table`] both mounts a route and documents it. The command `print-schema` prints the same document.

use std::sync::LazyLock;

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{ComponentsBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, PathsBuilder};

use super::route::{BEARER, Dialect, JSON, X_API_KEY};
use super::table;

const TITLE: &str = "Hilo";
const OPENAI_KEY: &str = "The header `Authorization: Bearer KEY`, which OpenAI's clients send";
const ANTHROPIC_KEY: &str = "The header `x-api-key: KEY`, which Anthropic's clients send";
const DESCRIPTION: &str = "A large language model over HTTP, with the APIs of text-generation-inference, OpenAI and Anthropic. \
                           Unknown fields of a request are ignored. A known field that would change the answer, but is \
                           not supported, is an error that names the field.";

/// The handler of the route.
pub(super) async fn openapi() -> impl IntoResponse {
    static TEXT: LazyLock<String> = LazyLock::new(text);
    ([(CONTENT_TYPE, JSON)], TEXT.as_str())
}

/// Returns the document as JSON.
pub(crate) fn text() -> String {
    document().to_pretty_json().expect("a document consists of strings, numbers and lists")
}

fn document() -> OpenApi {
    let (mut paths, mut components) = (PathsBuilder::new().build(), ComponentsBuilder::new());
    for route in table::routes() {
        let (path, method) = (route.documented_path(), route.method.clone());
        let (operation, schemas) = route.finish();
        paths.add_path_operation(path, vec![method], operation);
        components = components.schemas_from_iter(schemas);
    }
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(OPENAI_KEY));
    let header = ApiKeyValue::with_description(X_API_KEY, ANTHROPIC_KEY);
    let components = components
        .security_scheme(BEARER, SecurityScheme::Http(bearer.build()))
        .security_scheme(X_API_KEY, SecurityScheme::ApiKey(ApiKey::Header(header)));
    let tag =
        |dialect: Dialect| TagBuilder::new().name(dialect.name()).description(Some(dialect.description())).build();
    let license = LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0")).build();
    let info = InfoBuilder::new().title(TITLE).version(env!("CARGO_PKG_VERSION")).description(Some(DESCRIPTION));
    OpenApiBuilder::new()
        .info(info.license(Some(license)))
        .paths(paths)
        .components(Some(components.build()))
        .tags(Some(Dialect::ALL.map(tag)))
        .build()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::body::Body;
    use axum::http::{Request, StatusCode};
    use serde_json::Value;

    use super::*;
    use crate::testing::{FakeShard, TestServer, json};

    fn documented() -> BTreeSet<(String, String)> {
        let document = json(&text());
        let paths = document["paths"].as_object().unwrap().iter();
        let operation = |(path, item): (&String, &Value)| {
            item.as_object().unwrap().keys().map(|method| (method.clone(), path.clone())).collect::<Vec<_>>()
        };
        paths.flat_map(operation).collect()
    }

    #[tokio::test]
    async fn every_example_is_answered_as_the_document_says() {
        let server = TestServer::start(FakeShard::default(), &[]).await;
        let document = json(&server.get("/api-doc/openapi.json").await.text);
        for (method, path) in documented() {
            let operation = &document["paths"][&path][&method];
            let body = &operation["requestBody"]["content"][JSON]["example"];
            let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
            let uri = path.replace("{id}", "demo");
            let request = Request::builder().method(method.to_uppercase().as_str()).uri(uri).body(body).unwrap();
            let answer = server.send(request).await;
            let documented = &operation["responses"][answer.status.as_str()];
            assert!(documented.is_object(), "{method} {path}: {} {}", answer.status, answer.text);
            let expected = if operation["responses"]["501"].is_object() { 501 } else { 200 };
            assert_eq!(answer.status, StatusCode::from_u16(expected).unwrap(), "{method} {path}: {}", answer.text);
            let types = documented["content"].as_object();
            let given = answer.headers.get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap());
            let is_known = types.is_none_or(|types| types.keys().any(|kind| given.unwrap().starts_with(kind)));
            assert!(is_known, "{method} {path}: {given:?}");
        }
    }

    #[test]
    fn every_name_in_the_document_is_defined() {
        let text = text();
        let document = json(&text);
        let names = text.split("#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap());
        for name in names {
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }

    #[test]
    fn the_document() {
        insta::assert_snapshot!(text());
    }
}
