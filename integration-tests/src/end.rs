//! The end of a phase of a test, for which the threads of the phase wait.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// A flag that threads can wait for. Once set, it stays set.
#[derive(Debug, Default)]
pub struct End {
    is_there: Mutex<bool>,
    came: Condvar,
}

impl End {
    /// Sets the flag and wakes all threads that wait for it.
    pub fn set(&self) {
        *self.is_there.lock().expect("no thread panics with the lock") = true;
        self.came.notify_all();
    }

    /// Waits until the flag is set, for at most `time`. Returns true if it is set.
    pub fn wait(&self, time: Duration) -> bool {
        let is_there = self.is_there.lock().expect("no thread panics with the lock");
        let wait = self.came.wait_timeout_while(is_there, time, |is_there| !*is_there);
        *wait.expect("no thread panics with the lock").0
    }

    /// True if the flag is set.
    pub fn is_set(&self) -> bool {
        self.wait(Duration::ZERO)
    }
}

/// Waits for `time`, between two requests of an attack or two attempts of a poll.
pub fn pause(time: Duration) {
    let end = Instant::now() + time;
    while let left = end.saturating_duration_since(Instant::now())
        && !left.is_zero()
    {
        std::thread::park_timeout(left);
    }
}
