//! `GET /page.js` and `/favicon.ico`: the files that the two web pages, `/docs` and `/playground`, share. All files of
//! the pages are part of the executable. Their content security policy forbids requests to other servers.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The script of both pages.
pub(super) async fn script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("../page.js"))
}

/// The icon of both pages.
pub(super) async fn icon() -> Response {
    file("image/svg+xml", include_str!("../favicon.svg"))
}

/// Returns a file of a page that may only send requests to this server.
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
    async fn each_page_is_whole_and_open() {
        let server = TestServer::start(FakeShard::default(), &["--api-key=secret"]).await;
        for path in ["/playground", "/docs"] {
            let page = server.get(path).await;
            assert_eq!(page.status, StatusCode::OK, "a browser that opens a page has no key yet");
            let names = page.text.split(['"', '\'']);
            let is_file = |name: &&str| [".css", ".js", ".ico"].iter().any(|end| name.ends_with(end));
            let files: Vec<&str> = names.filter(is_file).collect();
            assert_eq!(files.len(), 4, "{files:?}");
            for path in files {
                let file = server.get(path).await;
                assert_eq!(file.status, StatusCode::OK, "{path}");
                assert!(file.headers[CONTENT_SECURITY_POLICY].to_str().unwrap().starts_with("default-src 'none'"));
                let text = file.text.replace("http://www.w3.org/2000/svg", "");
                assert!(!text.contains("http://") && !text.contains("https://"), "{path} refers to another server");
            }
            let with_slash = server.get(&format!("{path}/")).await;
            assert_eq!(with_slash.status, StatusCode::PERMANENT_REDIRECT);
            assert_eq!(with_slash.headers["location"], path);
        }
        assert_eq!(server.get("/info/").await.status, StatusCode::UNAUTHORIZED, "/info is not a page");
    }
}
