//! Operations of an instruction set on sixteen f32 lanes, and functions built from them.
//!
//! [`Simd`] is a token: a value of it proves that the CPU has the instructions, so the methods of the value are safe. A
//! vector always has [`LANES`] lanes (AVX2 uses two registers), so the lanes are summed in the same order on all
//! instruction sets. [`Kernel`] is the body of an operation. Every method is `#[inline(always)]`, because a body must
//! end up inside the one function that has the CPU features enabled. For the same reason bodies call these methods in
//! plain loops instead of closures.

use super::int4::{GROUP_LINES, GroupOfX, Int4Group, pair};
use crate::lines::{Line, bf16_line};

/// The number of lanes of a vector.
pub(crate) const LANES: usize = 16;

/// The same bits of both halves of each word: `num_bits` bits, beginning with the bit `shift` of a half.
#[derive(Clone, Copy)]
pub(crate) struct HalfBits<'a> {
    pub(crate) words: &'a [u32; LANES],
    pub(crate) shift: usize,
    pub(crate) num_bits: usize,
}

impl HalfBits<'_> {
    /// Returns the bits of word `i`, moved to the lowest bits of both halves.
    #[inline(always)]
    fn of_word(self, i: usize) -> u32 {
        self.words[i] >> self.shift & (((1 << self.num_bits) - 1) * 0x1_0001)
    }
}

/// Returns the two 16-bit integers of a word.
#[inline(always)]
pub(crate) fn integers_of(word: i32) -> [i32; 2] {
    [word << 16 >> 16, word >> 16]
}

/// A body that can be compiled for any instruction set.
pub(crate) trait Kernel {
    /// The return type of the body.
    type Output;

    /// The body. Implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Arithmetic on sixteen f32 lanes.
pub(crate) trait Simd: Copy {
    /// Sixteen f32 lanes.
    type Vector: Copy;
    /// Sixteen i32 lanes.
    type Integers: Copy;

    /// The number of vectors of sums for which most kernels have registers.
    const NUM_SUMS: usize;
    /// True if products of several rows use one vector of columns at a time, so that more rows share each vector that
    /// is loaded and widened. With tiled weights, these products also prefetch the rows of x for the next step.
    const HAS_LONE_COLUMNS: bool = false;
    /// The number of rows whose sums are `NUM_SUMS` vectors: with one vector of columns at a time if
    /// `HAS_LONE_COLUMNS`, otherwise with two.
    const MAX_ROWS: usize = if Self::HAS_LONE_COLUMNS { Self::NUM_SUMS } else { Self::NUM_SUMS / 2 };
    /// The minimum number of rows for which int4 weights are first unpacked to int8 if vectors multiply them. Unpacking
    /// pays where [`Simd::add_dots`] uses VNNI.
    const MIN_UNPACKED_ROWS: usize = usize::MAX;
    /// The number that [`Simd::load_quads`] adds to each byte.
    const BYTE_OFFSET: i32 = 0;
    /// The number of parts into which [`Simd::load_quads`] splits a word of four bytes. If there is one part, it has
    /// all four as bytes. If there are two, the first part has the first and third bytes and the second part has the
    /// others, as 16-bit integers.
    const DOT_PARTS: usize = 1;
    /// True if operations are single instructions, or pairs of them.
    const HAS_VECTORS: bool = true;
    /// True if the instruction set has [`Simd::add_bf16_dots`], which multiplies pairs of bf16 values. Tiles are used
    /// only together with it.
    const HAS_PAIRS: bool = false;

