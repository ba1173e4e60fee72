//! Parses a JSON body, with errors that name the path of the wrong field. `incoming` receives the bytes.
//!
//! The error messages begin like axum's. TGI sends those as plain text; this server sends them as JSON, like every
//! other error.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

use super::incoming::IncomingBody;
use crate::error::ApiError;
use crate::state::AppState;

/// Bodies of at least this number of bytes are parsed on a thread of their own (see `crate::aside`), because parsing
/// JSON with many small values takes long.
const MIN_ASIDE_BYTES: usize = 32 << 10;

/// A parsed body.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<AppState> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        read_as(request, state, parse).await.map(Self)
    }
}

/// Reads the whole body and parses it with `parse`.
///
/// # Errors
/// As [`IncomingBody::read`] and [`parse_aside`].
pub(crate) async fn read_as<T: Send + 'static>(
    request: Request,
    state: &AppState,
    parse: fn(&[u8]) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let body = IncomingBody::read(request, state).await?;
    let parsed = parse_aside(body.bytes.clone(), state, parse).await?;
    body.parsed();
    Ok(parsed)
}

/// Parses `bytes` with `parse`. Large bodies are parsed on a thread of their own, so that they do not delay other
/// requests.
///
/// # Errors
/// The errors of `parse`, and for a large body an error when no thread can be started or `parse` panics.
pub(crate) async fn parse_aside<T: Send + 'static>(
    bytes: Bytes,
    state: &AppState,
    parse: fn(&[u8]) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    if bytes.len() < MIN_ASIDE_BYTES {
        return parse(&bytes);
    }
    let parsed = state.aside().run(move || parse(&bytes)).await;
    let failure = "no thread could be started to parse it, or the parser panicked";
    parsed.unwrap_or_else(|| Err(ApiError::BodyRead(failure.to_owned())))
}

/// Parses the JSON object in `bytes`.
///
/// # Errors
/// When the bytes are not valid JSON, or the JSON does not describe a `T`.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    // serde would also accept a list, and take its values as the fields of the object in order.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(ApiError::BodyShape("invalid type: list, expected an object".to_owned()));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| match error.inner().is_data() {
        true => ApiError::BodyShape(without_type_names(&error.to_string())),
        false => ApiError::BodySyntax(error.to_string()),
    })?;
    json.end().map_err(|error| ApiError::BodySyntax(error.to_string()))?;
    Ok(value)
}

/// Returns an error message of serde without the names of Rust types.
fn without_type_names(sentence: &str) -> String {
    let Some((before, after)) = sentence.split_once("expected struct ") else { return sentence.to_owned() };
    let rest = after.trim_start_matches(|c: char| c.is_alphanumeric());
    let rest = match rest.split_once(" element") {
        Some((count, rest)) if count.starts_with(" with ") => rest.trim_start_matches('s'),
        _ => rest,
    };
    format!("{before}expected an object{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::GenerateRequest;

    fn error(body: &[u8]) -> String {
        parse::<GenerateRequest>(body).unwrap_err().to_string()
    }

    #[test]
    fn errors_say_where() {
        let prefix = "Failed to parse the request body as JSON: ";
        for body in [&b""[..], b"{", b"{\"inputs\":\"x\"} y", b"{\"inputs\":\"\xff\"}", b"{\"inputs\":\"\\ud800\"}"] {
            assert!(error(body).starts_with(prefix), "{}", error(body));
        }
        let prefix = "Failed to deserialize the JSON body into the target type: ";
        for body in ["null", "[]", "{}", r#"{"inputs":["x"]}"#, r#"{"inputs":"x","parameters":{"top_k":"y"}}"#] {
            assert!(error(body.as_bytes()).starts_with(prefix), "{}", error(body.as_bytes()));
        }
        let nested = error(br#"{"inputs":"x","parameters":{"max_new_tokens":-1}}"#);
        assert!(nested.contains("parameters.max_new_tokens: invalid value: integer `-1`"), "{nested}");
        let object = "expected an object";
        for body in ["[]", " [\"x\", {}]", "5", r#"{"inputs":"x","parameters":5}"#] {
            let error = error(body.as_bytes());
            assert!(
                error.contains(object) && !error.contains("struct") && !error.contains("element"),
                "{body}: {error}"
            );
        }
        let deep = [b'['; 100_000];
        let grammar = br#"{"inputs":"x","parameters":{"grammar":{"type":"json","value":"#;
        assert!(error(&[&grammar[..], &deep[..]].concat()).contains("recursion limit"));
    }
}
