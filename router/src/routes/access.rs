//! Access control. If there are API keys, a request needs one, unless it reads a path in [`OPEN`].
//!
//! A client sends the key in a header: `Authorization: Bearer <key>`, as OpenAI's clients do, or `x-api-key: <key>`, as
//! Anthropic's do.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::api::RequestContext;
use crate::error::ApiError;
use crate::state::AppState;

const X_API_KEY: &str = "x-api-key";
/// The paths that can be read without a key: health checks for load balancers, which have no key, and the web pages,
/// into which a user types the key, with the files that the pages load.
const OPEN: [&str; 14] = [
    "/",
    "/health",
    "/ping",
    "/favicon.ico",
    "/page.js",
    "/api-doc/openapi.json",
    "/docs",
    "/docs/",
    "/docs/script.js",
    "/docs/style.css",
    "/playground",
    "/playground/",
    "/playground/script.js",
    "/playground/style.css",
];

/// Middleware that refuses requests without a valid key, unless the server has no keys or the request reads a path in
/// [`OPEN`]. A valid key determines the tenant of the request.
pub(super) async fn check_key(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let keys = state.api_keys();
    let path = request.uri().path();
    let is_open = matches!(*request.method(), Method::GET | Method::HEAD) && OPEN.contains(&path);
    if keys.is_empty() || is_open {
        return next.run(request).await;
    }
    let given = given_key(request.headers());
    let Some(tenant) = given.and_then(|key| keys.tenant(key)) else {
        return ApiError::Unauthorized { has_key: given.is_some() }.for_path(path, request.headers());
    };
    if let Some(context) = request.extensions_mut().get_mut::<RequestContext>() {
        context.tenant = tenant;
    }
    next.run(request).await
}

fn given_key(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let bearer = text(header::AUTHORIZATION.as_str()).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.or_else(|| text(X_API_KEY).map(str::trim))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::StatusCode;

    use super::*;
    use crate::testing::{FakeShard, TestServer, json};

    async fn status(server: &TestServer, request: axum::http::request::Builder) -> StatusCode {
        server.send(request.body(Body::empty()).unwrap()).await.status
    }

    #[tokio::test]
    async fn a_key_opens_every_route() {
        let server = TestServer::start(FakeShard::default(), &["--api-key=one,two"]).await;
        for path in ["/health", "/ping", "/"] {
            assert_eq!(status(&server, Request::get(path)).await, StatusCode::OK, "{path}");
            assert_eq!(status(&server, Request::head(path)).await, StatusCode::OK, "HEAD {path}");
        }
        assert_eq!(status(&server, Request::head("/info")).await, StatusCode::UNAUTHORIZED);
        for path in ["/info", "/metrics", "/v1/models", "/nowhere"] {
            let without = server.get(path).await;
            assert_eq!(without.status, StatusCode::UNAUTHORIZED, "{path}");
            assert_eq!(without.headers[header::WWW_AUTHENTICATE], "Bearer");
            let wrong = Request::get(path).header(header::AUTHORIZATION, "Bearer on");
            assert_eq!(status(&server, wrong).await, StatusCode::UNAUTHORIZED, "{path}");
        }
        let right =
            [(header::AUTHORIZATION.as_str(), "Bearer two"), ("authorization", "bearer one"), (X_API_KEY, "one")];
        for (name, value) in right {
            let request = Request::get("/v1/models").header(name, value);
            assert_eq!(status(&server, request).await, StatusCode::OK, "{name}: {value}");
        }
        let post = Request::post("/").header(X_API_KEY, "three");
        assert_eq!(status(&server, post).await, StatusCode::UNAUTHORIZED);
        let preflight = Request::options("/generate")
            .header("origin", "https://a.example")
            .header("access-control-request-method", "POST");
        assert_eq!(status(&server, preflight).await, StatusCode::OK, "browsers send preflight requests without a key");
    }

    #[tokio::test]
    async fn a_refused_client_is_told_why() {
        let server = TestServer::start(FakeShard::default(), &["--api-key=one"]).await;
        let native = json(&server.get("/info").await.text);
        assert_eq!(native["error_type"], "unauthorized");
        assert!(native["error"].as_str().unwrap().contains("Authorization: Bearer"), "{native}");
        let openai = json(&server.get("/v1/models").await.text);
        assert_eq!(openai["error"]["code"], "unauthorized", "{openai}");
        let anthropic = json(&server.get("/v1/messages").await.text);
        assert_eq!(anthropic["error"]["type"], "authentication_error", "{anthropic}");
    }
}
