//! What the benches of this crate measure with.
//!
//! Door: [`best_seconds`]. Figures are shares of the bandwidth of the same run.

use std::time::Instant;

const NUM_CALLS: usize = 24;

/// The shortest of many calls on a thread of the pool, as a step of a model is: on a busy machine the others measure its other work.
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
