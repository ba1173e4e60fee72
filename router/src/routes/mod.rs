//! To add a route: write a file with its handler, at most 30 lines (parse the body, call `generation`, shape the
//! response), and its test; add its `mod` line here, and a row to [`table`], which mounts and documents the route. A
//! type that a second route needs goes to `api/`.
//!
//! Four files apply to all routes: `access` asks for a key, if the server has keys; `whole_answers` counts the memory
//! of a large response until the client has read it; `stopping` refuses requests while the server stops; `fallback`
//! responds to requests that match no route.

mod access;
mod chat_completions;
mod chat_tokenize;
mod compat;
mod completions;
mod docs;
mod fallback;
mod generate;
mod generate_stream;
mod health;
mod home;
mod info;
mod invocations;
mod kv_event_sources;
mod messages;
mod metrics;
mod models;
mod not_done;
pub(crate) mod openapi;
mod page;
mod playground;
mod render;
mod responses;
mod route;
mod stopping;
mod table;
#[cfg(test)]
mod tests;
mod tokenize;
mod vertex;
mod whole_answers;

use axum::Router;
use axum::http::{HeaderValue, Method, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::api::{GENERATION_HEADERS, REQUEST_ID, request_id};
use crate::error::ApiError;
use crate::state::AppState;

/// Returns all routes, with the layers that apply to each: a request id, cross-origin rules, status 500 after a panic,
/// the end of the server, the check of the API key, and the memory of responses.
pub(crate) fn router(state: AppState) -> Router {
    let cors = cors(&state.info().config.cors_allow_origin);
    let routes = table::routes().into_iter();
    routes
        .fold(Router::new(), |router, route| router.route(route.path, route.handler))
        .fallback(fallback::not_found)
        .method_not_allowed_fallback(fallback::method_not_allowed)
        .layer(from_fn_with_state(state.clone(), whole_answers::count))
        .layer(from_fn_with_state(state.clone(), access::check_key))
        .layer(from_fn_with_state(state.clone(), stopping::tell))
        .with_state(state)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(cors)
        .layer(from_fn(request_id))
}

/// Returns the response after a panic, which the panic hook has logged.
fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    ApiError::Panic.into_response()
}

/// Returns the cross-origin rules. Pages of `origins` may call the server, or pages of any origin if the list is empty
/// or contains `*`. These pages may send any header, because SDKs send many of their own, and may read the headers with
/// which this server describes a response.
fn cors(origins: &[String]) -> CorsLayer {
    let allows_any = origins.is_empty() || origins.iter().any(|origin| origin == "*");
    let origins = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok());
    let allow_origin = if allows_any { AllowOrigin::any() } else { AllowOrigin::list(origins) };
    CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(
            GENERATION_HEADERS
                .into_iter()
                .chain([REQUEST_ID, header::RETRY_AFTER, header::WWW_AUTHENTICATE])
                .collect::<Vec<_>>(),
        )
        .allow_origin(allow_origin)
}
