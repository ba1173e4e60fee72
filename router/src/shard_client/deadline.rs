//! How long the router waits for shards. Every wait has a deadline; a sign of life starts it anew.

use std::time::Duration;

/// A shard listens before it loads, so it is there soon or never.
pub(super) const CONNECT: Duration = Duration::from_secs(60);
/// A shard that loads or warms up says at least once a second that it is alive.
pub(super) const SIGN_OF_LIFE: Duration = Duration::from_secs(20);
/// Freeing a device.
pub(super) const LEAVE: Duration = Duration::from_secs(10);
/// After a symptom, its cause is there this soon: the others notice a dead rank at once.
pub(super) const CAUSE: Duration = Duration::from_secs(1);

/// What a step may take on any machine, however small it is: the machine does other things too. Ranks wait for each
/// other only half as long, so that the one that waits can say for whom.
const STEP: Duration = Duration::from_secs(20);
/// Tokens of long contexts and of crowded machines take longer than those of the warm-up.
const SLOWNESS: u64 = 8;

/// How long a step may take, by what the warm-up took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepDeadlines {
    /// The most that a token of the warm-up took.
    pub(super) slowest_token_ns: u64,
}

impl StepDeadlines {
    /// Of a step that reads so many tokens.
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
