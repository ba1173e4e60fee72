//! The one loop: commands in → schedule → shards → apply → events out. It owns the scheduler and the shards.
//!
//! Up to [`Rules::step_window`] steps are under way: the next one is sent before the tokens of the last one are there, because
//! a row's input token stays with the shards. A row that ends is noticed one step late then, and that step's token is dropped.
//!
//! What may follow in a sequence with a grammar is known when its last token is: then the mask of the next one is computed on
//! a blocking thread, while the steps that are under way go on without the sequence. The next step is held back for it, but
//! not for long.
//!
//! Each sequence has an event channel that can hold every event the sequence can have, so a slow reader never stops
//! the loop. A reader that goes away closes its channel, and that is the cancellation: it cannot be lost, and it is
//! seen before the next step is scheduled. When a shard fails, every sequence gets one failure and the loop ends.

mod masks;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::StepReply;
use scheduler::{Event, Limits, Phase, ReplyMismatch, Scheduler, SequenceEvent, SequenceId, SequenceSpec, Step};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::delivery::{self, EventReceiver, EventSender, TooSlow};
use crate::generation::Permit;
use crate::grammar::{CompiledGrammar, GrammarMatcher};
use crate::memory::Part;
use crate::metrics::Metrics;
use crate::shard_client::{ShardClientError, ShardGroup};

use masks::{Made, Masked, Masks};

/// Submissions that may wait for the current step to end; more wait in their own request.
const QUEUE: usize = 256;

/// How long a step waits for masks, so that all rows with grammars stay in the same steps: this share of the time that the step
/// before it took, within bounds. Most masks take 0.1 ms; who waits for a later one misses a step, and the others do not.
const MASK_PATIENCE: f64 = 0.25;
const MIN_MASK_PATIENCE: Duration = Duration::from_micros(300);
const MAX_MASK_PATIENCE: Duration = Duration::from_millis(3);

/// What those are told whose generation a stopping server ends.
const STOPPING: &str = "Server error: the server is shutting down";

/// Why a sequence was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubmitError {
    /// The loop has ended, or is about to.
    #[error("{STOPPING}")]
    Stopped,
    /// As many prompt tokens wait as may, or grammars hold as much memory.
    #[error("the queue is full")]
    QueueFull,
}

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

/// What the loop goes by.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) limits: Limits,
    /// Steps that may be under way, at least 1.
    pub(crate) step_window: usize,
    /// Most prompt tokens of sequences that wait; `None` is no limit.
    pub(crate) max_queued_tokens: Option<u32>,
}

/// Sequences come in here.
#[derive(Debug, Clone)]
pub(crate) struct BatcherHandle {
    submissions_tx: mpsc::Sender<Submission>,
    /// A permit for each prompt token that may wait.
    queued_tokens: Option<Arc<Semaphore>>,
    /// Memory of events that are not yet read.
    answers: Part,
}

/// The loop.
#[derive(Debug)]
pub(crate) struct Batcher {
    scheduler: Scheduler,
    group: ShardGroup,
    submissions_rx: mpsc::Receiver<Submission>,
    readers: HashMap<SequenceId, Reader>,
    stop_rx: watch::Receiver<bool>,
    rules: Rules,
    metrics: Arc<Metrics>,
    /// Steps that are under way, oldest first.
    sent: VecDeque<Sent>,
    /// When the last reply came.
    idle_since: Instant,
    /// Masks that are being computed; they end by themselves.
    masks: Masks,
}

/// A step on its way.
#[derive(Debug, Clone, Copy)]
struct Sent {
    phase: Phase,
    at: Instant,
}

/// What the loop was waiting for.
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

#[derive(Debug)]
struct Submission {
    spec: SequenceSpec,
    reader: Reader,
    /// Of the first token, if there is a grammar.
    mask: Option<Vec<u8>>,
}

/// Who reads what happens to a sequence.
#[derive(Debug)]
struct Reader {
    events: EventSender,
    /// Given back when the sequence leaves the queue.
    queue_permit: Option<OwnedSemaphorePermit>,
    /// Where it is in its grammar; not here while the next mask is computed.
    matcher: Option<GrammarMatcher>,
}

