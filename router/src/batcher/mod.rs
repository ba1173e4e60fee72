//! The loop that batches sequences: submissions in → schedule → shards → apply → events out. The loop owns the
//! scheduler and the connections to the shards.
//!
//! Up to [`Rules::step_window`] steps are under way. The next step can be sent before the tokens of the previous one
//! arrive, because the shards store the token that a row reads next. With two steps under way, the end of a row may
//! therefore be noticed one step late, and the token of that extra step is dropped. The next step waits a short time
//! for the masks of rows with grammars. When a shard fails, every sequence gets one failure event and the loop ends.
//!
//! Files: `handle` submits sequences; `readers` passes on their events; `masks` computes masks; `steps` lists the steps
//! under way and records their metrics.

mod handle;
mod masks;
mod readers;
mod steps;

use std::sync::Arc;
use std::time::Instant;

use proto::StepReply;
use scheduler::{Limits, Pace, ReplyMismatch, Scheduler, SequenceEvent, Step};
use tokio::sync::{mpsc, watch};

use crate::kv_events::Sink;
use crate::memory::Part;
use crate::metrics::Metrics;
use shard_client::{ShardClientError, ShardGroup};

pub(crate) use handle::{BatcherHandle, SubmitError};

use handle::Submission;
use masks::{Masked, Masks};
use readers::Readers;
use steps::Steps;

/// The error of sequences that a shutdown ends.
const STOPPING: &str = "Server error: the server is shutting down";

/// The reason why the loop ended.
#[derive(Debug, thiserror::Error)]
pub enum BatcherError {
    /// A shard failed.
    #[error(transparent)]
    Shard(#[from] ShardClientError),
    /// A reply of the shards does not match its step.
    #[error(transparent)]
    Reply(#[from] ReplyMismatch),
}

/// The limits of the scheduler and of the loop.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) limits: Limits,
    /// The number of steps that may be under way, at least 1.
    pub(crate) step_window: usize,
    /// The maximum number of prompt tokens of all waiting sequences together; `None` means no limit.
    pub(crate) max_queued_tokens: Option<u32>,
    /// The times of steps that are known already.
    pub(crate) pace: Pace,
}

/// The loop and its state.
#[derive(Debug)]
pub(crate) struct Batcher {
    scheduler: Scheduler,
    group: ShardGroup,
    submissions_rx: mpsc::Receiver<Submission>,
    stop_rx: watch::Receiver<bool>,
    rules: Rules,
    metrics: Arc<Metrics>,
    readers: Readers,
    /// The masks that other tasks are computing.
    masks: Masks,
    steps: Steps,
    /// The publisher of changes of the prefix cache, if they are published.
    kv_events: Option<Sink>,
}

/// The events for which the loop waits.
enum News {
    Reply(Box<StepReply>),
    Submission(Box<Submission>),
    Masks(Vec<Masked>),
    /// The next step has waited long enough for masks.
    MasksAreLate,
    Stop,
    /// All handles were dropped, so no more sequences can be submitted.
    Deserted,
}

impl Batcher {
    /// Creates a loop for shards that are warmed up, and its handle. When `stop_rx` becomes `true`, all sequences end,
    /// and then the loop ends.
    pub(crate) fn new(
        rules: Rules,
        group: ShardGroup,
        stop_rx: watch::Receiver<bool>,
        (metrics, answers): (Arc<Metrics>, Part),
    ) -> (BatcherHandle, Self) {
        let (handle, submissions_rx) = BatcherHandle::new(rules.max_queued_tokens, answers);
        let batcher = Self {
            scheduler: Scheduler::new(rules.limits.clone()),
            group,
            submissions_rx,
            stop_rx,
            readers: Readers::default(),
            masks: Masks::new(),
            steps: Steps::new(rules.pace.clone(), Arc::clone(&metrics)),
            rules,
            kv_events: None,
            metrics,
        };
        (handle, batcher)
    }

    /// Publishes changes of the prefix cache. Must be called before the first step.
    pub(crate) fn publish(&mut self, sink: Sink) {
        self.scheduler.record_block_events();
        self.kv_events = Some(sink);
    }

    /// Runs until `stop_rx` is `true`, or until no more sequences can be submitted. Then tells the shards to leave.
    ///
    /// # Errors
    /// When a shard fails, or a reply does not match its step. By then every sequence has received a failure event.
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
        let mut is_stopping = false;
        loop {
            if is_stopping && self.steps.is_empty() {
                return Ok(());
            }
            if !is_stopping {
                self.take_submissions();
                if self.masks.hold_back_until().is_none() {
                    self.fill_window().await?;
                }
            }
            let news = self.news(is_stopping).await;
            match self.steps.note_error(news)? {
                News::Reply(reply) => self.apply(*reply)?,
                News::Submission(submission) => self.submit(*submission),
                News::Masks(masked) => {
                    masked.into_iter().for_each(|mask| mask.settle(&mut self.readers, &mut self.scheduler));
                }
                News::MasksAreLate => {}
                News::Stop => {
                    // Every sequence fails at once. The loop then waits for the replies to the steps under way.
                    self.fail_all(STOPPING);
                    is_stopping = true;
                }
                News::Deserted if self.steps.is_empty() => return Ok(()),
                News::Deserted => {}
            }
        }
    }

