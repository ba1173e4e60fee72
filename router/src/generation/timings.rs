//! When things happened to a request, and how much there was to do.
//!
//! Taken from a clock that never jumps, so a sum or a difference of these is never negative. What they are used for
//! is not known here: headers and metrics read them.

use std::time::{Duration, Instant};

/// The part of a request before its first sequence is queued.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) received_at: Instant,
    pub(crate) validated_at: Instant,
}

/// A request's times, once it has ended: `total` = `validation` + `queue` + `inference`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timings {
    pub(crate) arrival: Arrival,
    /// Time in the queue.
    pub(crate) waited: Duration,
    pub(crate) first_token_at: Option<Instant>,
    pub(crate) finished_at: Instant,
    pub(crate) num_generated_tokens: u32,
    /// Prompt tokens that the prefix cache had.
    pub(crate) num_cached_tokens: u32,
}

impl Timings {
    /// Received to finished.
    pub(crate) fn total(&self) -> Duration {
        self.finished_at.saturating_duration_since(self.arrival.received_at)
    }

    /// Received to queued.
    pub(crate) fn validation(&self) -> Duration {
        self.arrival.validated_at.saturating_duration_since(self.arrival.received_at)
    }

    /// Queued to admitted.
    pub(crate) fn queue(&self) -> Duration {
        self.waited
    }

    /// Admitted to finished.
    pub(crate) fn inference(&self) -> Duration {
        self.finished_at.saturating_duration_since(self.arrival.validated_at).saturating_sub(self.waited)
    }

    /// Mean over the tokens of the request.
    pub(crate) fn time_per_token(&self) -> Duration {
        self.inference() / self.num_generated_tokens.max(1)
    }

    /// Received to first token.
    pub(crate) fn time_to_first_token(&self) -> Option<Duration> {
        Some(self.first_token_at?.saturating_duration_since(self.arrival.received_at))
    }
}
