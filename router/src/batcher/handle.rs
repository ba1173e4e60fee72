//! The entry of the batcher: sequences are submitted here and wait until the loop takes them.
//!
//! Doors: [`BatcherHandle::submit`], and [`Submission`], which the loop receives.

use std::sync::Arc;

use scheduler::SequenceSpec;
use tokio::sync::{Semaphore, mpsc};

use super::STOPPING;
use super::readers::Reader;
use crate::delivery::{self, EventReceiver};
use crate::generation::Permit;
use crate::grammar::CompiledGrammar;
use crate::memory::Part;

/// The number of submissions that may wait in the channel. More wait in the tasks of their requests.
const QUEUE: usize = 256;

/// The reason why a sequence was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubmitError {
    /// The loop has ended, or is about to.
    #[error("{STOPPING}")]
    Stopped,
    /// Too many prompt tokens wait, or grammars hold too much memory.
    #[error("the queue is full")]
    QueueFull,
}

/// A handle for submitting sequences.
#[derive(Debug, Clone)]
pub(crate) struct BatcherHandle {
    submissions_tx: mpsc::Sender<Submission>,
    /// A permit for each prompt token that may wait.
    queued_tokens: Option<Arc<Semaphore>>,
    /// The memory of unread events.
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

    /// Queues a sequence, which may follow a grammar. Dropping the receiver cancels it. At the end of the sequence
    /// `permit` is given back.
    ///
    /// # Errors
    /// When too many tokens wait, or the loop has ended.
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

/// The most events of a sequence: admission, a failure, one per token, and with prompt logprobs one per chunk. A chunk
/// has at least one token.
fn most_events(spec: &SequenceSpec) -> usize {
    let num_chunks = if spec.wants.logprobs.is_some() { spec.prompt.token_ids.len() } else { 0 };
    2 + spec.max_new_tokens as usize + num_chunks
}
