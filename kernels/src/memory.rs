//! Measures this machine's memory read bandwidth, which limits the speed of steps that use each weight once.
//!
//! Entry points: [`read_bandwidth`], and [`Reader`] for several measurements.

use std::time::Instant;

use rayon::prelude::*;

use crate::isa::{self, Kernel, Simd};
use crate::lines::{Line, Lines};

/// The number of cache lines that a thread reads at a time, in ascending order.
const PIECE_LINES: usize = 1 << 14;
/// The number of times that [`read_bandwidth`] reads all lines.
const NUM_ROUNDS: usize = 8;
/// The prefetch distance, in cache lines.
const LINES_AHEAD: usize = 128;
/// The number of independent sums. With several, an addition need not wait for the one before.
const NUM_SUMS: usize = 8;

/// Measures the memory bandwidth of all threads of the current pool together, in GB/s, as [`Reader::bandwidth`] does.
/// The threads read at least `num_bytes` several times.
pub fn read_bandwidth(num_bytes: usize) -> f64 {
    Reader::new(num_bytes).bandwidth(NUM_ROUNDS)
}

/// Memory that is read to measure the bandwidth.
pub struct Reader {
    lines: Lines<Line>,
}

impl Reader {
    /// Allocates at least `num_bytes`. Pass as many bytes as a step reads, because a smaller buffer may still be in the
    /// caches at the next round.
    pub fn new(num_bytes: usize) -> Self {
        let mut lines = Lines::<Line>::zeros(num_bytes.div_ceil(size_of::<Line>()).next_multiple_of(PIECE_LINES));
        // Without this write, the system might map all the memory to a single page of zeros.
        lines.par_chunks_mut(PIECE_LINES).for_each(|lines| lines.fill(Line([1; 16])));
        Self { lines }
    }

    /// Measures the bandwidth of all threads of the current pool together, in GB/s. They read all the memory
    /// `num_rounds` times, in pieces of 1 MiB that each thread reads sequentially. The fastest round counts.
    pub fn bandwidth(&self, num_rounds: usize) -> f64 {
        let isa = isa::active();
        let mut best = 0.0_f64;
        for _ in 0..num_rounds {
            let start = Instant::now();
            let sum: f32 = self.lines.par_chunks(PIECE_LINES).map(|lines| isa.run(Sum(lines))).sum();
            std::hint::black_box(sum);
            best = best.max(size_of_val(&*self.lines) as f64 / 1e9 / start.elapsed().as_secs_f64());
        }
        best
    }
}

/// Sums all bf16 values of some cache lines, whose number is a multiple of [`NUM_SUMS`].
struct Sum<'a>(&'a [Line]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut sums = [simd.splat(0.0); NUM_SUMS];
        for lines in self.0.as_chunks::<NUM_SUMS>().0 {
            for (sum, line) in sums.iter_mut().zip(lines) {
                simd.prefetch(std::ptr::from_ref(line).wrapping_add(LINES_AHEAD));
                let [even, odd] = simd.widen_bf16_pairs(simd.load_words(&line.0));
                *sum = simd.add(*sum, simd.add(even, odd));
            }
        }
        let mut total = 0.0;
        for sum in sums {
            total += simd.sum(sum);
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn every_line_is_read() {
        let one_and_two = 0x4000_3f80;
        for isa in Isa::available() {
            assert_eq!(isa.run(Sum(&[Line([one_and_two; 16]); 24])), 24.0 * 16.0 * 3.0, "{isa}");
        }
    }
}