    /// Runs `kernel` in a function of its own. Loops with many callers use this function, because compiling many
    /// inlined copies takes long.
    fn call<K: Kernel>(self, kernel: K) -> K::Output;
    /// Like [`Simd::call`], for a kernel that VNNI would hardly speed up: instruction sets that differ only in it share
    /// the code without it.
    #[inline(always)]
    fn call_without_vnni<K: Kernel>(self, kernel: K) -> K::Output {
        self.call(kernel)
    }
    fn splat(self, value: f32) -> Self::Vector;
    fn load(self, values: &[f32; LANES]) -> Self::Vector;
    fn store(self, vector: Self::Vector, to: &mut [f32; LANES]);
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b + c`, rounded once where the instruction set has fused multiply-add.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// The larger of each two lanes; the lane of `b` where either is NaN.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The smaller of each two lanes; the lane of `b` where either is NaN.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// 2 to the power of each lane, which is a whole number from -126 to 127.
    fn power_of_two(self, exponents: Self::Vector) -> Self::Vector;
    /// The bf16 values in the low halves of the words, then those in the high halves.
    fn widen_bf16_pairs(self, pairs: Self::Integers) -> [Self::Vector; 2];
    /// Widens sixteen values of IEEE half precision.
    fn widen_f16(self, halves: &[u16; LANES]) -> Self::Vector;
    /// Widens sixteen integers.
    fn widen_i8(self, bytes: &[i8; LANES]) -> Self::Vector;
    /// The float nearest to each integer.
    fn to_floats(self, integers: Self::Integers) -> Self::Vector;
    fn load_integers(self, values: &[i32; LANES]) -> Self::Integers;
    fn store_integers(self, integers: Self::Integers, to: &mut [i32; LANES]);
    /// Adds to each sum the dot product of its word of `quads` and `word`. Each word holds the integers of one part
    /// (see [`Simd::DOT_PARTS`]), from -127 to 127, and those of `quads` have [`Simd::BYTE_OFFSET`] added. A sum that
    /// starts at `-BYTE_OFFSET` times the sum of the bytes of all `word`s ends as if there were no offset.
    fn add_dots(self, sums: Self::Integers, quads: Self::Integers, word: u32) -> Self::Integers;
    /// Loads one part of each word of four bytes, in the form that [`Simd::add_dots`] takes.
    #[inline(always)]
    fn load_quads(self, words: &[u32; LANES], _part: usize) -> Self::Integers {
        const { assert!(Self::BYTE_OFFSET == 0 && Self::DOT_PARTS == 1, "bytes are neither offset nor split") };
        self.load_words(words)
    }

    /// Returns the start value of the sums of a group in [`Simd::add_group`], made of two values: see
    /// [`GroupOfX::start`].
    #[inline(always)]
    fn group_start(low: i16, high: i16) -> u32 {
        pair(low, high)
    }

    /// Adds to the sums of each row the products of `group` and the element of `x` for that row.
    #[inline(always)]
    fn add_group<const ROWS: usize>(
        self,
        sums: &mut [Self::Integers; ROWS],
        group: Int4Group<'_>,
        x: &[GroupOfX<'_>; ROWS],
    ) {
        const { assert!(Self::BYTE_OFFSET == 0 && Self::DOT_PARTS == 1, "bytes are neither offset nor split") };
        let mut dots = [self.load_integers(&[0; LANES]); ROWS];
        for idx in 0..GROUP_LINES {
            let [low, high] = group.centred(idx);
            let [low, high] = [self.load_quads(&low, 0), self.load_quads(&high, 0)];
            for (dots, x) in dots.iter_mut().zip(x) {
                *dots = self.add_dots(*dots, low, x.quads[idx]);
                *dots = self.add_dots(*dots, high, x.quads[idx + GROUP_LINES]);
            }
        }
        for (sums, dots) in sums.iter_mut().zip(dots) {
            let (mut totals, mut lanes) = ([0; LANES], [0; LANES]);
            self.store_integers(*sums, &mut totals);
            self.store_integers(dots, &mut lanes);
            for (column, (total, lane)) in totals.iter_mut().zip(lanes).enumerate() {
                *total += lane * i32::from(group.factor(column));
            }
            *sums = self.load_integers(&totals);
        }
    }

    /// Adds to each sum two products: the bf16 values of its word of `words` times those of `word`. The instruction set
    /// defines the order of the additions, and subnormals count as zero.
    ///
    /// # Panics
    /// When [`Simd::HAS_PAIRS`] is false.
    #[inline(always)]
    fn add_bf16_dots(self, _sums: Self::Vector, _words: Self::Integers, _word: u32) -> Self::Vector {
        unreachable!("weights are laid out for the instruction set")
    }

    #[inline(always)]
    fn load_words(self, words: &[u32; LANES]) -> Self::Integers {
        let mut integers = [0; LANES];
        for (integer, word) in integers.iter_mut().zip(words) {
            *integer = word.cast_signed();
        }
        self.load_integers(&integers)
    }

    #[inline(always)]
    fn store_words(self, integers: Self::Integers, to: &mut [u32; LANES]) {
        let mut words = [0; LANES];
        self.store_integers(integers, &mut words);
        for (to, word) in to.iter_mut().zip(words) {
            *to = word.cast_unsigned();
        }
    }

    /// Loads words that each hold two neighbouring values.
    #[inline(always)]
    fn load_pairs(self, halves: &[u16; 2 * LANES]) -> Self::Integers {
        let mut words = [0; LANES];
        for (word, pair) in words.iter_mut().zip(halves.as_chunks::<2>().0) {
            *word = u32::from(pair[1]) << 16 | u32::from(pair[0]);
        }
        self.load_words(&words)
    }

    /// Converts the integers to bf16, which is exact, and returns two in each word: `low` in the low half, `high` in
    /// the high half.
    #[inline(always)]
    fn pair_bytes(self, low: &[i8; LANES], high: &[i8; LANES]) -> Self::Integers {
        let mut words = [0; LANES];
        for (i, word) in words.iter_mut().enumerate() {
            *word = f32::from(high[i]).to_bits() | f32::from(low[i]).to_bits() >> 16;
        }
        self.load_words(&words)
    }

    /// Rounds `values` to the nearest bf16 and stores two in each word. Subnormals may become zero.
    #[inline(always)]
    fn round_to_bf16(self, values: &[f32; 2 * LANES], to: &mut Line) {
        bf16_line(to, values);
    }

    /// Returns `num_bits` bits of each word as floats, beginning with the bit `shift`.
    #[inline(always)]
    fn bits(self, words: &[u32; LANES], shift: usize, num_bits: usize) -> Self::Vector {
        let mut bits = [0; LANES];
        for (bits, word) in bits.iter_mut().zip(words) {
            *bits = (word >> shift & ((1 << num_bits) - 1)).cast_signed();
        }
        self.to_floats(self.load_integers(&bits))
    }

    /// Adds to each sum two products: the 16-bit integers of its word of `words` times those of `word`.
    ///
    /// # Panics
    /// When [`Simd::HAS_VECTORS`] is false.
    #[inline(always)]
    fn add_integer_dots(self, _sums: Self::Integers, _words: Self::Integers, _word: u32) -> Self::Integers {
        unreachable!("without vectors, floats are multiplied instead of integers")
    }

    /// Returns the 16-bit integers in the low halves of the words as floats, then those in the high halves.
    #[inline(always)]
    fn widen_integers(self, words: Self::Integers) -> [Self::Vector; 2] {
        let mut pairs = [0; LANES];
        self.store_integers(words, &mut pairs);
        let (mut low, mut high) = ([0; LANES], [0; LANES]);
        for (i, pair) in pairs.into_iter().enumerate() {
            [low[i], high[i]] = integers_of(pair);
        }
        [self.to_floats(self.load_integers(&low)), self.to_floats(self.load_integers(&high))]
    }

    /// Returns `sums`, which the compiler then computes here: not later, where it would have to keep on the stack all
    /// that they are computed from.
    #[inline(always)]
    fn pin(self, sums: Self::Integers) -> Self::Integers {
        sums
    }

    /// Returns whole numbers as 16-bit integers, two in each word: the bits of `low` and, above them, those of `high`.
    #[inline(always)]
    fn whole_numbers(self, low: HalfBits<'_>, high: Option<HalfBits<'_>>) -> Self::Integers {
        let mut words = [0; LANES];
        for (i, word) in words.iter_mut().enumerate() {
            *word = low.of_word(i) | high.map_or(0, |high| high.of_word(i) << low.num_bits);
        }
        self.load_words(&words)
    }

    /// Returns elements of `table` as 16-bit integers, two in each word. Their indices are `indices`, of 4 bits.
    #[inline(always)]
    fn look_up_integers(self, indices: HalfBits<'_>, table: &[i8; LANES]) -> Self::Integers {
        let mut words = [0; LANES];
        for (i, word) in words.iter_mut().enumerate() {
            let pair = indices.of_word(i);
            let [low, high] = [pair & 15, pair >> 16].map(|index| i16::from(table[index as usize]).cast_unsigned());
            *word = u32::from(high) << 16 | u32::from(low);
        }
        self.load_words(&words)
    }

    /// Returns elements of `table` for the halves of words, two in each word. The lowest 4 bits of an index are in the
    /// words of `low`, at the given position in each half. If there is `high`, 1 or 2 further bits are in its words,
    /// below bits of no meaning. The table repeats if indices have fewer than 6 bits.
    ///
    /// # Panics
    /// When [`Simd::HAS_PAIRS`] is false.
    #[inline(always)]
    fn look_up(
        self,
        _low: (&[u32; LANES], usize),
        _high: Option<(&[u32; LANES], usize)>,
        _table: &[u16; 64],
    ) -> Self::Integers {
        unreachable!("weights are laid out for the instruction set")
    }

    /// Returns two numbers in each word, as bf16: those of `low` in the low halves. The numbers must be ones that bf16
    /// has.
    ///
    /// # Panics
    /// When [`Simd::HAS_PAIRS`] is false.
    #[inline(always)]
    fn pair_floats(self, _low: Self::Vector, _high: Self::Vector) -> Self::Integers {
        unreachable!("weights are laid out for the instruction set")
    }

    /// Transposes 16 rows of 16 words.
    #[inline(always)]
    fn transpose(self, rows: &[Line; LANES], to: &mut [Line; LANES]) {
        for (column, to) in to.iter_mut().enumerate() {
            for (word, row) in to.0.iter_mut().zip(rows) {
                *word = row.0[column];
            }
        }
    }

    /// Prefetches a cache line that will be read soon. By default a no-op. The line need not exist.
    #[inline(always)]
    fn prefetch(self, _line: *const Line) {}

    /// Like [`Simd::prefetch`], but into the second-level cache, for lines that are too many for the first level.
    #[inline(always)]
    fn prefetch_second_level(self, _line: *const Line) {}

    /// Loads up to sixteen values and sets the missing lanes to `padding`.
    #[inline(always)]
    fn load_padded(self, values: &[f32], padding: f32) -> Self::Vector {
        let mut lanes = [padding; LANES];
        lanes[..values.len()].copy_from_slice(values);
        self.load(&lanes)
    }

    /// Stores the first lanes of `vector`, as many as `to` holds.
    #[inline(always)]
    fn store_prefix(self, vector: Self::Vector, to: &mut [f32]) {
        let mut lanes = [0.0; LANES];
        self.store(vector, &mut lanes);
        to.copy_from_slice(&lanes[..to.len()]);
    }

    /// The sum of the lanes, added as a tree: first lanes i and i + 8, then i + 4, i + 2 and i + 1.
    #[inline(always)]
    fn sum(self, vector: Self::Vector) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(vector, &mut lanes);
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
            half /= 2;
        }
        lanes[0]
    }

    /// [`Simd::sum`] of each of four vectors.
    #[inline(always)]
    fn sum_each(self, vectors: [Self::Vector; 4]) -> [f32; 4] {
        let [a, b, c, d] = vectors;
        [self.sum(a), self.sum(b), self.sum(c), self.sum(d)]
    }

    /// Returns the largest lane, ignoring NaN lanes. If all lanes are NaN, the result is NaN or minus infinity.
    #[inline(always)]
    fn max_lane(self, vector: Self::Vector) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(vector, &mut lanes);
        let mut largest = lanes[0];
        for lane in lanes {
            largest = largest.max(lane);
        }
        largest
    }

    /// e to the power of each lane, within 1.5 units in the last place, subnormal results included.
    #[inline(always)]
    fn exp(self, x: Self::Vector) -> Self::Vector {
        // Outside of these bounds the result is infinity or zero. The order of the operands is such that NaN stays NaN.
        let x = self.min(self.splat(89.0), self.max(self.splat(-104.0), x));
        // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to a whole number.
        let rounder = self.splat(12_582_912.0);
        let n = self.sub(self.mul_add(x, self.splat(std::f32::consts::LOG2_E), rounder), rounder);
        // ln 2 is split into 355 / 512 and a remainder, because n times 355 / 512 is exact.
        let r = self.mul_add(n, self.splat(-355.0 / 512.0), x);
        let r = self.mul_add(n, self.splat(2.121_944_4e-4), r);
        // The Taylor series up to r^7, whose remainder is below 0.1 units in the last place.
        let mut series = self.splat(1.0 / 5040.0);
        for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            series = self.mul_add(series, r, self.splat(coefficient));
        }
        self.mul_power_of_two(series, n)
    }

    /// Multiplies each lane by 2 to the power of another lane, which is a whole number from -252 to 254.
    #[inline(always)]
    fn mul_power_of_two(self, x: Self::Vector, exponents: Self::Vector) -> Self::Vector {
        // In two steps, because the power itself is not a normal number where the result is near the largest number or
        // subnormal.
        let rounder = self.splat(12_582_912.0);
        let first = self.sub(self.mul_add(exponents, self.splat(0.5), rounder), rounder);
        let scaled = self.mul(x, self.power_of_two(first));
        self.mul(scaled, self.power_of_two(self.sub(exponents, first)))
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::isa::Isa;

    struct Exp([f32; LANES]);
    struct WidenF16([u16; LANES]);
    struct WidenBf16Pairs([u16; 2 * LANES]);
    struct WidenI8([i8; LANES]);
    struct PairBytes([[i8; LANES]; 2]);

    impl Kernel for Exp {
        type Output = [f32; LANES];

        #[inline(always)]
        fn run<S: Simd>(mut self, simd: S) -> [f32; LANES] {
            simd.store(simd.exp(simd.load(&self.0)), &mut self.0);
            self.0
        }
    }

    impl Kernel for WidenF16 {
        type Output = [f32; LANES];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [f32; LANES] {
            let mut to = [0.0; LANES];
            simd.store(simd.widen_f16(&self.0), &mut to);
            to
        }
    }

    impl Kernel for WidenBf16Pairs {
        type Output = [[f32; LANES]; 2];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [[f32; LANES]; 2] {
            let [low, high] = simd.widen_bf16_pairs(simd.load_pairs(&self.0));
            let mut to = [[0.0; LANES]; 2];
            simd.store(low, &mut to[0]);
            simd.store(high, &mut to[1]);
            to
        }
    }

    impl Kernel for PairBytes {
        type Output = [u32; LANES];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [u32; LANES] {
            let mut to = [0; LANES];
            simd.store_words(simd.pair_bytes(&self.0[0], &self.0[1]), &mut to);
            to
        }
    }

    impl Kernel for WidenI8 {
        type Output = [f32; LANES];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [f32; LANES] {
            let mut to = [0.0; LANES];
            simd.store(simd.widen_i8(&self.0), &mut to);
            to
        }
    }

    fn check_exp(x: f32, result: f32, isa: Isa) {
        let exact = f64::from(x).exp();
        let nearest = exact as f32;
        // The distance between neighbouring numbers at this value.
        let unit = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
        let error = (f64::from(result) - exact).abs() / unit;
        assert!(error <= 1.5, "{isa}: e^{x} is {result:e}, off by {error} units in the last place");
    }

    #[test]
    fn exp_is_exact_to_the_last_place() {
        for isa in Isa::available() {
            // Every 4093rd number (a prime) from 0 to 88.7, where e^x is near the largest number, and from 0 to -104.
            for (sign, bound) in [(0, 88.722_84_f32), (1 << 31, 104.0)] {
                let all: Vec<f32> =
                    (0..=bound.to_bits()).step_by(4093).map(|bits| f32::from_bits(bits | sign)).collect();
                for (x, lanes) in all.as_chunks::<LANES>().0.iter().map(|lanes| (lanes, isa.run(Exp(*lanes)))) {
                    x.iter().zip(lanes).for_each(|(x, result)| check_exp(*x, result, isa));
                }
            }
        }
    }

    #[test]
    fn exp_of_extremes() {
        let extremes = [(f32::INFINITY, f32::INFINITY), (f32::NEG_INFINITY, 0.0), (1e30, f32::INFINITY), (-1e30, 0.0)];
        let near = [(88.73, f32::INFINITY), (-104.0, 0.0), (0.0, 1.0), (-0.0, 1.0)];
        for isa in Isa::available() {
            for (x, expected) in extremes.into_iter().chain(near) {
                assert_eq!(isa.run(Exp([x; LANES])), [expected; LANES], "{isa}: e^{x}");
            }
            assert!(isa.run(Exp([f32::NAN; LANES])).iter().all(|value| value.is_nan()), "{isa}: e^NaN");
        }
    }

    /// Checks a widened value. A NaN may lose its payload.
    fn check_widened(value: f32, expected: f32, what: &str) {
        let is_equal = value.to_bits() == expected.to_bits() || (value.is_nan() && expected.is_nan());
        assert!(is_equal, "{what} is {value} instead of {expected}");
    }

    #[test]
    fn every_short_float_is_widened() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        for isa in Isa::available() {
            for halves in all.as_chunks::<LANES>().0 {
                for (bits, half) in halves.iter().zip(isa.run(WidenF16(*halves))) {
                    check_widened(half, f16::from_bits(*bits).to_f32(), &format!("{isa}: f16 {bits:#06x}"));
                }
            }
            for pairs in all.as_chunks::<{ 2 * LANES }>().0 {
                let [low, high] = isa.run(WidenBf16Pairs(*pairs));
                for (bits, short) in pairs.iter().zip(low.iter().zip(&high).flat_map(|(low, high)| [low, high])) {
                    check_widened(*short, bf16::from_bits(*bits).to_f32(), &format!("{isa}: bf16 {bits:#06x}"));
                }
            }
        }
    }

    #[test]
    fn every_short_integer_is_widened() {
        let all: Vec<i8> = (i8::MIN..=i8::MAX).collect();
        for isa in Isa::available() {
            for bytes in all.as_chunks::<LANES>().0 {
                assert_eq!(isa.run(WidenI8(*bytes)), bytes.map(f32::from), "{isa}");
                let mut high = *bytes;
                high.reverse();
                for (word, (low, high)) in isa.run(PairBytes([*bytes, high])).into_iter().zip(bytes.iter().zip(high)) {
                    let [low, high] = [*low, high].map(|byte| u32::from(bf16::from_f32(f32::from(byte)).to_bits()));
                    assert_eq!(word, high << 16 | low, "{isa}");
                }
            }
        }
    }
}
