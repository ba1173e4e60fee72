//! The router's deadlines for shards. Every wait has a deadline, and a sign of life starts it anew.

use std::time::Duration;

/// The time to connect. A shard listens before it loads, so it is reachable soon or never.
pub(super) const CONNECT: Duration = Duration::from_secs(60);
/// The time without a sign of life. A shard that loads or warms up sends one at least every second.
pub(super) const SIGN_OF_LIFE: Duration = Duration::from_secs(20);
/// The time to leave, which frees a device.
pub(super) const LEAVE: Duration = Duration::from_secs(10);
/// The time to look for the cause of a symptom: the other ranks notice a dead shard at once.
pub(super) const CAUSE: Duration = Duration::from_secs(1);

/// The minimum deadline of a step, for machines that are busy with other work. Ranks wait for each other only half as
/// long, so that a waiting shard can report which shard is missing.
const STEP: Duration = Duration::from_secs(20);
/// The factor for tokens that take longer than in the warm-up, in long contexts and on busy machines.
const SLOWNESS: u64 = 8;

/// The deadlines of steps, derived from the warm-up.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepDeadlines {
    /// The slowest time per token in the warm-up, in ns.
    pub(super) slowest_token_ns: u64,
}

impl StepDeadlines {
    /// The deadline of a step that reads `num_tokens` tokens.
    pub(super) fn step(self, num_tokens: usize) -> Duration {
        let tokens_ns = self.slowest_token_ns.saturating_mul(num_tokens as u64).saturating_mul(SLOWNESS);
        STEP.saturating_add(Duration::from_nanos(tokens_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_prompt_may_take_longer_than_a_token() {
        let deadlines = StepDeadlines { slowest_token_ns: 10_000_000 };
        assert_eq!(deadlines.step(1), Duration::from_millis(20_080));
        assert_eq!(deadlines.step(4096), Duration::from_millis(20_000 + 8 * 10 * 4096));
        assert!(StepDeadlines { slowest_token_ns: u64::MAX }.step(usize::MAX) > Duration::from_secs(1 << 32));
    }
}
