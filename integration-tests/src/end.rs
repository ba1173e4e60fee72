//! The end of a phase, which all its threads wait for.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Not there yet, or there. It never goes away again.
#[derive(Debug, Default)]
pub struct End {
    is_there: Mutex<bool>,
    came: Condvar,
}

impl End {
    /// Tells all who wait.
    pub fn set(&self) {
        *self.is_there.lock().expect("no thread panics with the lock") = true;
        self.came.notify_all();
    }

    /// Waits for it, and returns whether it came within this time.
    pub fn wait(&self, time: Duration) -> bool {
        let is_there = self.is_there.lock().expect("no thread panics with the lock");
        let wait = self.came.wait_timeout_while(is_there, time, |is_there| !*is_there);
        *wait.expect("no thread panics with the lock").0
    }

    /// Returns whether it is there.
    pub fn is_set(&self) -> bool {
        self.wait(Duration::ZERO)
    }
}

/// Lets this time pass: the pace of an attack, or of looking again.
pub fn pause(time: Duration) {
    let end = Instant::now() + time;
    while let left = end.saturating_duration_since(Instant::now())
        && !left.is_zero()
    {
        std::thread::park_timeout(left);
    }
}