impl BatcherHandle {
    /// Queues a sequence, which may follow a grammar. Dropping the receiver cancels it; at its end `permit` is given back.
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

/// Admission, a failure, one event per token, and with prompt logprobs one per chunk, of which each has a token.
fn most_events(spec: &SequenceSpec) -> usize {
    let num_chunks = if spec.sampling.wants_prompt_logprobs { spec.prompt.token_ids.len() } else { 0 };
    2 + spec.max_new_tokens as usize + num_chunks
}

impl Batcher {
    /// A loop over shards that are warmed up. `true` in `stop_rx` ends what runs and then the loop.
    pub(crate) fn new(
        rules: Rules,
        group: ShardGroup,
        stop_rx: watch::Receiver<bool>,
        (metrics, answers): (Arc<Metrics>, Part),
    ) -> (BatcherHandle, Self) {
        let (submissions_tx, submissions_rx) = mpsc::channel(QUEUE);
        let queued_tokens = rules.max_queued_tokens.map(|most| Arc::new(Semaphore::new(most as usize)));
        let batcher = Self {
            scheduler: Scheduler::new(rules.limits.clone()),
            group,
            submissions_rx,
            readers: HashMap::new(),
            stop_rx,
            rules,
            metrics,
            sent: VecDeque::new(),
            idle_since: Instant::now(),
            masks: Masks::new(),
        };
        (BatcherHandle { submissions_tx, queued_tokens, answers }, batcher)
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
            if is_stopping && self.sent.is_empty() {
                return Ok(());
            }
            if !is_stopping {
                self.take_submissions();
                if self.masks.hold_back_until().is_none() {
                    self.fill_window().await?;
                }
            }
            let news = self.news(is_stopping).await;
            match self.note_failure(news)? {
                News::Reply(reply) => self.apply(*reply)?,
                News::Submission(submission) => self.submit(*submission),
                News::Masks(masked) => self.set_masks(masked),
                News::MasksAreLate => {}
                News::Stop => {
                    // Everybody is told at once; what is under way ends by itself.
                    let events = self.scheduler.fail_all(STOPPING);
                    self.dispatch(events);
                    is_stopping = true;
                }
                News::Deserted if self.sent.is_empty() => return Ok(()),
                News::Deserted => {}
            }
        }
    }

    fn take_submissions(&mut self) {
        while let Ok(submission) = self.submissions_rx.try_recv() {
            self.submit(submission);
        }
        self.cancel_abandoned();
    }

    /// Sends what can be sent.
    async fn fill_window(&mut self) -> Result<(), BatcherError> {
        while self.sent.len() < self.rules.step_window
            && let Some(step) = self.scheduler.schedule(Instant::now())
        {
            self.send(step).await?;
        }
        self.show_usage();
        Ok(())
    }

