//! Routes of OpenAI's API that are for something other than text. They return 501, because clients would take 404 for a
//! wrong address.

use crate::error::{ApiError, OpenAiError};

/// The handler of `/v1/embeddings`.
pub(super) async fn embeddings() -> OpenAiError {
    ApiError::NotDone("embeddings").into()
}

/// The handler of `/v1/images/generations`.
pub(super) async fn images() -> OpenAiError {
    ApiError::NotDone("images").into()
}

/// The handler of `/v1/audio/speech` and `/v1/audio/transcriptions`.
pub(super) async fn sound() -> OpenAiError {
    ApiError::NotDone("sounds").into()
}

/// The handler of `/v1/moderations`.
pub(super) async fn moderations() -> OpenAiError {
    ApiError::NotDone("moderations").into()
}
