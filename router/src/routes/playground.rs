//! `GET /playground`: a page to try the model in a browser.

use axum::response::Response;

use super::page::file;

/// The HTML of the page.
pub(super) async fn page() -> Response {
    file("text/html; charset=utf-8", include_str!("../playground/index.html"))
}

/// The style sheet of the page.
pub(super) async fn style() -> Response {
    file("text/css; charset=utf-8", concat!(include_str!("../page.css"), include_str!("../playground/style.css")))
}

/// The script of the page.
pub(super) async fn script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("../playground/script.js"))
}