    /// Waits until there is something to do.
    async fn news(&mut self, is_stopping: bool) -> Result<News, ShardClientError> {
        let masks_until = self.masks.hold_back_until();
        let Self { group, submissions_rx, stop_rx, sent, rules, masks, .. } = self;
        // While the window is full nothing could be scheduled: submissions wait in their queue, and then in their requests.
        let has_room = sent.len() < rules.step_window;
        let takes_submissions = has_room && !is_stopping && (sent.is_empty() || !submissions_rx.is_closed());
        let reply = async { if sent.is_empty() { Err(group.failure().await) } else { group.next_step().await } };
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

    /// Ends the sequences that nobody reads any more.
    fn cancel_abandoned(&mut self) {
        let scheduler = &mut self.scheduler;
        self.readers.retain(|&id, reader| {
            let is_abandoned = reader.events.is_closed();
            if is_abandoned {
                scheduler.cancel(id);
            }
            !is_abandoned
        });
    }

    /// Sends a step, or only what it releases.
    async fn send(&mut self, mut step: Step) -> Result<(), BatcherError> {
        let num_admitted = self.note_admissions(&step);
        if num_admitted > 0 {
            self.metrics.batch_next_size.record(num_admitted as f64);
        }
        if num_admitted > 0 && !step.rows.is_empty() {
            self.metrics.batch_concat.increment(1);
        }
        self.dispatch(std::mem::take(&mut step.events));
        let num_tokens = step.num_tokens();
        tracing::trace!(rows = step.rows.len(), chunks = step.chunks.len(), tokens = num_tokens, "step");
        if let Some(phase) = step.phase() {
            self.metrics.steps(phase).count.increment(1);
            self.sent.push_back(Sent { phase, at: Instant::now() });
        }
        let result = self.group.send(step.into_commands(), num_tokens).await;
        Ok(self.note_failure(result)?)
    }

    /// Counts who leaves the queue, and what the prefix cache had of their prompts.
    fn note_admissions(&self, step: &Step) -> usize {
        let mut num_admitted = 0;
        for event in &step.events {
            if let SequenceEvent::Admitted { num_prompt_tokens, num_cached, .. } = event.kind {
                num_admitted += 1;
                self.metrics.prefix_cache.count(num_prompt_tokens, num_cached);
            }
        }
        self.metrics.preemptions.increment(u64::from(step.num_preempted + step.num_displaced));
        num_admitted
    }

    /// Hands on what a step made.
    fn apply(&mut self, reply: StepReply) -> Result<(), BatcherError> {
        let Some(Sent { phase, at }) = self.sent.pop_front() else { return Err(ReplyMismatch::NoStep.into()) };
        let received_at = Instant::now();
        // It began when it was sent, or when the step before it ended.
        let began_at = at.max(std::mem::replace(&mut self.idle_since, received_at));
        let forward = Duration::from_nanos(reply.forward_ns);
        if phase == Phase::Decode {
            self.metrics.device_idle_duration.record(Duration::from_nanos(reply.idle_ns));
        }
        self.metrics.programs_compiled.serving.increment(u64::from(reply.num_programs_compiled));
        let applied = self.scheduler.apply(reply).map(|events| {
            self.note_failed_rows(&events);
            self.compute_masks(&events, forward);
            self.dispatch(events);
        });
        let metrics = self.metrics.steps(phase);
        metrics.inference_duration.record(received_at.saturating_duration_since(began_at));
        metrics.forward_duration.record(forward);
        metrics.decode_duration.record(received_at.elapsed());
        match &applied {
            Ok(()) => metrics.success.increment(1),
            Err(_) => metrics.failure.increment(1),
        }
        Ok(applied?)
    }

    /// Counts the sequences of a step that cannot go on, while the others do.
    fn note_failed_rows(&self, events: &[Event]) {
        for Event { id, kind } in events {
            if let SequenceEvent::Failed(reason) = kind {
                self.metrics.row_failures.increment(1);
                tracing::warn!(sequence = id.0, %reason, "a row failed");
            }
        }
    }

    /// Begins to compute what may come behind the tokens that a step made in `forward`.
    fn compute_masks(&mut self, events: &[Event], forward: Duration) {
        let mut made = Vec::new();
        for Event { id, kind } in events {
            if let SequenceEvent::Token { token, finish: None } = kind
                && let Some(matcher) = self.readers.get_mut(id).and_then(|reader| reader.matcher.take())
            {
                made.push(Made { id: *id, matcher, token_id: token.token_id });
            }
        }
        if made.is_empty() {
            return;
        }
        self.masks.begin(made, forward.mul_f64(MASK_PATIENCE).clamp(MIN_MASK_PATIENCE, MAX_MASK_PATIENCE));
    }

    /// Takes masks that are there. A sequence that cannot go on ends.
    fn set_masks(&mut self, masked: Vec<Masked>) {
        for Masked { id, mask } in masked {
            let Some(reader) = self.readers.get_mut(&id) else { continue };
            match mask {
                Ok((matcher, mask)) => {
                    reader.matcher = Some(matcher);
                    self.scheduler.set_mask(id, mask);
                }
                Err(error) => {
                    self.scheduler.cancel(id);
                    self.dispatch(vec![Event { id, kind: SequenceEvent::Failed(error.to_string()) }]);
                }
            }
        }
    }

    /// Counts the steps that a failure ends.
    fn note_failure<T>(&mut self, result: Result<T, ShardClientError>) -> Result<T, ShardClientError> {
        if result.is_err() {
            for Sent { phase, at: _ } in self.sent.drain(..) {
                self.metrics.steps(phase).failure.increment(1);
            }
        }
        result
    }

    fn dispatch(&mut self, events: Vec<Event>) {
        for Event { id, kind } in events {
            let Some(reader) = self.readers.get_mut(&id) else { continue };
            if let SequenceEvent::Admitted { .. } = kind {
                reader.queue_permit = None;
            }
            if kind.is_terminal() {
                reader.events.end(kind);
                self.readers.remove(&id);
            } else if let Err(TooSlow) = reader.events.send(kind) {
                self.scheduler.cancel(id);
                reader.events.end(SequenceEvent::Failed(TooSlow.to_string()));
                self.readers.remove(&id);
            }
        }
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
        self.metrics.show_usage(&self.scheduler.usage(), self.rules.limits.block_size_tokens);
    }
}
