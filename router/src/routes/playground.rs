//! `GET /playground`: a page to try the model in a browser. Three files inside the executable; nothing comes from elsewhere, and the
//! browser is told to ask nobody else.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page.
pub(super) async fn page() -> Response {
    file("text/html; charset=utf-8", include_str!("../playground/index.html"))
}

/// How it looks.
pub(super) async fn style() -> Response {
    file("text/css; charset=utf-8", concat!(include_str!("../page.css"), include_str!("../playground/style.css")))
}

/// What it does.
pub(super) async fn script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("../playground/script.js"))
}

/// A file of a page that may ask this server only.
pub(super) fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;
    use crate::testing::{FakeShard, TestServer};

    #[tokio::test]
    async fn the_page_is_whole_and_open() {
        let server = TestServer::start(FakeShard::default(), &["--api-key=secret"]).await;
        let page = server.get("/playground").await;
        assert_eq!(page.status, StatusCode::OK, "a browser that opens a page has no key yet");
        let files = page.text.split(['"', '\'']).filter(|word| word.starts_with("/playground/"));
        let mut count = 0;
        for path in files {
            let file = server.get(path).await;
            assert_eq!(file.status, StatusCode::OK, "{path}");
            assert!(file.headers[CONTENT_SECURITY_POLICY].to_str().unwrap().starts_with("default-src 'none'"));
            assert!(!file.text.contains("http://") && !file.text.contains("https://"), "{path} asks somebody else");
            count += 1;
        }
        assert_eq!(count, 2);
    }
}
