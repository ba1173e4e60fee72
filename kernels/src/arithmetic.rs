//! Measures how fast this machine multiplies, which limits the speed of prompts and of steps with many rows.
//!
//! Entry point: [`multiply_adds_per_second`]. The operands are in registers or in the first-level cache. The time to
//! unpack int4 weights counts only on instruction sets that never unpack them in advance. The time that layers lose to
//! caches and memory does not count.

use std::hint::black_box;
use std::time::{Duration, Instant};

use numbers::int4;

use crate::isa::{self, GroupOfX, Int4Group, Isa, Kernel, LANES, Simd};
use crate::linear::WeightType;
use crate::lines::{Ahead, BLOCK_COLUMNS, BLOCK_ROWS, Block, Line, STEP_LINES, TILE_SIZE};
use crate::vector_tile::{Bf16Pairs, Dots, Int8Quads};

/// The minimum time of a measurement.
const LEAST_TIME: Duration = Duration::from_millis(20);
/// The number of measurements, each with all threads. The fastest one counts.
const NUM_ROUNDS: usize = 5;
/// The number of words of each row of x in a pass of [`floats`] or [`dots`].
const NUM_WORDS: usize = 16;
/// The number of passes before a thread that multiplies with vectors reads the clock again.
const NUM_REPEATS: usize = 256;
/// The number of steps of a product of tiles. Each of its two operands has 16 KiB.
const NUM_STEPS: usize = 8;

/// Returns the multiply-adds per second of all threads of the current pool together, when many rows are multiplied by
/// weights of the given type.
pub fn multiply_adds_per_second(weights: WeightType) -> f64 {
    let isa = isa::active();
    let of_round = |_| rayon::broadcast(|_| of_thread(isa, weights)).into_iter().sum();
    (0..NUM_ROUNDS).map(of_round).fold(0.0, f64::max)
}

fn of_thread(isa: Isa, weights: WeightType) -> f64 {
    let mut rate = 0.0;
    isa.with_tiles([BLOCK_ROWS, TILE_SIZE], |tiles| {
        rate = match (tiles, weights) {
            (Some(tiles), WeightType::Bf16 | WeightType::Mxfp4) => by_tiles(0.0_f32, 32, |[left, right], sums| {
                tiles.add_bf16_product(left, right, Ahead::nothing(right), sums);
            }),
            (Some(tiles), WeightType::Int8 | WeightType::Int4) => by_tiles(0_i32, 64, |[left, right], sums| {
                tiles.add_int8_product(left, right, Ahead::nothing(right), sums);
            }),
            (Some(_), WeightType::F32 | WeightType::F16) | (None, _) => isa.run(ByVectors { isa, weights }),
        };
    });
    rate
}

/// Measures `multiply`, a product of two blocks that has `step_inputs` inputs per step. Returns multiply-adds per
/// second.
fn by_tiles<T: Copy>(zero: T, step_inputs: usize, mut multiply: impl FnMut([&[Line]; 2], &mut Block<T>)) -> f64 {
    let [left, right] = [vec![Line([0; 16]); NUM_STEPS * BLOCK_ROWS], vec![Line([0; 16]); NUM_STEPS * STEP_LINES]];
    let mut sums = Block([[zero; BLOCK_COLUMNS]; BLOCK_ROWS]);
    let mut count = Count::default();
    loop {
        multiply([&left, &right], &mut sums);
        if let Some(rate) = count.add(BLOCK_ROWS * BLOCK_COLUMNS * NUM_STEPS * step_inputs) {
            return rate;
        }
    }
}

/// Counts multiply-adds from `start` on.
struct Count {
    start: Instant,
    num_done: usize,
}

impl Default for Count {
    fn default() -> Self {
        Self { start: Instant::now(), num_done: 0 }
    }
}

impl Count {
    /// Adds `num_done`, and returns the rate per second once [`LEAST_TIME`] is over.
    fn add(&mut self, num_done: usize) -> Option<f64> {
        self.num_done += num_done;
        let time = self.start.elapsed();
        (time >= LEAST_TIME).then(|| self.num_done as f64 / time.as_secs_f64())
    }
}

struct ByVectors {
    isa: Isa,
    weights: WeightType,
}

impl Kernel for ByVectors {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f64 {
        let mut count = Count::default();
        loop {
            let num_done = if S::NUM_SUMS >= 12 { self.repeat::<S, 12>(simd) } else { self.repeat::<S, 6>(simd) };
            if let Some(rate) = count.add(num_done) {
                return rate;
            }
        }
    }
}

