//! The times of a request, and the numbers of its generated and cached tokens.
//!
//! The clock never goes back, so differences of these times are never negative. Response headers and metrics report the
//! times.

use std::time::{Duration, Instant};

/// When a request was received, and when it was validated, just before its first sequence is queued.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) received_at: Instant,
    pub(crate) validated_at: Instant,
}

/// The times of a request that has ended: `total` = `validation` + `queue` + `inference`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timings {
    pub(crate) arrival: Arrival,
    /// The time in the queue.
    pub(crate) waited: Duration,
    pub(crate) first_token_at: Option<Instant>,
    pub(crate) finished_at: Instant,
    pub(crate) num_generated_tokens: u32,
    /// The number of prompt tokens that were in the prefix cache.
    pub(crate) num_cached_tokens: u32,
}

impl Timings {
    /// The time from receiving the request to its end.
    pub(crate) fn total(&self) -> Duration {
        self.finished_at.saturating_duration_since(self.arrival.received_at)
    }

    /// The time from receiving the request to the end of its validation.
    pub(crate) fn validation(&self) -> Duration {
        self.arrival.validated_at.saturating_duration_since(self.arrival.received_at)
    }

    /// The time that the request spent in the queue, until it was admitted.
    pub(crate) fn queue(&self) -> Duration {
        self.waited
    }

    /// The time from leaving the queue to the end of the request.
    pub(crate) fn inference(&self) -> Duration {
        self.finished_at.saturating_duration_since(self.arrival.validated_at).saturating_sub(self.waited)
    }

    /// The mean inference time per generated token.
    pub(crate) fn time_per_token(&self) -> Duration {
        self.inference() / self.num_generated_tokens.max(1)
    }

    /// The time from the first token to the last one; `None` if there is no token.
    pub(crate) fn decode(&self) -> Option<Duration> {
        Some(self.finished_at.saturating_duration_since(self.first_token_at?))
    }

    /// The time from receiving the request to its first token.
    pub(crate) fn time_to_first_token(&self) -> Option<Duration> {
        Some(self.first_token_at?.saturating_duration_since(self.arrival.received_at))
    }
}
