//! The steps under way, their measured times, and the metrics of steps.
//!
//! Entry point: [`Steps`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::StepReply;
use scheduler::{Event, Pace, Phase, SequenceEvent, Step, Work};

use crate::metrics::Metrics;

/// The steps whose replies have not arrived, the times of those before, and the metrics to which steps are added.
#[derive(Debug)]
pub(super) struct Steps {
    /// The steps under way, oldest first.
    under_way: VecDeque<Sent>,
    /// The time at which the last reply arrived.
    idle_since: Instant,
    /// The times of the steps whose replies have arrived.
    pub(super) pace: Pace,
    metrics: Arc<Metrics>,
}

/// A step that was sent.
#[derive(Debug, Clone, Copy)]
struct Sent {
    phase: Phase,
    work: Work,
    at: Instant,
}

/// A step whose reply has arrived.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    phase: Phase,
    began_at: Instant,
    received_at: Instant,
    /// The time that the model took for the step.
    pub(super) forward: Duration,
}

impl Steps {
    /// Creates an empty list of steps.
    pub(super) fn new(pace: Pace, metrics: Arc<Metrics>) -> Self {
        Self { under_way: VecDeque::new(), idle_since: Instant::now(), pace, metrics }
    }

    /// The number of steps under way.
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// True if no step is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Counts the sequences that a step takes from the queue or sends back to the queue, and the tokens that admitted
    /// sequences found in the prefix cache.
    pub(super) fn note_admissions(&self, step: &Step) {
        let mut num_admitted = 0;
        for event in &step.events {
            if let SequenceEvent::Admitted { num_prompt_tokens, num_cached, .. } = event.kind {
                num_admitted += 1;
                self.metrics.vllm.note_prompt(num_prompt_tokens, num_cached);
            }
        }
        self.metrics.vllm.num_preemptions.increment(u64::from(step.num_preempted + step.num_displaced));
        if num_admitted > 0 {
            self.metrics.batch_next_size.record(f64::from(num_admitted));
        }
        if num_admitted > 0 && step.num_decoding() > 0 {
            self.metrics.batch_concat.increment(1);
        }
    }

    /// Records a step that is about to be sent. A step that only releases slots is not recorded.
    pub(super) fn begin(&mut self, step: &Step) {
        let num_tokens = step.num_tokens();
        tracing::trace!(rows = step.rows.len(), decoding = step.num_decoding(), tokens = num_tokens, "step");
        if let Some(phase) = step.phase() {
            self.metrics.steps(phase).count.increment(1);
            self.metrics.vllm.iteration_tokens.record(num_tokens as f64);
            self.under_way.push_back(Sent { phase, work: step.work, at: Instant::now() });
        }
    }

    /// Removes the oldest step, whose reply has arrived. Returns `None` if no step is under way.
    pub(super) fn end(&mut self, reply: &StepReply) -> Option<Done> {
        let Sent { phase, work, at } = self.under_way.pop_front()?;
        let received_at = Instant::now();
        // The step began when it was sent or when the step before it ended, whichever was later.
        let began_at = at.max(std::mem::replace(&mut self.idle_since, received_at));
        if phase == Phase::Decode {
            self.metrics.device_idle_duration.record(Duration::from_nanos(reply.idle_ns));
        }
        let num_tokens = reply.rows.iter().filter(|row| row.token.is_some()).count();
        self.metrics.vllm.generation_tokens.increment(num_tokens as u64);
        let num_decoding = work.num_decoding as usize;
        self.metrics.vllm.note_decoded(received_at.saturating_duration_since(began_at), num_decoding);
        self.metrics.programs_compiled.serving.increment(u64::from(reply.num_programs_compiled));
        let forward = Duration::from_nanos(reply.forward_ns);
        // A step that compiled a program says nothing about the next ones.
        if reply.num_programs_compiled == 0 {
            self.pace.learn(&work, forward);
        }
        Some(Done { phase, began_at, received_at, forward })
    }

    /// Records the times of a step. Called after its tokens were passed on, or after its reply did not match.
    pub(super) fn measure(&self, step: Done, is_success: bool) {
        let Done { phase, began_at, received_at, forward } = step;
        let metrics = self.metrics.steps(phase);
        metrics.inference_duration.record(received_at.saturating_duration_since(began_at));
        metrics.forward_duration.record(forward);
        metrics.decode_duration.record(received_at.elapsed());
        if is_success { metrics.success.increment(1) } else { metrics.failure.increment(1) }
    }

    /// Counts and logs the sequences that failed in a step while other sequences continue.
    pub(super) fn note_failed_rows(&self, events: &[Event]) {
        for Event { id, kind } in events {
            if let SequenceEvent::Failed(reason) = kind {
                self.metrics.row_failures.increment(1);
                tracing::warn!(sequence = id.0, %reason, "a sequence failed; the others continue");
            }
        }
    }

    /// If `result` is an error of the shards, counts all steps under way as failed and forgets them. Returns `result`.
    pub(super) fn note_error<T, E>(&mut self, result: Result<T, E>) -> Result<T, E> {
        if result.is_err() {
            for Sent { phase, .. } in self.under_way.drain(..) {
                self.metrics.steps(phase).failure.increment(1);
            }
        }
        result
    }
}
