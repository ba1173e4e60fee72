//! Everything that is no route: 404 or 405.
//!
//! The body names what was asked, because a wrong base URL is the most common reason.

use axum::http::{Method, Uri};

use crate::error::ApiError;

/// No route has this path.
pub(super) async fn not_found(method: Method, uri: Uri) -> ApiError {
    ApiError::NotFound { method, path: uri.path().to_owned() }
}

/// A route has this path, for other methods.
pub(super) async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    ApiError::MethodNotAllowed { method, path: uri.path().to_owned() }
}
