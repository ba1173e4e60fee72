//! Lines about events that anybody can cause, such as connections that are refused: one line from time to time, with
//! their number.

use std::time::{Duration, Instant};

/// The minimum time between two lines.
const INTERVAL: Duration = Duration::from_secs(10);

/// The events of one kind that were not logged.
#[derive(Debug, Default)]
pub struct Throttle {
    num_silent: u64,
    logged_at: Option<Instant>,
}

impl Throttle {
    /// Counts an event. If a line is due, returns the number of events since the last one, with this one.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        self.num_silent += 1;
        if self.logged_at.is_some_and(|at| now.saturating_duration_since(at) < INTERVAL) {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.num_silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_logged_once_in_a_while_with_their_number() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        let logged: Vec<u64> = (0..250).filter_map(|count| throttle.count(start + INTERVAL * count / 100)).collect();
        assert_eq!(logged, [1, 100, 100]);
    }
}
