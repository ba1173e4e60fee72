//! The handle of the batcher. It submits sequences, which wait in a channel until the batcher's loop takes them.
//!
//! Entry points: [`BatcherHandle::submit`], and [`Submission`], which the loop receives.

use std::sync::Arc;

use scheduler::SequenceSpec;
use tokio::sync::{Semaphore, mpsc};

use super::STOPPING;
use super::readers::Reader;
use crate::delivery::{self, EventReceiver};
use crate::generation::Permit;
use crate::grammar::CompiledGrammar;
use crate::memory::Part;

/// The number of submissions for which the channel has room. If it is full, the tasks of further requests wait.
const QUEUE: usize = 256;

/// The reason why a sequence was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubmitError {
    /// The loop has ended, or is about to.
    #[error("{STOPPING}")]
    Stopped,
    /// Too many prompt tokens wait, or the grammars' part of the memory is used up.
    #[error("the queue is full")]
    QueueFull,
}

/// A handle for submitting sequences to the batcher. Clones share the channel and the limits.
#[derive(Debug, Clone)]
pub(crate) struct BatcherHandle {
    submissions_tx: mpsc::Sender<Submission>,
    /// One permit for each prompt token that may wait. `None` if there is no limit.
    queued_tokens: Option<Arc<Semaphore>>,
    /// The part of the memory budget for unread events.
    answers: Part,
}

/// A sequence on its way to the loop.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) spec: SequenceSpec,
    pub(super) reader: Reader,
    /// The mask of the first token, if there is a grammar.
    pub(super) mask: Option<Vec<u8>>,
}

impl BatcherHandle {
    /// Returns a handle and the receiving end of its channel. At most `max_queued_tokens` prompt tokens may wait;
    /// `None` means no limit.
    pub(super) fn new(max_queued_tokens: Option<u32>, answers: Part) -> (Self, mpsc::Receiver<Submission>) {
        let (submissions_tx, submissions_rx) = mpsc::channel(QUEUE);
        let queued_tokens = max_queued_tokens.map(|most| Arc::new(Semaphore::new(most as usize)));
        (Self { submissions_tx, queued_tokens, answers }, submissions_rx)
    }

    /// Queues a sequence, which may follow a grammar, and returns the receiver of its events. Dropping the receiver
    /// cancels the sequence. `permit` is released at the end of the sequence.
    ///
    /// # Errors
    /// When too many prompt tokens wait, when there is no memory for the grammar's state, or when the loop has ended.
    pub(crate) async fn submit(
        &self,
        spec: SequenceSpec,
        grammar: Option<&CompiledGrammar>,
        permit: Permit,
    ) -> Result<EventReceiver, SubmitError> {
        let num_tokens = u32::try_from(spec.prompt.token_ids.len()).unwrap_or(u32::MAX);
        let wait = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).try_acquire_many_owned(num_tokens);
        let queue_permit = self.queued_tokens.as_ref().map(wait).transpose().map_err(|_| SubmitError::QueueFull)?;
        let begun = grammar.map(CompiledGrammar::begin).transpose().map_err(|_| SubmitError::QueueFull)?;
        let (matcher, mask) = begun.unzip();
        let reader_bytes = size_of_val(&*spec.prompt.token_ids);
        let (events, events_rx) = delivery::channel(most_events(&spec), reader_bytes, (self.answers.clone(), permit));
        let submission = Submission { spec, reader: Reader { events, queue_permit, matcher }, mask };
        self.submissions_tx.send(submission).await.map_err(|_| SubmitError::Stopped)?;
        Ok(events_rx)
    }
}

/// Returns the maximum number of events of a sequence: its admission, a failure, one per generated token, and with
/// prompt log-probabilities one per chunk of the prompt. A chunk has at least one token.
fn most_events(spec: &SequenceSpec) -> usize {
    let num_chunks = if spec.wants.logprobs.is_some() { spec.prompt.token_ids.len() } else { 0 };
    2 + spec.max_new_tokens as usize + num_chunks
}
