//! Requests for unknown routes: 404 or 405, in the shape of the API to which the path belongs, or a redirect to a page.
//!
//! The body of an error names the path and the method, because a wrong base URL is a common mistake.

use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Redirect, Response};

use crate::error::ApiError;

/// Returns the response to a path that no route has: an error, or a redirect if the path is that of a page with a slash
/// at the end.
pub(super) async fn not_found(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    match uri.path() {
        "/docs/" if method == Method::GET => Redirect::permanent("/docs").into_response(),
        "/playground/" if method == Method::GET => Redirect::permanent("/playground").into_response(),
        path => ApiError::NotFound { method, path: path.to_owned() }.for_path(path, &headers),
    }
}

/// Returns the error for a path whose route does not accept the method.
pub(super) async fn method_not_allowed(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    ApiError::MethodNotAllowed { method, path: uri.path().to_owned() }.for_path(uri.path(), &headers)
}
