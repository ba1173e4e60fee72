//! Data for the tests, as a function of a seed: proptest chooses shapes, settings and seeds, but no data, so a failure
//! shrinks fast.
//!
//! Entry point: [`Numbers`].

/// A sequence of random numbers (SplitMix64: Steele, Lea and Flood, 2014).
#[derive(Debug)]
pub(crate) struct Numbers(u64);

impl Numbers {
    /// Returns the sequence of random numbers for `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a random word.
    pub(crate) fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 32) as u32
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.word() as usize % end
    }

    /// Returns a multiple of 2⁻²⁴ in [0, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.word() >> 8) as f32 / (1 << 24) as f32
    }

    /// Returns `len` numbers between `-limit` and `limit`.
    pub(crate) fn floats(&mut self, len: usize, limit: f32) -> Vec<f32> {
        (0..len).map(|_| (2.0 * self.unit() - 1.0) * limit).collect()
    }

    /// Returns `len` numbers between -2 and 2 of at most eight binary digits, exact in f32, bf16 and f16.
    pub(crate) fn short_floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.below(257) as f32 - 128.0) / 64.0).collect()
    }

    /// Returns rows whose largest magnitude is 1.75, which is 448 times a power of two. All other values are fp8 floats
    /// times the same power, so quantization to fp8 loses nothing.
    pub(crate) fn floats_of_a_byte(&mut self, num_rows: usize, len: usize) -> Vec<f32> {
        let mut number = |idx: usize| {
            let magnitude = (8 + self.below(7)) as f32 / (8 << self.below(5)) as f32;
            let magnitude = if idx.is_multiple_of(len) { 1.75 } else { magnitude };
            if self.below(2) == 0 { magnitude } else { -magnitude }
        };
        (0..num_rows * len).map(&mut number).collect()
    }

    /// Returns rows with `largest` at one place of each row. All other values are multiples of 1/64, from -`largest` to
    /// below `largest`.
    pub(crate) fn rows_of_largest(&mut self, largest: f32, num_rows: usize, len: usize) -> Vec<f32> {
        let levels = (largest * 64.0) as usize;
        let mut row = || {
            let mut row: Vec<f32> = (0..len).map(|_| (self.below(2 * levels) as f32 - levels as f32) / 64.0).collect();
            row[self.below(len)] = largest;
            row
        };
        (0..num_rows).flat_map(|_| row()).collect()
    }

    /// Returns `len` scores. Two of them, or the only one, are equal and so much larger than the others that these add
    /// nothing to a softmax.
    pub(crate) fn equal_scores(&mut self, len: usize) -> Vec<f32> {
        let mut scores = vec![-50.0; len];
        self.permutation(len).into_iter().take(2).for_each(|index| scores[index] = 0.0);
        scores
    }

    /// Returns `len` numbers below `end`.
    pub(crate) fn indices(&mut self, len: usize, end: usize) -> Vec<i32> {
        (0..len).map(|_| self.below(end) as i32).collect()
    }

    /// Returns the numbers from 0 to `len` - 1 in random order.
    pub(crate) fn permutation(&mut self, len: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..len).collect();
        for end in (1..len).rev() {
            order.swap(end, self.below(end + 1));
        }
        order
    }

    /// Returns one of `choices`.
    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
