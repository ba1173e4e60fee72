//! Several generations as one stream of OpenAI's chunks. The stream ends with `[DONE]`, even after an error.

use std::task::{Context, Poll};

use crate::api::sse::{Events, write_event};
use crate::error::{ApiError, OpenAiError};
use crate::generation::{Generation, Piece};

const DONE: &[u8] = b"data: [DONE]\n\n";

/// Writes the chunks of a route's stream.
pub(crate) trait Chunks: Unpin + Send + 'static {
    /// Writes the chunks at the start.
    fn begin(&mut self, chunk: &mut Vec<u8>);
    /// Writes the chunks for a piece of the choice `index`.
    fn piece(&mut self, chunk: &mut Vec<u8>, index: usize, piece: Piece);
    /// Writes the chunks after all pieces.
    fn end(&mut self, chunk: &mut Vec<u8>);
}

/// The generations of a request's choices, as one stream of events.
#[derive(Debug)]
pub(crate) struct OpenAiEvents<C> {
    /// The generation of each choice, `None` after its end.
    generations: Vec<Option<Generation>>,
    chunks: C,
    has_begun: bool,
    has_ended: bool,
}

impl<C: Chunks> OpenAiEvents<C> {
    pub(crate) fn new(generations: Vec<Generation>, chunks: C) -> Self {
        let generations = generations.into_iter().map(Some).collect();
        Self { generations, chunks, has_begun: false, has_ended: false }
    }

    fn finish(&mut self, chunk: &mut Vec<u8>) -> Poll<Option<()>> {
        self.has_ended = true;
        // Dropping the generations that still run cancels them.
        self.generations.clear();
        chunk.extend_from_slice(DONE);
        Poll::Ready(Some(()))
    }
}

impl<C: Chunks> Events for OpenAiEvents<C> {
    fn poll_events(&mut self, cx: &mut Context<'_>, chunk: &mut Vec<u8>) -> Poll<Option<()>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            self.chunks.begin(chunk);
        }
        let mut is_pending = true;
        for (index, slot) in self.generations.iter_mut().enumerate() {
            let Some(generation) = slot else { continue };
            match generation.poll_next(cx) {
                Poll::Pending => {}
                Poll::Ready(None) => *slot = None,
                Poll::Ready(Some(Ok(piece))) => {
                    is_pending = false;
                    if piece.finish.is_some() {
                        *slot = None;
                    }
                    self.chunks.piece(chunk, index, piece);
                }
                Poll::Ready(Some(Err(failure))) => {
                    write_event(chunk, &OpenAiError::from(ApiError::of_stream(failure)).body());
                    return self.finish(chunk);
                }
            }
        }
        if self.generations.iter().all(Option::is_none) {
            self.chunks.end(chunk);
            return self.finish(chunk);
        }
        if is_pending { Poll::Pending } else { Poll::Ready(Some(())) }
    }
}
