//! Sixteen lanes in two AVX2 registers, with the fused multiply-add and half-precision instructions of the same CPUs.
//!
//! Only [`Avx2::detect`] creates a value of [`Avx2`], so the methods of the value are safe. AVX-VNNI brings the dot
//! products of AVX-512 VNNI to processors that lack AVX-512.

#![expect(unsafe_code, reason = "intrinsics; the token proves that the CPU has them")]

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::atomic::{Ordering, compiler_fence};

use super::int4::{GROUP_LINES, GroupOfX, Int4Group, pair};
use super::simd::{HalfBits, Kernel, LANES, Simd};
use crate::lines::Line;

/// Proof that the CPU has AVX2, FMA and F16C, and AVX-VNNI if `HAS_VNNI`.
#[derive(Clone, Copy)]
pub(super) struct Avx2<const HAS_VNNI: bool>(());

/// Lanes 0 to 7 and lanes 8 to 15.
type Pair = [__m256; 2];

impl<const HAS_VNNI: bool> Avx2<HAS_VNNI> {
    pub(super) fn detect() -> Option<Self> {
        let is_available = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && (!HAS_VNNI || is_x86_feature_detected!("avxvnni"));
        is_available.then_some(Self(()))
    }

    /// Runs `kernel` compiled for these instructions.
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` proves that the CPU has the features of the function.
        unsafe { if HAS_VNNI { kernel.run_with_vnni(self) } else { kernel.run_plain(self) } }
    }
}

/// Methods that compile a kernel with the features enabled. They belong to the kernel, so that the compiler puts their
/// code beside that of the kernel, and a change to one kernel does not recompile all of them.
trait Compile: Kernel + Sized {
    /// # Safety
    /// The CPU must have the features.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn run_plain<const HAS_VNNI: bool>(self, token: Avx2<HAS_VNNI>) -> Self::Output {
        self.run(token)
    }

    /// # Safety
    /// As above.
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    unsafe fn run_with_vnni<const HAS_VNNI: bool>(self, token: Avx2<HAS_VNNI>) -> Self::Output {
        self.run(token)
    }
}

impl<K: Kernel> Compile for K {}

impl<const HAS_VNNI: bool> Avx2<HAS_VNNI> {
    /// Returns bits of each half of the words, moved to the bit `position`. Other bits are 0.
    #[inline(always)]
    fn half_bits(self, bits: HalfBits<'_>, position: usize) -> [__m256i; 2] {
        let words = self.load_words(bits.words);
        let mask = (((1_u32 << bits.num_bits) - 1) << position) as i16;
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe {
            let left = _mm_cvtsi32_si128(position.saturating_sub(bits.shift) as i32);
            let right = _mm_cvtsi32_si128(bits.shift.saturating_sub(position) as i32);
            let mut moved = [_mm256_setzero_si256(); 2];
            for (moved, words) in moved.iter_mut().zip(words) {
                let shifted = _mm256_srl_epi16(_mm256_sll_epi16(words, left), right);
                *moved = _mm256_and_si256(shifted, _mm256_set1_epi16(mask));
            }
            moved
        }
    }
}

impl<const HAS_VNNI: bool> Simd for Avx2<HAS_VNNI> {
    type Vector = Pair;
    type Integers = [__m256i; 2];

    const NUM_SUMS: usize = 6;
    const HAS_LONE_COLUMNS: bool = true;
    const MIN_UNPACKED_ROWS: usize = if HAS_VNNI { 64 } else { usize::MAX };
    const BYTE_OFFSET: i32 = if HAS_VNNI { 128 } else { 0 };
    const DOT_PARTS: usize = if HAS_VNNI { 1 } else { 2 };

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        self.run(kernel)
    }

    #[inline(always)]
    fn call_without_vnni<K: Kernel>(self, kernel: K) -> K::Output {
        Avx2::<false>(()).run(kernel)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Pair {
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe { [_mm256_set1_ps(value); 2] }
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Pair {
        let (low, high) = values.split_at(LANES / 2);
        // SAFETY: `self` proves that the CPU has AVX2; each half holds the 32 bytes that are read.
        unsafe { [_mm256_loadu_ps(low.as_ptr()), _mm256_loadu_ps(high.as_ptr())] }
    }

    #[inline(always)]
    fn store(self, vector: Pair, to: &mut [f32; LANES]) {
        let (low, high) = to.split_at_mut(LANES / 2);
        // SAFETY: `self` proves that the CPU has AVX2; each half holds the 32 bytes that are written.
        unsafe {
            _mm256_storeu_ps(low.as_mut_ptr(), vector[0]);
            _mm256_storeu_ps(high.as_mut_ptr(), vector[1]);
        }
    }

    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul_add(self, a: Pair, b: Pair, c: Pair) -> Pair {
        // SAFETY: `self` proves that the CPU has FMA.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn min(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn power_of_two(self, exponents: Pair) -> Pair {
        let [low, high] = self.add(exponents, self.splat(12_582_912.0 + 127.0));
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe {
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(low));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(high));
            [_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)]
        }
    }

    #[inline(always)]
    fn widen_bf16_pairs(self, [low, high]: [__m256i; 2]) -> [Pair; 2] {
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe {
            let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            let first = [_mm256_slli_epi32::<16>(low), _mm256_slli_epi32::<16>(high)];
            let second = [_mm256_and_si256(low, upper), _mm256_and_si256(high, upper)];
            [
                [_mm256_castsi256_ps(first[0]), _mm256_castsi256_ps(first[1])],
                [_mm256_castsi256_ps(second[0]), _mm256_castsi256_ps(second[1])],
            ]
        }
    }

    #[inline(always)]
    fn widen_f16(self, halves: &[u16; LANES]) -> Pair {
        let (low, high) = halves.split_at(LANES / 2);
        // SAFETY: `self` proves that the CPU has F16C; each half holds the 16 bytes that are read.
        unsafe {
            let low = _mm_loadu_si128(low.as_ptr().cast());
            let high = _mm_loadu_si128(high.as_ptr().cast());
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
    }

    #[inline(always)]
    fn bits(self, words: &[u32; LANES], shift: usize, num_bits: usize) -> Pair {
        let [low, high] = self.load_words(words);
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe {
            let (shift, mask) = (_mm256_set1_epi32(shift as i32), _mm256_set1_epi32((1 << num_bits) - 1));
            let [low, high] = [_mm256_srlv_epi32(low, shift), _mm256_srlv_epi32(high, shift)];
            let [low, high] = [_mm256_and_si256(low, mask), _mm256_and_si256(high, mask)];
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }

    #[inline(always)]
    fn whole_numbers(self, low: HalfBits<'_>, high: Option<HalfBits<'_>>) -> [__m256i; 2] {
        let numbers = self.half_bits(low, 0);
        let Some(high) = high else { return numbers };
        let high = self.half_bits(high, low.num_bits);
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe { [_mm256_or_si256(numbers[0], high[0]), _mm256_or_si256(numbers[1], high[1])] }
    }

    #[inline(always)]
    fn look_up_integers(self, indices: HalfBits<'_>, table: &[i8; LANES]) -> [__m256i; 2] {
        // An index in the upper byte of each half makes its number the upper byte, which is then widened.
        let [low, high] = self.half_bits(indices, 8);
        // SAFETY: `self` proves that the CPU has AVX2; the table holds the 16 bytes that are read.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [
                _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(table, low)),
                _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(table, high)),
            ]
        }
    }

    #[inline(always)]
    fn add_integer_dots(self, sums: [__m256i; 2], words: [__m256i; 2], word: u32) -> [__m256i; 2] {
        // SAFETY: `self` proves that the CPU has AVX2, and AVX-VNNI if `HAS_VNNI`.
        unsafe {
            let word = _mm256_set1_epi32(word.cast_signed());
            if HAS_VNNI {
                return [
                    _mm256_dpwssd_avx_epi32(sums[0], words[0], word),
                    _mm256_dpwssd_avx_epi32(sums[1], words[1], word),
                ];
            }
            let [low, high] = [_mm256_madd_epi16(words[0], word), _mm256_madd_epi16(words[1], word)];
            [_mm256_add_epi32(sums[0], low), _mm256_add_epi32(sums[1], high)]
        }
    }

    #[inline(always)]
    fn pin(self, [low, high]: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe { [pin(low), pin(high)] }
    }

    #[inline(always)]
    fn widen_i8(self, bytes: &[i8; LANES]) -> Pair {
        let (low, high) = bytes.split_at(LANES / 2);
        // SAFETY: `self` proves that the CPU has AVX2; each half holds the 8 bytes that are read.
        unsafe {
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(low.as_ptr().cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(high.as_ptr().cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }

    #[inline(always)]
    fn to_floats(self, [low, high]: [__m256i; 2]) -> Pair {
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe { [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)] }
    }

    #[inline(always)]
    fn load_integers(self, values: &[i32; LANES]) -> [__m256i; 2] {
        let (low, high) = values.split_at(LANES / 2);
        // SAFETY: `self` proves that the CPU has AVX2; each half holds the 32 bytes that are read.
        unsafe { [_mm256_loadu_si256(low.as_ptr().cast()), _mm256_loadu_si256(high.as_ptr().cast())] }
    }

    #[inline(always)]
    fn load_words(self, words: &[u32; LANES]) -> [__m256i; 2] {
        let (low, high) = words.split_at(LANES / 2);
        // SAFETY: `self` proves that the CPU has AVX2; each half holds the 32 bytes that are read.
        unsafe { [_mm256_loadu_si256(low.as_ptr().cast()), _mm256_loadu_si256(high.as_ptr().cast())] }
    }

    #[inline(always)]
    fn load_pairs(self, halves: &[u16; 2 * LANES]) -> [__m256i; 2] {
        let (low, high) = halves.split_at(LANES);
        // SAFETY: `self` proves that the CPU has AVX2; each half holds the 32 bytes that are read.
        unsafe { [_mm256_loadu_si256(low.as_ptr().cast()), _mm256_loadu_si256(high.as_ptr().cast())] }
    }

    #[inline(always)]
    fn store_integers(self, integers: [__m256i; 2], to: &mut [i32; LANES]) {
        let (low, high) = to.split_at_mut(LANES / 2);
        // SAFETY: `self` proves that the CPU has AVX2; each half holds the 32 bytes that are written.
        unsafe {
            _mm256_storeu_si256(low.as_mut_ptr().cast(), integers[0]);
            _mm256_storeu_si256(high.as_mut_ptr().cast(), integers[1]);
        }
    }

    #[inline(always)]
    fn add_dots(self, sums: [__m256i; 2], quads: [__m256i; 2], word: u32) -> [__m256i; 2] {
        if !HAS_VNNI {
            return self.add_integer_dots(sums, quads, word);
        }
        // SAFETY: `self` proves that the CPU has AVX-VNNI.
        unsafe {
            let word = _mm256_set1_epi32(word.cast_signed());
            [_mm256_dpbusd_avx_epi32(sums[0], quads[0], word), _mm256_dpbusd_avx_epi32(sums[1], quads[1], word)]
        }
    }

    #[inline(always)]
    fn load_quads(self, words: &[u32; LANES], part: usize) -> [__m256i; 2] {
        let [mut low, mut high] = self.load_words(words);
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe {
            if HAS_VNNI {
                let upper_bits = _mm256_set1_epi8(-128);
                return [_mm256_xor_si256(low, upper_bits), _mm256_xor_si256(high, upper_bits)];
            }
            if part == 0 {
                [low, high] = [_mm256_slli_epi16::<8>(low), _mm256_slli_epi16::<8>(high)];
            }
            [_mm256_srai_epi16::<8>(low), _mm256_srai_epi16::<8>(high)]
        }
    }

    #[inline(always)]
    fn group_start(low: i16, high: i16) -> u32 {
        if HAS_VNNI { i32::from(low + high).cast_unsigned() } else { pair(low, high) }
    }

    #[inline(always)]
    fn add_group<const ROWS: usize>(
        self,
        sums: &mut [[__m256i; 2]; ROWS],
        group: Int4Group<'_>,
        x: &[GroupOfX<'_>; ROWS],
    ) {
        // SAFETY: `self` proves that the CPU has AVX2, and AVX-VNNI if `HAS_VNNI`; each half of a line holds the 32
        // bytes that are read, and the factors hold 16.
        unsafe {
            let mut dots = [[_mm256_setzero_si256(); 2]; ROWS];
            for (dots, x) in dots.iter_mut().zip(x) {
                *dots = [_mm256_set1_epi32(x.start.cast_signed()); 2];
            }
            for (idx, line) in group.lines.iter().enumerate() {
                let nibble = _mm256_set1_epi8(15);
                let words: *const __m256i = line.0.as_ptr().cast();
                let [first, second] = [_mm256_load_si256(words), _mm256_load_si256(words.add(1))];
                let low = [_mm256_and_si256(first, nibble), _mm256_and_si256(second, nibble)];
                let [first, second] = [_mm256_srli_epi16::<4>(first), _mm256_srli_epi16::<4>(second)];
                let high = [_mm256_and_si256(first, nibble), _mm256_and_si256(second, nibble)];
                for (dots, x) in dots.iter_mut().zip(x) {
                    // The fence makes the compiler load the words of x only when they are used, because loading all of
                    // them early would take registers from the sums.
                    compiler_fence(Ordering::SeqCst);
                    for (nibbles, quad) in [(low, x.quads[idx]), (high, x.quads[idx + GROUP_LINES])] {
                        let quad = _mm256_set1_epi32(quad.cast_signed());
                        *dots = [
                            add_nibbles::<HAS_VNNI>(dots[0], nibbles[0], quad),
                            add_nibbles::<HAS_VNNI>(dots[1], nibbles[1], quad),
                        ];
                    }
                }
            }
            let factors = _mm_loadu_si128(group.factors.as_ptr().cast());
            let factors = [_mm256_cvtepi8_epi32(factors), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(factors))];
            for half in 0..2 {
                // Without VNNI an output has two sums of 16 bits, and its factor appears once for each. With VNNI it
                // has one sum, which also fits into 16 bits: 32 products of at most 8 · 127.
                let upper = if HAS_VNNI { _mm256_setzero_si256() } else { _mm256_slli_epi32::<16>(factors[half]) };
                let factors = _mm256_blend_epi16::<0xaa>(factors[half], upper);
                for (sums, dots) in sums.iter_mut().zip(&dots) {
                    sums[half] = if HAS_VNNI {
                        _mm256_dpwssd_avx_epi32(sums[half], dots[half], factors)
                    } else {
                        _mm256_add_epi32(sums[half], _mm256_madd_epi16(dots[half], factors))
                    };
                }
            }
        }
    }

    #[inline(always)]
    fn prefetch(self, line: *const Line) {
        // SAFETY: a prefetch accepts any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }

    #[inline(always)]
    fn prefetch_second_level(self, line: *const Line) {
        // SAFETY: a prefetch accepts any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
    }

    #[inline(always)]
    fn sum_each(self, [a, b, c, d]: [Pair; 4]) -> [f32; 4] {
        // SAFETY: `self` proves that the CPU has AVX2.
        unsafe {
            let [a, b] = [_mm256_add_ps(a[0], a[1]), _mm256_add_ps(b[0], b[1])];
            let [c, d] = [_mm256_add_ps(c[0], c[1]), _mm256_add_ps(d[0], d[1])];
            sum_halves([a, b, c, d])
        }
    }
}

/// Passes a register through assembly code without instructions, which the compiler does not move.
///
/// # Safety
/// The CPU must have AVX.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn pin(mut register: __m256i) -> __m256i {
    // SAFETY: there are no instructions.
    unsafe { asm!("/* {0} */", inout(ymm_reg) register, options(nomem, nostack, preserves_flags)) };
    register
}

/// Adds the products of nibbles and four integers of a row of x: to one 32-bit sum per output with VNNI, otherwise to
/// two 16-bit sums per output.
///
/// # Safety
/// The CPU must have AVX2, and AVX-VNNI if `HAS_VNNI`.
#[inline(always)]
unsafe fn add_nibbles<const HAS_VNNI: bool>(dots: __m256i, nibbles: __m256i, quad: __m256i) -> __m256i {
    // SAFETY: the caller ensures that the CPU has AVX2, and AVX-VNNI if `HAS_VNNI`.
    unsafe {
        if HAS_VNNI {
            _mm256_dpbusd_avx_epi32(dots, nibbles, quad)
        } else {
            // With the start value, the 16 products sum to at most 16 · 8 · 127, which fits into 16 bits. Earlier sums
            // may wrap around.
            _mm256_add_epi16(dots, _mm256_maddubs_epi16(nibbles, quad))
        }
    }
}

/// Returns the sum of the lanes of each vector, added as a tree: first lanes i and i + 4, then i + 2 and i + 1.
///
/// # Safety
/// The CPU must have AVX.
#[inline(always)]
pub(super) unsafe fn sum_halves(halves: [__m256; 4]) -> [f32; 4] {
    let mut sums = [0.0; 4];
    // SAFETY: the caller ensures that the CPU has AVX; the array holds the 16 bytes that are written.
    unsafe {
        let [a, b, c, d] = [fold(halves[0]), fold(halves[1]), fold(halves[2]), fold(halves[3])];
        let ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
        let cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
        let even = _mm_shuffle_ps::<0b10_00_10_00>(ab, cd);
        let odd = _mm_shuffle_ps::<0b11_01_11_01>(ab, cd);
        _mm_storeu_ps(sums.as_mut_ptr(), _mm_add_ps(even, odd));
    }
    sums
}

/// Returns the sums of lanes i and i + 4.
///
/// # Safety
/// The CPU must have AVX.
#[inline(always)]
unsafe fn fold(vector: __m256) -> __m128 {
    // SAFETY: the caller ensures that the CPU has AVX.
    unsafe { _mm_add_ps(_mm256_castps256_ps128(vector), _mm256_extractf128_ps::<1>(vector)) }
}
