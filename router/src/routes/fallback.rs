//! Everything that is no route: 404 or 405, in the shape of the API that the path belongs to.
//!
//! The body names what was asked, because a wrong base URL is the most common reason.

use axum::http::{HeaderMap, Method, Uri};
use axum::response::Response;

use crate::error::ApiError;

/// No route has this path.
pub(super) async fn not_found(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    ApiError::NotFound { method, path: uri.path().to_owned() }.for_path(uri.path(), &headers)
}

/// A route has this path, for other methods.
pub(super) async fn method_not_allowed(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    ApiError::MethodNotAllowed { method, path: uri.path().to_owned() }.for_path(uri.path(), &headers)
}
