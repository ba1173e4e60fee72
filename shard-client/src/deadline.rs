//! The router's deadlines for shards. Every wait for a reply has a deadline, and progress restarts it. The deadline for
//! signs of life is in the crate `liveness`.

use std::time::Duration;

/// The maximum time to connect. A shard listens before it loads the model, so it is reachable soon or never.
pub(super) const CONNECT: Duration = Duration::from_secs(60);
/// The maximum time without progress until a shard has replied to a command of the handshake. A shard that loads or
/// warms up reports progress at least every second.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(20);
/// The maximum time for a shard to leave, which includes freeing its devices.
pub(super) const LEAVE: Duration = Duration::from_secs(10);
/// The time to look for the cause of an error that may be only a symptom. It is short, because the connection of a dead
/// shard ends at once.
pub(super) const CAUSE: Duration = Duration::from_secs(1);

/// The minimum time without progress after which a step counts as hanging, for machines that are busy with other work.
/// Ranks wait for each other for a shorter time, so that a waiting shard can usually report which rank is missing
/// before the router's deadline.
const STEP: Duration = Duration::from_secs(20);
/// The factor by which a part of a step may take longer for each token than a whole step of the warm-up, because
/// contexts are longer or the machine is busy. A launch on a device is one part; on the CPU, a step has many.
const SLOWNESS: u64 = 2;

/// The data of the warm-up from which the deadlines of steps are computed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepDeadlines {
    /// The longest time per token of all prompts of the warm-up, in ns.
    pub(super) slowest_token_ns: u64,
}

impl StepDeadlines {
    /// Returns the time without progress after which a step that reads `num_tokens` tokens counts as hanging.
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
        assert_eq!(deadlines.step(1), Duration::from_millis(20_020));
        assert_eq!(deadlines.step(4096), Duration::from_millis(20_000 + 2 * 10 * 4096));
        assert!(StepDeadlines { slowest_token_ns: u64::MAX }.step(usize::MAX) > Duration::from_secs(1 << 32));
    }
}
