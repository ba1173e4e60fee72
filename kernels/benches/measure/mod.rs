//! The timer of the benches of this crate.
//!
//! Door: [`best_seconds`]. Report times as shares of the bandwidth measured in the same run.

use std::time::Instant;

const NUM_CALLS: usize = 24;

/// Returns the shortest time of many calls, in seconds, on a thread of the pool as in a step of a model. On a busy
/// machine the slower calls measure other work.
pub(crate) fn best_seconds(mut work: impl FnMut() + Send) -> f64 {
    rayon::scope(|_| {
        let mut best = f64::INFINITY;
        for _ in 0..NUM_CALLS {
            let start = Instant::now();
            work();
            best = best.min(start.elapsed().as_secs_f64());
        }
        best
    })
}
