//! Buffers for intermediate results. They are kept for reuse, because getting new memory from the system costs more
//! than filling it.
//!
//! Entry point: [`Scratch`].

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The buffers that are not in use. In total there are at most as many buffers as were once in use at the same time.
static KEPT: Mutex<Vec<Vec<f32>>> = Mutex::new(Vec::new());

/// A buffer of `len` values, which returns to [`KEPT`] when it is dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// At least `len` values.
    values: Vec<f32>,
    len: usize,
}

impl Scratch {
    /// Returns a buffer of `len` unspecified values.
    pub(crate) fn of(len: usize) -> Self {
        let mut kept = kept();
        let fitting = kept.iter().enumerate().filter(|(_, values)| values.len() >= len);
        let smallest = fitting.min_by_key(|(_, values)| values.len()).map(|(idx, _)| idx);
        let values = match smallest {
            Some(idx) => kept.swap_remove(idx),
            None => {
                // No free buffer is long enough. One of them, if any, is dropped in exchange for the new one.
                kept.pop();
                drop(kept);
                vec![0.0; len]
            }
        };
        Self { values, len }
    }
}

fn kept() -> MutexGuard<'static, Vec<Vec<f32>>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Scratch {
    fn drop(&mut self) {
        kept().push(std::mem::take(&mut self.values));
    }
}

impl Deref for Scratch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values[..self.len]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_in_use_are_apart_and_as_long_as_asked_for() {
        for (first, second) in [(5, 3), (3, 5), (0, 1), (9, 9), (2, 9)] {
            let [mut a, mut b] = [first, second].map(Scratch::of);
            a.fill(1.0);
            b.fill(2.0);
            assert!(a.len() == first && a.iter().all(|value| *value == 1.0), "{first}, {second}");
            assert!(b.len() == second && b.iter().all(|value| *value == 2.0), "{first}, {second}");
        }
    }
}
