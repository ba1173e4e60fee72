//! A report counts exactly once how its request ended, and logs the timings of a successful one. Users search for this
//! log line by its message `Success`. If a request asks for several choices, each choice counts as a request.
//!
//! A request whose client left before the end counts as dropped: a report that is dropped before it has counted an
//! outcome counts this one. Neither prompts nor completions are ever logged.

use std::sync::Arc;

use super::{Finish, GenerationError, Timings};
use crate::metrics::Metrics;

/// The id of a request, and the trace it belongs to, as they are logged.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestId {
    pub(crate) id: Arc<str>,
    pub(crate) trace: Option<Trace>,
}

/// The trace that a request belongs to, and the span in it that sent the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) trace_id: u128,
    pub(crate) parent_id: u64,
}

/// The report of one request or choice, which counts its outcome.
#[derive(Debug)]
pub(super) struct Report {
    metrics: Arc<Metrics>,
    request_id: RequestId,
    has_ended: bool,
}

impl RequestId {
    fn trace_id(&self) -> Option<String> {
        self.trace.map(|trace| format!("{:032x}", trace.trace_id))
    }

    fn parent_id(&self) -> Option<String> {
        self.trace.map(|trace| format!("{:016x}", trace.parent_id))
    }
}

impl Report {
    /// Counts the request and opens its report.
    pub(super) fn new(metrics: &Arc<Metrics>, request_id: &RequestId) -> Self {
        metrics.request_count.increment(1);
        Self { metrics: Arc::clone(metrics), request_id: request_id.clone(), has_ended: false }
    }

    /// Counts and logs a complete response.
    pub(super) fn success(&mut self, finish: &Finish, timings: &Timings) {
        self.has_ended = true;
        let metrics = &self.metrics;
        metrics.request_success.increment(1);
        metrics.vllm.note_success(finish.reason, timings);
        metrics.request_generated_tokens.record(timings.num_generated_tokens);
        metrics.request_duration.record(timings.total());
        metrics.request_validation_duration.record(timings.validation());
        metrics.request_queue_duration.record(timings.queue());
        metrics.request_inference_duration.record(timings.inference());
        metrics.request_mean_time_per_token_duration.record(timings.time_per_token());
        if let Some(time_to_first_token) = timings.time_to_first_token() {
            metrics.request_time_to_first_token_duration.record(time_to_first_token);
        }
        tracing::info!(
            request_id = %self.request_id.id,
            trace_id = self.request_id.trace_id(),
            parent_id = self.request_id.parent_id(),
            total_time = ?timings.total(),
            validation_time = ?timings.validation(),
            queue_time = ?timings.queue(),
            inference_time = ?timings.inference(),
            time_per_token = ?timings.time_per_token(),
            input_tokens = finish.num_prompt_tokens,
            cached_tokens = timings.num_cached_tokens,
            generated_tokens = finish.num_generated_tokens,
            finish_reason = ?finish.reason,
            seed = ?finish.seed,
            "Success"
        );
    }

    /// Counts a request that has no complete response.
    pub(super) fn failure(&mut self, error: &GenerationError) {
        self.has_ended = true;
        let failures = &self.metrics.request_failure;
        let counter = match error {
            GenerationError::Overloaded => &failures.overloaded,
            GenerationError::Validation(_) => &failures.validation,
            GenerationError::Failed(_) | GenerationError::Stopping => &failures.generation,
            GenerationError::TimedOut => &failures.timeout,
            GenerationError::Incomplete => &failures.incomplete,
        };
        counter.increment(1);
        self.metrics.vllm.note_failure(false);
        // The code that handles a failure logs it once. The requests that it ends are logged only at the level debug.
        let (trace_id, parent_id) = (self.request_id.trace_id(), self.request_id.parent_id());
        tracing::debug!(request_id = %self.request_id.id, trace_id, parent_id, "{error}");
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if !self.has_ended {
            self.metrics.request_failure.dropped.increment(1);
            self.metrics.vllm.note_failure(true);
            let (trace_id, parent_id) = (self.request_id.trace_id(), self.request_id.parent_id());
            tracing::debug!(request_id = %self.request_id.id, trace_id, parent_id, "the client left");
        }
    }
}
