//! `GET /docs`: the OpenAPI document as a page.

use axum::response::Response;

use super::page::file;

/// The HTML of the page.
pub(super) async fn page() -> Response {
    file("text/html; charset=utf-8", include_str!("../docs/index.html"))
}

/// The style sheet of the page.
pub(super) async fn style() -> Response {
    file("text/css; charset=utf-8", concat!(include_str!("../page.css"), include_str!("../docs/style.css")))
}

/// The script of the page.
pub(super) async fn script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("../docs/script.js"))
}
