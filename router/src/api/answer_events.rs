//! Streams an answer in a dialect whose events have names: Anthropic's, and OpenAI's Responses API.

use std::task::{Context, Poll, ready};

use super::sse::Events;
use crate::error::ApiError;
use crate::generation::{Finish, Generation, Piece};
use crate::text::AnswerEvent;

/// A dialect of named events. Each method appends its events to `chunk`.
pub(crate) trait AnswerDialect: Unpin + Send + 'static {
    /// Writes the events at the start.
    fn begin(&mut self, chunk: &mut Vec<u8>);

    fn event(&mut self, chunk: &mut Vec<u8>, event: AnswerEvent);

    /// Writes the events at the end.
    fn finish(&mut self, chunk: &mut Vec<u8>, finish: &Finish);

    /// Writes an error in place of the events at the end.
    fn fail(&mut self, chunk: &mut Vec<u8>, error: ApiError);
}

/// A generation as a stream of events in a dialect.
#[derive(Debug)]
pub(crate) struct AnswerEvents<D> {
    generation: Generation,
    dialect: D,
    has_begun: bool,
    has_ended: bool,
}

impl<D> AnswerEvents<D> {
    pub(crate) fn new(generation: Generation, dialect: D) -> Self {
        Self { generation, dialect, has_begun: false, has_ended: false }
    }
}

impl<D: AnswerDialect> Events for AnswerEvents<D> {
    fn poll_events(&mut self, cx: &mut Context<'_>, chunk: &mut Vec<u8>) -> Poll<Option<()>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            self.dialect.begin(chunk);
        }
        match ready!(self.generation.poll_next(cx)) {
            None => return Poll::Ready(None),
            Some(Ok(Piece { events, finish, .. })) => {
                events.into_iter().for_each(|event| self.dialect.event(chunk, event));
                if let Some(finish) = finish {
                    self.has_ended = true;
                    self.dialect.finish(chunk, &finish);
                }
            }
            Some(Err(failure)) => {
                self.has_ended = true;
                self.dialect.fail(chunk, ApiError::of_stream(failure));
            }
        }
        Poll::Ready(Some(()))
    }
}
