//! The timer of the benches of this crate.
//!
//! Entry point: [`best_seconds`].

use std::time::Instant;

const NUM_CALLS: usize = 24;

/// Returns the shortest time of many calls of `work`, in seconds. The calls run on a thread of the rayon pool, as in a
/// step of a model. The shortest time counts, because on a busy machine the longer ones include other programs.
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
