//! What the benches of this crate measure with.
//!
//! Doors: [`best_seconds`], [`read_bandwidth`]. Figures are shares of the bandwidth of the same run.

use std::time::Instant;

use rayon::prelude::*;

const NUM_CALLS: usize = 24;
/// Words of a part, more than a cache holds, and parts that are read in turn.
const PART_WORDS: usize = 1 << 22;
const NUM_PARTS: usize = 6;

/// What all threads together read from memory, in GB/s.
pub(crate) fn read_bandwidth() -> f64 {
    let words = vec![1_u64; NUM_PARTS * PART_WORDS];
    let mut parts = words.chunks(PART_WORDS).cycle();
    let mut total = 0;
    let seconds = best_seconds(|| {
        let part = parts.next().unwrap_or(&words);
        total += part.par_chunks(1 << 17).map(|words| words.iter().sum::<u64>()).sum::<u64>();
    });
    assert_eq!(total as usize, NUM_CALLS * PART_WORDS, "a sum of ones");
    (PART_WORDS * size_of::<u64>()) as f64 / 1e9 / seconds
}

/// The shortest of many calls: on a busy machine the others measure its other work.
pub(crate) fn best_seconds(mut work: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..NUM_CALLS {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