    fn take_submissions(&mut self) {
        while let Ok(submission) = self.submissions_rx.try_recv() {
            self.submit(submission);
        }
        self.readers.cancel_abandoned(&mut self.scheduler);
    }

    fn submit(&mut self, Submission { spec, mut reader, mask }: Submission) {
        match self.scheduler.submit(spec, Instant::now()) {
            Ok(id) => {
                if let Some(mask) = mask {
                    self.scheduler.set_mask(id, mask);
                }
                self.readers.insert(id, reader);
            }
            Err(error) => reader.events.end(SequenceEvent::Failed(format!("Server error: {error}"))),
        }
    }

    /// Sends steps until the window is full or nothing can be scheduled.
    async fn fill_window(&mut self) -> Result<(), BatcherError> {
        while self.steps.len() < self.rules.step_window
            && let Some(step) = self.scheduler.schedule(Instant::now(), &self.steps.pace)
        {
            self.send(step).await?;
            self.publish_events();
        }
        self.publish_events();
        self.show_usage();
        Ok(())
    }

    /// Sends the commands of a step. If the step has no rows, it only releases slots.
    async fn send(&mut self, mut step: Step) -> Result<(), ShardClientError> {
        self.steps.note_admissions(&step);
        self.readers.dispatch(std::mem::take(&mut step.events), &mut self.scheduler);
        self.steps.begin(&step);
        let num_tokens = step.num_tokens();
        let sent = self.group.send(step.into_commands(), num_tokens).await;
        self.steps.note_error(sent)
    }

    /// Waits for the next event.
    async fn news(&mut self, is_stopping: bool) -> Result<News, ShardClientError> {
        let masks_until = self.masks.hold_back_until();
        let Self { group, submissions_rx, stop_rx, steps, rules, masks, .. } = self;
        // While the window is full, nothing can be scheduled, so submissions stay in the channel. When the channel is
        // full, the tasks of further requests wait.
        let has_room = steps.len() < rules.step_window;
        let takes_submissions = has_room && !is_stopping && (steps.is_empty() || !submissions_rx.is_closed());
        let reply = async { if steps.is_empty() { Err(group.failure().await) } else { group.next_step().await } };
        let stop = async {
            if stop_rx.wait_for(|&stops| stops).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            reply = reply => Ok(News::Reply(Box::new(reply?))),
            submission = submissions_rx.recv(), if takes_submissions => {
                Ok(submission.map_or(News::Deserted, |submission| News::Submission(Box::new(submission))))
            }
            masked = masks.next() => Ok(News::Masks(masked)),
            () = tokio::time::sleep_until(masks_until.unwrap_or_else(Instant::now).into()), if masks_until.is_some() => {
                Ok(News::MasksAreLate)
            }
            () = stop, if !is_stopping => Ok(News::Stop),
        }
    }

    /// Applies the reply to a step, begins to compute the masks of the next tokens, and passes on the events.
    fn apply(&mut self, reply: StepReply) -> Result<(), ReplyMismatch> {
        let step = self.steps.end(&reply).ok_or(ReplyMismatch::NoStep)?;
        let applied = self.scheduler.apply(reply).map(|events| {
            self.steps.note_failed_rows(&events);
            self.masks.follow(&events, step.forward, &mut self.readers);
            self.readers.dispatch(events, &mut self.scheduler);
        });
        self.steps.measure(step, applied.is_ok());
        applied
    }

    /// Ends every sequence with a failure, including submissions that still wait in the channel.
    async fn end_all(&mut self, message: &str) {
        self.submissions_rx.close();
        while let Some(submission) = self.submissions_rx.recv().await {
            self.submit(submission);
        }
        self.fail_all(message);
        self.show_usage();
    }

    fn fail_all(&mut self, message: &str) {
        let events = self.scheduler.fail_all(message);
        self.readers.dispatch(events, &mut self.scheduler);
    }

    /// Hands the changes of the prefix cache to the publisher.
    fn publish_events(&mut self) {
        if let Some(sink) = &mut self.kv_events {
            sink.publish(&self.scheduler.take_block_events());
        }
    }

    fn show_usage(&self) {
        self.metrics.show_usage(&self.scheduler.usage(), self.rules.limits.block_size_tokens);
    }
}
