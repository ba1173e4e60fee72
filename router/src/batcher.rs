//! The one loop: commands in → schedule → shards → apply → events out. It owns the scheduler and the shards.
//!
//! Each sequence has an event channel that can hold every event the sequence can have, so a slow reader never stops
//! the loop. A reader that goes away closes its channel, and that is the cancellation: it cannot be lost, and it is
//! seen before the next step is scheduled. When a shard fails, every sequence gets one failure and the loop ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::{StepReply, command};
use tokio::sync::{mpsc, watch};

use crate::metrics::Metrics;
use crate::scheduler::{Event, Limits, Phase, ReplyMismatch, Scheduler, SequenceEvent, SequenceId, SequenceSpec, Step};
use crate::shard_client::{ShardClientError, ShardGroup};

/// Submissions that may wait for the current step to end; more wait in their own request.
const QUEUE: usize = 256;

/// What those are told whose generation a stopping server ends.
const STOPPING: &str = "Server error: the server is shutting down";

/// The loop has ended, or is about to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{STOPPING}")]
pub(crate) struct BatcherStopped;

/// Why the loop ended.
#[derive(Debug, thiserror::Error)]
pub enum BatcherError {
    /// A shard failed.
    #[error(transparent)]
    Shard(#[from] ShardClientError),
    /// The shards answered something else than was asked.
    #[error(transparent)]
    Reply(#[from] ReplyMismatch),
}

/// Sequences come in here.
#[derive(Debug, Clone)]
pub(crate) struct BatcherHandle {
    submissions_tx: mpsc::Sender<Submission>,
}

/// The loop.
#[derive(Debug)]
pub(crate) struct Batcher {
    scheduler: Scheduler,
    group: ShardGroup,
    submissions_rx: mpsc::Receiver<Submission>,
    events_tx: HashMap<SequenceId, mpsc::Sender<SequenceEvent>>,
    stop_rx: watch::Receiver<bool>,
    block_size_tokens: u32,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct Submission {
    spec: SequenceSpec,
    events_tx: mpsc::Sender<SequenceEvent>,
}

impl BatcherHandle {
    /// Queues a sequence. Dropping the receiver cancels it.
    ///
    /// # Errors
    /// When the loop has ended.
    pub(crate) async fn submit(&self, spec: SequenceSpec) -> Result<mpsc::Receiver<SequenceEvent>, BatcherStopped> {
        let (events_tx, events_rx) = mpsc::channel(most_events(&spec));
        self.submissions_tx.send(Submission { spec, events_tx }).await.map_err(|_| BatcherStopped)?;
        Ok(events_rx)
    }
}

/// Admission, a failure, one event per token, and with prompt logprobs one per chunk, of which each has a token.
fn most_events(spec: &SequenceSpec) -> usize {
    let num_chunks = if spec.sampling.wants_prompt_logprobs { spec.prompt.len() } else { 0 };
    2 + spec.max_new_tokens as usize + num_chunks
}

impl Batcher {
    /// A loop over shards that are warmed up. `true` in `stop_rx` ends what runs and then the loop.
    pub(crate) fn new(
        limits: Limits,
        group: ShardGroup,
        stop_rx: watch::Receiver<bool>,
        metrics: Arc<Metrics>,
    ) -> (BatcherHandle, Self) {
        let (submissions_tx, submissions_rx) = mpsc::channel(QUEUE);
        let block_size_tokens = limits.block_size_tokens;
        let scheduler = Scheduler::new(limits);
        let events_tx = HashMap::new();
        let batcher = Self { scheduler, group, submissions_rx, events_tx, stop_rx, block_size_tokens, metrics };
        (BatcherHandle { submissions_tx }, batcher)
    }

    /// Runs until told to stop, or until nobody can submit any more; the shards are told to leave then.
    ///
    /// # Errors
    /// When a shard fails. Every sequence has been told.
    pub(crate) async fn run(mut self) -> Result<(), BatcherError> {
        match self.serve().await {
            Ok(()) => {
                self.end_all(STOPPING).await;
                Ok(self.group.leave().await?)
            }
            Err(error) => {
                self.end_all(&format!("Server error: {error}")).await;
                Err(error)
            }
        }
    }

    async fn serve(&mut self) -> Result<(), BatcherError> {
        loop {
            while let Ok(submission) = self.submissions_rx.try_recv() {
                self.submit(submission);
            }
            self.cancel_abandoned();
            let step = self.scheduler.schedule(Instant::now());
            self.show_usage();
            match step {
                Some(step) => self.execute(step).await?,
                None if self.wait().await? => {}
                None => return Ok(()),
            }
        }
    }

    /// Waits for work while there is none. False when there will be none any more.
    async fn wait(&mut self) -> Result<bool, BatcherError> {
        if *self.stop_rx.borrow() {
            return Ok(false);
        }
        let submission = tokio::select! {
            submission = self.submissions_rx.recv() => submission,
            error = self.group.failure() => return Err(error.into()),
            Ok(_) = self.stop_rx.wait_for(|&stops| stops) => None,
        };
        Ok(submission.map(|submission| self.submit(submission)).is_some())
    }

    fn submit(&mut self, Submission { spec, events_tx }: Submission) {
        match self.scheduler.submit(spec, Instant::now()) {
            Ok(id) => {
                self.events_tx.insert(id, events_tx);
            }
            Err(error) => send(&events_tx, SequenceEvent::Failed(format!("Server error: {error}"))),
        }
    }

    /// Ends the sequences that nobody reads any more.
    fn cancel_abandoned(&mut self) {
        let scheduler = &mut self.scheduler;
        self.events_tx.retain(|&id, events_tx| {
            let is_abandoned = events_tx.is_closed();
            if is_abandoned {
                scheduler.cancel(id);
            }
            !is_abandoned
        });
    }

    async fn execute(&mut self, mut step: Step) -> Result<(), BatcherError> {
        let num_admitted = step.events.len();
        if num_admitted > 0 {
            self.metrics.batch_next_size.record(num_admitted as f64);
        }
        if num_admitted > 0 && !step.rows.is_empty() {
            self.metrics.batch_concat.increment(1);
        }
        self.dispatch(std::mem::take(&mut step.events));
        tracing::trace!(rows = step.rows.len(), chunks = step.chunks.len(), tokens = step.num_tokens(), "step");
        match step.phase() {
            Some(phase) => self.compute(phase, step.into_commands()).await,
            None => Ok(self.group.release(step.into_commands()).await?),
        }
    }

    async fn compute(&mut self, phase: Phase, commands: Vec<command::Kind>) -> Result<(), BatcherError> {
        let all_metrics = Arc::clone(&self.metrics);
        let metrics = all_metrics.steps(phase);
        metrics.count.increment(1);
        let sent_at = Instant::now();
        let result = match self.call(commands).await {
            Ok(reply) => {
                let received_at = Instant::now();
                metrics.inference_duration.record(received_at - sent_at);
                metrics.forward_duration.record(Duration::from_nanos(reply.forward_ns));
                all_metrics.programs_compiled.serving.increment(u64::from(reply.num_programs_compiled));
                let applied = self.scheduler.apply(reply).map(|events| self.dispatch(events));
                metrics.decode_duration.record(received_at.elapsed());
                applied.map_err(BatcherError::from)
            }
            Err(error) => Err(error),
        };
        match &result {
            Ok(()) => metrics.success.increment(1),
            Err(_) => metrics.failure.increment(1),
        }
        result
    }

    /// Waits for a step. When told to stop meanwhile, tells everybody at once and waits on for the shards.
    async fn call(&mut self, commands: Vec<command::Kind>) -> Result<StepReply, BatcherError> {
        let Self { scheduler, group, events_tx, stop_rx, .. } = self;
        let step = group.step(commands);
        tokio::pin!(step);
        tokio::select! {
            reply = &mut step => return Ok(reply?),
            Ok(_) = stop_rx.wait_for(|&stops| stops) => dispatch(events_tx, scheduler.fail_all(STOPPING)),
        }
        Ok(step.await?)
    }

    fn dispatch(&mut self, events: Vec<Event>) {
        dispatch(&mut self.events_tx, events);
    }

    /// Ends every sequence, also those that are only submitted.
    async fn end_all(&mut self, message: &str) {
        self.submissions_rx.close();
        while let Some(submission) = self.submissions_rx.recv().await {
            self.submit(submission);
        }
        let events = self.scheduler.fail_all(message);
        self.dispatch(events);
        self.show_usage();
    }

    fn show_usage(&self) {
        self.metrics.show_usage(&self.scheduler.usage(), self.block_size_tokens);
    }
}

fn dispatch(events_tx: &mut HashMap<SequenceId, mpsc::Sender<SequenceEvent>>, events: Vec<Event>) {
    for Event { id, kind } in events {
        let is_last = matches!(kind, SequenceEvent::Failed(_) | SequenceEvent::Token { finish: Some(_), .. });
        if let Some(events_tx) = events_tx.get(&id) {
            send(events_tx, kind);
        }
        if is_last {
            events_tx.remove(&id);
        }
    }
}

/// The channel has room for every event. A closed one is noticed before the next step.
fn send(events_tx: &mpsc::Sender<SequenceEvent>, event: SequenceEvent) {
    if let Err(mpsc::error::TrySendError::Full(event)) = events_tx.try_send(event) {
        tracing::error!("an event channel is full: {event:?}");
    }
}
