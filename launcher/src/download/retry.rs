//! Decides whether and when a failed request is tried again, and lets a stop end the wait early.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::error::{HubError, Unreached};

/// After this number of failures in a row, with no bytes received in between, the last failure is final.
const MAX_FAILURES: u32 = 6;
/// The same number if connections are refused or time out, which seldom ends within seconds.
const MAX_UNREACHED: u32 = 3;
/// The delay after the first failure. Each further failure doubles the delay; all delays together are about 15 seconds.
const FIRST_DELAY: Duration = Duration::from_millis(500);

/// The count of failures in a row.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    num_failures: u32,
}

/// A flag that stops the threads of a download. It is set when a signal arrived, when a file failed, and at the end.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Retry {
    /// Counts a failure and returns the delay before the next try, or `None` if the failure is final. If the failed try
    /// `brought` bytes, the count starts again.
    pub(crate) fn delay_after(&mut self, error: &HubError, brought: bool) -> Option<Duration> {
        self.num_failures = if brought { 1 } else { self.num_failures + 1 };
        let max_failures = match error.unreached() {
            Some(Unreached::Refused | Unreached::Silent) => MAX_UNREACHED,
            _ => MAX_FAILURES,
        };
        if self.num_failures >= max_failures || !error.is_passing() {
            return None;
        }
        let delay = FIRST_DELAY * 2_u32.pow(self.num_failures - 1);
        // The delay varies randomly by up to a quarter, so that hosts that were cut off together do not retry together.
        let delay = delay.mul_f64(0.75 + 0.5 * fastrand::f64());
        Some(error.retry_after().map_or(delay, |wait| wait.max(delay)))
    }
}

impl Stop {
    pub(crate) fn set(&self) {
        *self.lock() = true;
        self.changed.notify_all();
    }

    /// Checks the flag.
    ///
    /// # Errors
    /// [`HubError::Stopped`] when the flag is set.
    pub(crate) fn check(&self) -> Result<(), HubError> {
        if *self.lock() { Err(HubError::Stopped) } else { Ok(()) }
    }

    /// Waits for `delay`, or until the flag is set.
    ///
    /// # Errors
    /// [`HubError::Stopped`] when the flag is set.
    pub(crate) fn wait(&self, delay: Duration) -> Result<(), HubError> {
        let guard = self.changed.wait_timeout_while(self.lock(), delay, |is_set| !*is_set);
        drop(guard.expect("no thread panics with the lock"));
        self.check()
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_set.lock().expect("no thread panics with the lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16) -> HubError {
        HubError::Status { url: "u".into(), status, message: String::new() }
    }

    fn too_many(seconds: u64) -> HubError {
        let retry_after = Some(Duration::from_secs(seconds));
        HubError::TooManyRequests { endpoint: "e".into(), token: None, retry_after }
    }

    #[test]
    fn delays_double_and_end() {
        let mut retry = Retry::default();
        for step in 0..MAX_FAILURES - 1 {
            let delay = retry.delay_after(&status(503), false).unwrap().as_secs_f64();
            let middle = 0.5 * 2_f64.powf(step.into());
            assert!((0.75 * middle..=1.25 * middle).contains(&delay), "{step}: {delay}");
        }
        assert_eq!(retry.delay_after(&status(503), false), None);
        assert!(retry.delay_after(&status(503), true).is_some(), "a try that brought bytes starts the count again");
    }

    #[test]
    fn an_unreachable_host_is_soon_given_up() {
        for (how, expected) in
            [(Unreached::Refused, 2), (Unreached::Silent, 2), (Unreached::Broken, 5), (Unreached::Final, 0)]
        {
            let error = HubError::Unreachable { endpoint: "e".into(), reason: "r".into(), how };
            let mut retry = Retry::default();
            let num_delays = std::iter::from_fn(|| retry.delay_after(&error, false)).count();
            assert_eq!(num_delays, expected, "{how:?}");
        }
    }

    #[test]
    fn lasting_errors_are_final() {
        assert_eq!(Retry::default().delay_after(&status(400), true), None);
        assert_eq!(Retry::default().delay_after(&too_many(61), false), None);
        assert_eq!(Retry::default().delay_after(&too_many(7), false), Some(Duration::from_secs(7)));
    }

    #[test]
    fn a_stop_ends_a_wait() {
        let stop = Stop::default();
        assert!(stop.wait(Duration::ZERO).is_ok());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| stop.wait(Duration::from_secs(600)));
            stop.set();
            assert!(matches!(test_support::join_scoped(waiting, "the wait that is stopped"), Err(HubError::Stopped)));
        });
        assert!(matches!(stop.wait(Duration::from_secs(600)), Err(HubError::Stopped)));
    }
}