impl ByVectors {
    /// Multiplies `ROWS` rows, or four rows if int4 weights are multiplied in groups. Returns the number of
    /// multiply-adds.
    #[inline(always)]
    fn repeat<S: Simd, const ROWS: usize>(&self, simd: S) -> usize {
        match self.weights {
            WeightType::Bf16 | WeightType::Mxfp4 if self.isa.rounds_to_bf16() => {
                dots::<S, _, ROWS>(simd, Bf16Pairs, [0.0; LANES], 2)
            }
            WeightType::F32 | WeightType::Bf16 | WeightType::F16 | WeightType::Mxfp4 => floats::<S, ROWS>(simd),
            WeightType::Int4 if S::MIN_UNPACKED_ROWS == usize::MAX => groups(simd),
            WeightType::Int8 | WeightType::Int4 => dots::<S, _, ROWS>(simd, Int8Quads, [0; LANES], 4 / S::DOT_PARTS),
        }
    }
}

/// Returns the number of multiply-adds of [`NUM_REPEATS`] passes, with `per_word` multiply-adds for each lane, row and
/// word.
const fn num_multiply_adds(num_rows: usize, per_word: usize) -> usize {
    NUM_REPEATS * NUM_WORDS * num_rows * LANES * per_word
}

#[inline(always)]
fn floats<S: Simd, const ROWS: usize>(simd: S) -> usize {
    let x = [[1.0_f32; NUM_WORDS]; ROWS];
    let weights = simd.load(&black_box([0.5; LANES]));
    let mut sums = [simd.splat(0.0); ROWS];
    for _ in 0..NUM_REPEATS {
        // The compiler cannot hoist work out of the loop, because the words may differ in each pass.
        let x = black_box(&x);
        for word in 0..NUM_WORDS {
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum = simd.mul_add(simd.splat(x[word]), weights, *sum);
            }
        }
    }
    for sum in sums {
        black_box(simd.sum(sum));
    }
    num_multiply_adds(ROWS, 1)
}

/// Multiplies words that hold several integers or bf16 values. Each word adds the products of `per_word` values to a
/// sum.
#[inline(always)]
fn dots<S: Simd, D: Dots, const ROWS: usize>(simd: S, _: D, zeros: [D::Sum; LANES], per_word: usize) -> usize {
    let x = [[0; NUM_WORDS]; ROWS];
    let weights = D::words(simd, &black_box(Line([0; LANES])), 0);
    let mut sums = [D::load(simd, &zeros); ROWS];
    for _ in 0..NUM_REPEATS {
        let x: &[[u32; NUM_WORDS]; ROWS] = black_box(&x);
        for word in 0..NUM_WORDS {
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum = D::add(simd, *sum, weights, x[word]);
            }
        }
    }
    for sum in sums {
        let mut lanes = zeros;
        D::store(simd, sum, &mut lanes);
        black_box(&lanes);
    }
    num_multiply_adds(ROWS, per_word)
}

/// Multiplies groups of int4 weights with four rows.
#[inline(always)]
fn groups<S: Simd>(simd: S) -> usize {
    let (lines, factors) = ([Line([0x1111_1111; 16]); 4], [0x0101_0101; LANES / 4]);
    let quads = [[0x0101_0101; 8]; 4];
    let mut sums = [simd.load_integers(&[0; LANES]); 4];
    for _ in 0..NUM_REPEATS {
        let (lines, quads) = (black_box(&lines), black_box(&quads));
        let mut x = [GroupOfX { quads: &quads[0], start: 0 }; 4];
        for (x, quads) in x.iter_mut().zip(quads) {
            x.quads = quads;
        }
        // `black_box` makes the sums go through memory for each group.
        simd.add_group(black_box(&mut sums), Int4Group { lines, factors: &factors }, &x);
    }
    for sum in sums {
        let mut lanes = [0; LANES];
        simd.store_integers(sum, &mut lanes);
        black_box(lanes);
    }
    NUM_REPEATS * 4 * LANES * int4::GROUP_INPUTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_multiplies_every_type() {
        for isa in Isa::available() {
            for weights in [WeightType::F32, WeightType::Bf16, WeightType::F16, WeightType::Int8, WeightType::Int4] {
                let rate = of_thread(isa, weights);
                assert!(rate.is_finite() && rate > 0.0, "{isa} {weights:?}: {rate}");
            }
        }
    }
}
