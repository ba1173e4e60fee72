//! `GET /metrics`: all metrics in Prometheus' text format.
//!
//! The table of metrics is in `crate::metrics`.

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use crate::state::AppState;

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The handler of the route.
pub(super) async fn metrics(State(state): State<AppState>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], state.metrics().render())
}
