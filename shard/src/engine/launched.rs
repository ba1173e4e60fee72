//! A step that was launched, and the times that the device took.
//!
//! Entry point: [`LaunchedStep::poll`].

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use backend::PendingStep;
use proto::StepReply;

use super::EngineError;
use super::wants::Asked;

/// A step that the device may still be computing.
pub(crate) struct LaunchedStep {
    pub(super) asked: Asked,
    pub(super) results: PendingStep,
    /// The time when the launch began.
    pub(super) start: Instant,
    pub(super) num_programs_compiled: u32,
}

/// The time until which the device was busy.
#[derive(Debug, Default)]
pub(crate) struct DeviceClock {
    /// The end of the last step that has ended; `None` before the first.
    busy_until: Option<Instant>,
}

impl LaunchedStep {
    /// Returns the result if the device has finished the step. Otherwise the waker of `context` is woken when the step
    /// may have ended. Steps must end on `clock` in the order of their launches.
    ///
    /// # Errors
    /// When the device failed.
    ///
    /// # Panics
    /// When called again after it returned the reply or an error.
    pub(crate) fn poll(
        &mut self,
        clock: &mut DeviceClock,
        context: &mut Context<'_>,
    ) -> Poll<Result<StepReply, EngineError>> {
        let Poll::Ready(results) = self.results.as_mut().poll(context) else { return Poll::Pending };
        let (idle, busy) = clock.end_step(self.start, Instant::now());
        let num_programs_compiled = self.num_programs_compiled;
        let (idle_ns, forward_ns) = (nanoseconds(idle), nanoseconds(busy));
        let asked = std::mem::take(&mut self.asked);
        let reply = |output| StepReply { num_programs_compiled, idle_ns, forward_ns, ..asked.reply(output) };
        Poll::Ready(results.map(reply).map_err(EngineError::from))
    }
}

impl DeviceClock {
    /// Notes a step that was launched at `start` and ended at `end`. Returns how long the device was idle before the
    /// step, and how long it was busy with it: a step that was launched during the one before it begins at its end.
    fn end_step(&mut self, start: Instant, end: Instant) -> (Duration, Duration) {
        let busy_until = self.busy_until.replace(end).unwrap_or(start);
        (start.saturating_duration_since(busy_until), end - start.max(busy_until))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_begins_at_the_end_of_the_one_before_it() {
        let origin = Instant::now();
        let at = |milliseconds| origin + Duration::from_millis(milliseconds);
        let mut clock = DeviceClock::default();
        let mut end_step = |start, end| {
            let (idle, busy) = clock.end_step(at(start), at(end));
            (idle.as_millis(), busy.as_millis())
        };
        assert_eq!(end_step(10, 15), (0, 5));
        assert_eq!(end_step(17, 20), (2, 3));
        assert_eq!(end_step(18, 24), (0, 4));
        assert_eq!(end_step(19, 30), (0, 6));
    }
}
