//! `GET /`: the same as `/health`, but a browser also gets the page of the playground.

use axum::extract::State;
use axum::http::header::{ACCEPT, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};

use super::{health, playground};
use crate::error::ApiError;
use crate::state::AppState;

/// The handler of the route.
pub(super) async fn home(state: State<AppState>, headers: HeaderMap) -> Result<Response, ApiError> {
    health::health(state).await?;
    let mut response = if is_browser(&headers) { playground::page().await } else { ().into_response() };
    response.headers_mut().append(VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

/// True for browsers, which list HTML among the types that they accept. Probes and clients accept any type, or send no
/// header.
fn is_browser(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let kinds = accepted.flat_map(|value| value.split(',')).filter_map(|range| range.split(';').next());
    kinds.into_iter().any(|kind| kind.trim().eq_ignore_ascii_case("text/html"))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::{Request, StatusCode};

    use super::*;
    use crate::testing::{FakeShard, TestServer};

    #[tokio::test]
    async fn browsers_get_a_page_and_probes_get_a_status() {
        let server = TestServer::start(FakeShard::default(), &["--api-key=secret"]).await;
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for (accept, is_page) in
            [(browser, true), ("Text/HTML;level=1", true), ("*/*", false), ("application/json", false)]
        {
            let request = Request::get("/").header(ACCEPT, accept).body(Body::empty()).unwrap();
            let answer = server.send(request).await;
            assert_eq!(answer.status, StatusCode::OK, "{accept}");
            assert_eq!(answer.text.starts_with("<!doctype html>"), is_page, "{accept}: {}", answer.text);
            assert!(is_page || answer.text.is_empty());
            assert!(answer.headers.get_all(VARY).iter().any(|value| value == "accept"), "{:?}", answer.headers);
        }
        assert_eq!(server.get("/").await.text, "");
    }
}
