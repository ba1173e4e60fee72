//! Tokens with their offsets in a text: the responses of `/tokenize` and `/chat_tokenize`.
//!
//! A long list is written in pieces while the client reads it, because its JSON is much larger than the text. Until the
//! last piece of a long list is written, the text and the tokens count in the memory budget.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::memory::Part;
use crate::text::{TokenSpan, TokenizedText};

/// The minimum size of a piece, except the last one.
const PIECE_BYTES: usize = 16 << 10;

/// The maximum time for which a response waits for memory that other responses hold.
const PATIENCE: Duration = Duration::from_secs(5);

/// A token, and its start and stop in the text, in bytes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SimpleToken<'a> {
    id: u32,
    text: &'a str,
    start: usize,
    stop: usize,
}

/// The response of `POST /chat_tokenize`.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "describes for the OpenAPI document what is written piece by piece")]
pub(crate) struct ChatTokenizeResponse<'a> {
    tokenize_response: Vec<SimpleToken<'a>>,
    templated_text: String,
}

/// The response as an iterator over its pieces.
#[derive(Debug)]
struct Pieces {
    tokenized: TokenizedText,
    is_chat: bool,
    num_written: usize,
    has_ended: bool,
}

/// Returns a response with the list of tokens.
///
/// # Errors
/// When other unread responses hold the memory that this response needs.
pub(crate) async fn token_list(tokenized: TokenizedText, answers: &Part) -> Result<Response, ApiError> {
    answer(Pieces::new(tokenized, false), answers).await
}

/// Returns a response with an object that contains the list of tokens and the text.
///
/// # Errors
/// The same as those of [`token_list`].
pub(crate) async fn chat_token_list(tokenized: TokenizedText, answers: &Part) -> Result<Response, ApiError> {
    answer(Pieces::new(tokenized, true), answers).await
}

async fn answer(mut pieces: Pieces, answers: &Part) -> Result<Response, ApiError> {
    let first = pieces.next().unwrap_or_default();
    let body = if pieces.has_ended {
        Body::from(first)
    } else {
        let held = answers.take(pieces.tokenized.num_bytes(), PATIENCE).await.ok_or(ApiError::NoRoomForAnswer)?;
        let all = std::iter::once(first).chain(pieces).map(move |piece| {
            // The memory is freed when the stream is dropped: after the last piece, or when the client disconnects.
            let _held = &held;
            Ok::<_, Infallible>(piece)
        });
        Body::from_stream(futures_util::stream::iter(all))
    };
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

impl Pieces {
    fn new(tokenized: TokenizedText, is_chat: bool) -> Self {
        Self { tokenized, is_chat, num_written: 0, has_ended: false }
    }
}

impl<'a> SimpleToken<'a> {
    /// Returns a token of `of_text`. Tokens that share one character all have the start and stop of that character.
    fn new(&TokenSpan { id, start, stop }: &TokenSpan, of_text: &'a str) -> Self {
        Self { id, text: of_text.get(start..stop).unwrap_or_default(), start, stop }
    }
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let Self { tokenized: TokenizedText { text, tokens }, is_chat, num_written, has_ended } = self;
        if *has_ended {
            return None;
        }
        let mut piece = Vec::with_capacity(PIECE_BYTES + (PIECE_BYTES >> 4));
        if *num_written == 0 {
            piece.extend_from_slice(if *is_chat { b"{\"tokenize_response\":[" } else { b"[" });
        }
        for token in &tokens[*num_written..] {
            if piece.len() >= PIECE_BYTES {
                return Some(piece.into());
            }
            if *num_written > 0 {
                piece.push(b',');
            }
            write(&mut piece, &SimpleToken::new(token, text));
            *num_written += 1;
        }
        piece.push(b']');
        if *is_chat {
            piece.extend_from_slice(b",\"templated_text\":");
            write(&mut piece, text);
            piece.push(b'}');
        }
        *has_ended = true;
        Some(piece.into())
    }
}

/// Writes a value as JSON. Serializing numbers and strings into memory never fails.
fn write(piece: &mut Vec<u8>, value: &impl Serialize) {
    if let Err(error) = serde_json::to_writer(piece, value) {
        tracing::error!(
            "a part of the response of /tokenize or /chat_tokenize could not be written, which is a defect of this \
             server: {error}"
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(num_tokens: usize, is_chat: bool) -> (Value, usize) {
        let text = "é".repeat(num_tokens);
        let token = |index: usize| TokenSpan { id: 7, start: 2 * index, stop: 2 * index + 2 };
        let tokenized = TokenizedText { text, tokens: (0..num_tokens).map(token).collect() };
        let pieces: Vec<Bytes> = Pieces::new(tokenized, is_chat).collect();
        assert!(pieces.iter().rev().skip(1).all(|piece| (PIECE_BYTES..PIECE_BYTES + 100).contains(&piece.len())));
        (serde_json::from_slice(&pieces.concat()).unwrap(), pieces.len())
    }

    #[tokio::test(start_paused = true)]
    async fn long_answers_hold_memory_until_they_are_read() {
        let answers = Part::new(300 << 10);
        let tokenized = |num_tokens: usize| TokenizedText {
            text: "a".repeat(num_tokens),
            tokens: (0..num_tokens).map(|index| TokenSpan { id: 7, start: index, stop: index + 1 }).collect(),
        };
        let unread = token_list(tokenized(10_000), &answers).await.unwrap();
        assert!(matches!(token_list(tokenized(10_000), &answers).await, Err(ApiError::NoRoomForAnswer)));
        assert!(token_list(tokenized(10), &answers).await.is_ok(), "a short response needs no memory");
        drop(unread);
        assert!(chat_token_list(tokenized(10_000), &answers).await.is_ok());
    }

    #[test]
    fn pieces_are_one_answer() {
        assert_eq!(parse(0, false), (json!([]), 1));
        assert_eq!(parse(0, true), (json!({"tokenize_response": [], "templated_text": ""}), 1));
        for num_tokens in [1, 10_000] {
            let (list, num_pieces) = parse(num_tokens, false);
            assert_eq!((list.as_array().unwrap().len(), num_pieces > 1), (num_tokens, num_tokens > 1000));
            let last = num_tokens - 1;
            assert_eq!(list[last], json!({"id": 7, "text": "é", "start": 2 * last, "stop": 2 * num_tokens}));
            let (chat, _) = parse(num_tokens, true);
            assert_eq!(chat, json!({"tokenize_response": list, "templated_text": "é".repeat(num_tokens)}));
        }
    }
}
