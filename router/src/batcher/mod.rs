//! The one loop: commands in → schedule → shards → apply → events out. It owns the scheduler and the shards.
//!
//! Up to [`Rules::step_window`] steps are under way: the next one is sent before the tokens of the last one are there,
//! because a row's input token stays with the shards. A row that ends is noticed one step late then, and that step's
//! token is dropped. The next step is held back for masks of rows with grammars, but not for long. When a shard fails,
//! every sequence gets one failure and the loop ends.
//!
//! Rooms: `handle`, where sequences come in; `readers`, where their events go; `masks`; and `steps`, with the metrics
//! of each.

mod handle;
mod masks;
mod readers;
mod steps;

use std::sync::Arc;
use std::time::Instant;

use proto::StepReply;
use scheduler::{Limits, ReplyMismatch, Scheduler, SequenceEvent, Step};
use tokio::sync::{mpsc, watch};

use crate::memory::Part;
use crate::metrics::Metrics;
use crate::shard_client::{ShardClientError, ShardGroup};

pub(crate) use handle::{BatcherHandle, SubmitError};

use handle::Submission;
use masks::{Masked, Masks};
use readers::Readers;
use steps::Steps;

/// The failure of all whose generation a stopping server ends.
const STOPPING: &str = "Server error: the server is shutting down";

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

/// The limits of the loop.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) limits: Limits,
    /// Steps that may be under way, at least 1.
    pub(crate) step_window: usize,
    /// Most prompt tokens of sequences that wait; `None` is no limit.
    pub(crate) max_queued_tokens: Option<u32>,
}

/// The loop.
#[derive(Debug)]
pub(crate) struct Batcher {
    scheduler: Scheduler,
    group: ShardGroup,
    submissions_rx: mpsc::Receiver<Submission>,
    stop_rx: watch::Receiver<bool>,
    rules: Rules,
    metrics: Arc<Metrics>,
    readers: Readers,
    /// They end by themselves.
    masks: Masks,
    steps: Steps,
}

/// The end of a wait of the loop.
enum News {
    Reply(Box<StepReply>),
    Submission(Box<Submission>),
    Masks(Vec<Masked>),
    /// Masks have been waited for long enough.
    MasksAreLate,
    Stop,
    /// Nobody can submit any more.
    Deserted,
}

impl Batcher {
    /// A loop over shards that are warmed up. `true` in `stop_rx` ends what runs and then the loop.
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
            rules,
            readers: Readers::default(),
            masks: Masks::new(),
            steps: Steps::new(Arc::clone(&metrics)),
            metrics,
        };
        (handle, batcher)
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
                    // Everybody is told at once; what is under way ends by itself.
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

    /// Sends what can be sent.
    async fn fill_window(&mut self) -> Result<(), BatcherError> {
        while self.steps.len() < self.rules.step_window
            && let Some(step) = self.scheduler.schedule(Instant::now())
        {
            self.send(step).await?;
        }
        self.show_usage();
        Ok(())
    }

    /// Sends a step, or only what it releases.
    async fn send(&mut self, mut step: Step) -> Result<(), ShardClientError> {
        self.steps.note_admissions(&step);
        self.readers.dispatch(std::mem::take(&mut step.events), &mut self.scheduler);
        self.steps.begin(&step);
        let num_tokens = step.num_tokens();
        let sent = self.group.send(step.into_commands(), num_tokens).await;
        self.steps.note_error(sent)
    }

    /// Waits until there is something to do.
    async fn news(&mut self, is_stopping: bool) -> Result<News, ShardClientError> {
        let masks_until = self.masks.hold_back_until();
        let Self { group, submissions_rx, stop_rx, steps, rules, masks, .. } = self;
        // While the window is full nothing could be scheduled: submissions wait in their queue, and then in their
        // requests.
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

    /// Hands on what a step made.
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

    /// Ends every sequence, also those that are only submitted.
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

    fn show_usage(&self) {
        self.metrics.show_usage(&self.scheduler.usage(), self.rules.limits.block_size_tokens);
    }
}
