//! Sixteen lanes in one AVX-512 register.
//!
//! Only [`Avx512::detect`] creates a value of [`Avx512`], so the methods of the value are safe.

#![expect(unsafe_code, reason = "intrinsics; the token proves that the CPU has them")]

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::atomic::{Ordering, compiler_fence};

use super::avx2::sum_halves;
use super::int4::{GROUP_LINES, GroupOfX, Int4Group, pair};
use super::simd::{HalfBits, Kernel, LANES, Simd};
use crate::lines::{Line, bf16_line};

/// The lowest bit, the lowest two bits, and all bits of each number of four bits.
static LOW_BITS: [[f32; LANES]; 3] = {
    let mut tables = [[0.0; LANES]; 3];
    let mut i = 0;
    while i < LANES {
        (tables[0][i], tables[1][i], tables[2][i]) = ((i & 1) as f32, (i & 3) as f32, i as f32);
        i += 1;
    }
    tables
};

/// Proof that the CPU has AVX-512 F and BW, and FMA. If `NUM_DOTS` is 1, the CPU also has VNNI; if 2, it also has VNNI
/// and BF16.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const NUM_DOTS: usize>(());

impl<const NUM_DOTS: usize> Avx512<NUM_DOTS> {
    const HAS_VNNI: bool = NUM_DOTS >= 1;
    const HAS_BF16: bool = NUM_DOTS >= 2;

    pub(super) fn detect() -> Option<Self> {
        let is_available = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("fma")
            && (!Self::HAS_VNNI || is_x86_feature_detected!("avx512vnni"))
            && (!Self::HAS_BF16 || is_x86_feature_detected!("avx512bf16"));
        is_available.then_some(Self(()))
    }

    /// Runs `kernel` compiled for these instructions.
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` proves that the CPU has the features of the function.
        unsafe {
            match NUM_DOTS {
                0 => kernel.run_plain(self),
                1 => kernel.run_with_vnni(self),
                _ => kernel.run_with_bf16(self),
            }
        }
    }
}

/// Methods that compile a kernel with the features enabled. They belong to the kernel, so that the compiler puts their
/// code beside that of the kernel, and a change to one kernel does not recompile all of them.
trait Compile: Kernel + Sized {
    /// # Safety
    /// The CPU must have the features.
    #[target_feature(enable = "avx512f,avx512bw,fma")]
    unsafe fn run_plain<const NUM_DOTS: usize>(self, token: Avx512<NUM_DOTS>) -> Self::Output {
        self.run(token)
    }

    /// # Safety
    /// As above.
    #[target_feature(enable = "avx512f,avx512bw,fma,avx512vnni")]
    unsafe fn run_with_vnni<const NUM_DOTS: usize>(self, token: Avx512<NUM_DOTS>) -> Self::Output {
        self.run(token)
    }

    /// # Safety
    /// As above.
    #[target_feature(enable = "avx512f,avx512bw,fma,avx512bf16,avx512vnni")]
    unsafe fn run_with_bf16<const NUM_DOTS: usize>(self, token: Avx512<NUM_DOTS>) -> Self::Output {
        self.run(token)
    }
}

impl<K: Kernel> Compile for K {}

impl<const NUM_DOTS: usize> Avx512<NUM_DOTS> {
    /// Returns bits of each half of the words, moved to the bit `position`. Other bits are 0.
    #[inline(always)]
    fn half_bits(self, bits: HalfBits<'_>, position: usize) -> __m512i {
        let words = self.load_words(bits.words);
        let mask = (((1_u32 << bits.num_bits) - 1) << position) as i16;
        // SAFETY: `self` proves that the CPU has AVX-512 with BW.
        unsafe {
            let left = _mm512_set1_epi16(position.saturating_sub(bits.shift) as i16);
            let right = _mm512_set1_epi16(bits.shift.saturating_sub(position) as i16);
            let shifted = _mm512_srlv_epi16(_mm512_sllv_epi16(words, left), right);
            _mm512_and_si512(shifted, _mm512_set1_epi16(mask))
        }
    }
}

impl<const NUM_DOTS: usize> Simd for Avx512<NUM_DOTS> {
    type Vector = __m512;
    type Integers = __m512i;

    const NUM_SUMS: usize = 24;
    const MIN_UNPACKED_ROWS: usize = if Self::HAS_VNNI { 32 } else { usize::MAX };
    const BYTE_OFFSET: i32 = if Self::HAS_VNNI { 128 } else { 0 };
    const DOT_PARTS: usize = if Self::HAS_VNNI { 1 } else { 2 };
    const HAS_PAIRS: bool = Self::HAS_BF16;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        self.run(kernel)
    }

    #[inline(always)]
    fn call_without_vnni<K: Kernel>(self, kernel: K) -> K::Output {
        if Self::HAS_BF16 { self.run(kernel) } else { Avx512::<0>(()).run(kernel) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512; the array holds the 64 bytes that are read.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, vector: __m512, to: &mut [f32; LANES]) {
        // SAFETY: `self` proves that the CPU has AVX-512; the array holds the 64 bytes that are written.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), vector) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn power_of_two(self, exponents: __m512) -> __m512 {
        let biased = self.add(exponents, self.splat(12_582_912.0 + 127.0));
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(biased))) }
    }

    #[inline(always)]
    fn mul_power_of_two(self, x: __m512, exponents: __m512) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_scalef_ps(x, exponents) }
    }

    #[inline(always)]
    fn widen_bf16_pairs(self, pairs: __m512i) -> [__m512; 2] {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe {
            let low = _mm512_slli_epi32::<16>(pairs);
            let high = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
            [_mm512_castsi512_ps(low), _mm512_castsi512_ps(high)]
        }
    }

    #[inline(always)]
    fn widen_f16(self, halves: &[u16; LANES]) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512; the array holds the 32 bytes that are read.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast())) }
    }

    #[inline(always)]
    fn widen_i8(self, bytes: &[i8; LANES]) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512; the array holds the 16 bytes that are read.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn to_floats(self, integers: __m512i) -> __m512 {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_cvtepi32_ps(integers) }
    }

    #[inline(always)]
    fn load_integers(self, values: &[i32; LANES]) -> __m512i {
        // SAFETY: `self` proves that the CPU has AVX-512; the array holds the 64 bytes that are read.
        unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_integers(self, integers: __m512i, to: &mut [i32; LANES]) {
        // SAFETY: `self` proves that the CPU has AVX-512; the array holds the 64 bytes that are written.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), integers) }
    }

    #[inline(always)]
    fn load_quads(self, words: &[u32; LANES], part: usize) -> __m512i {
        let bytes = self.load_words(words);
        // SAFETY: `self` proves that the CPU has AVX-512 F and BW.
        unsafe {
            match part {
                _ if Self::HAS_VNNI => _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)),
                0 => _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(bytes)),
                _ => _mm512_srai_epi16::<8>(bytes),
            }
        }
    }

    #[inline(always)]
    fn add_dots(self, sums: __m512i, quads: __m512i, word: u32) -> __m512i {
        if !Self::HAS_VNNI {
            return self.add_integer_dots(sums, quads, word);
        }
        // SAFETY: `self` proves that the CPU has VNNI.
        unsafe { _mm512_dpbusd_epi32(sums, quads, _mm512_set1_epi32(word.cast_signed())) }
    }

    #[inline(always)]
    fn group_start(low: i16, high: i16) -> u32 {
        if Self::HAS_VNNI { i32::from(low + high).cast_unsigned() } else { pair(low, high) }
    }

    #[inline(always)]
    fn add_group<const ROWS: usize>(self, sums: &mut [__m512i; ROWS], group: Int4Group<'_>, x: &[GroupOfX<'_>; ROWS]) {
        // SAFETY: `self` proves that the CPU has AVX-512 F and BW, and VNNI if `HAS_VNNI`; a line holds the 64 bytes
        // that are read, and the factors hold 16.
        unsafe {
            let mut dots = [_mm512_setzero_si512(); ROWS];
            for (dots, x) in dots.iter_mut().zip(x) {
                *dots = _mm512_set1_epi32(x.start.cast_signed());
            }
            let nibble = _mm512_set1_epi8(15);
            for (idx, line) in group.lines.iter().enumerate() {
                let bytes = _mm512_load_si512(line.0.as_ptr().cast());
                let low = _mm512_and_si512(bytes, nibble);
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), nibble);
                for (dots, x) in dots.iter_mut().zip(x) {
                    // The fence makes the compiler process one row after another, because loading the words of all rows
                    // at once would take registers from the sums.
                    compiler_fence(Ordering::SeqCst);
                    for (nibbles, quad) in [(low, x.quads[idx]), (high, x.quads[idx + GROUP_LINES])] {
                        let quad = _mm512_set1_epi32(quad.cast_signed());
                        *dots = if Self::HAS_VNNI {
                            _mm512_dpbusd_epi32(*dots, nibbles, quad)
                        } else {
                            // With the start value, the 16 products sum to at most 16 · 8 · 127, which fits into 16
                            // bits. Earlier sums may wrap around.
                            _mm512_add_epi16(*dots, _mm512_maddubs_epi16(nibbles, quad))
                        };
                    }
                }
            }
            let factors = _mm512_cvtepi8_epi32(_mm_loadu_si128(group.factors.as_ptr().cast()));
            // Without VNNI an output has two sums of 16 bits, and its factor appears once for each. With VNNI it has
            // one sum, which also fits into 16 bits: 32 products of at most 8 · 127.
            let upper = if Self::HAS_VNNI { _mm512_setzero_si512() } else { _mm512_slli_epi32::<16>(factors) };
            let factors = _mm512_mask_blend_epi16(0xaaaa_aaaa, factors, upper);
            for (sums, dots) in sums.iter_mut().zip(dots) {
                *sums = if Self::HAS_VNNI {
                    _mm512_dpwssd_epi32(*sums, dots, factors)
                } else {
                    _mm512_add_epi32(*sums, _mm512_madd_epi16(dots, factors))
                };
            }
        }
    }

    #[inline(always)]
    fn add_bf16_dots(self, sums: __m512, words: __m512i, word: u32) -> __m512 {
        assert!(Self::HAS_BF16, "weights are laid out for the instruction set");
        // SAFETY: `self` proves that the CPU has AVX-512 with BF16.
        unsafe { _mm512_dpbf16_ps(sums, bf16_vector(words), bf16_vector(_mm512_set1_epi32(word.cast_signed()))) }
    }

    #[inline(always)]
    fn load_words(self, words: &[u32; LANES]) -> __m512i {
        // SAFETY: `self` proves that the CPU has AVX-512; the array holds the 64 bytes that are read.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_words(self, integers: __m512i, to: &mut [u32; LANES]) {
        // SAFETY: `self` proves that the CPU has AVX-512; the array holds the 64 bytes that are written.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), integers) }
    }

    #[inline(always)]
    fn load_pairs(self, halves: &[u16; 2 * LANES]) -> __m512i {
        // SAFETY: `self` proves that the CPU has AVX-512; the array holds the 64 bytes that are read.
        unsafe { _mm512_loadu_si512(halves.as_ptr().cast()) }
    }

    #[inline(always)]
    fn pair_bytes(self, low: &[i8; LANES], high: &[i8; LANES]) -> __m512i {
        let (low, high) = (self.widen_i8(low), self.widen_i8(high));
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe {
            let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(low));
            _mm512_or_si512(_mm512_castps_si512(high), low)
        }
    }

    #[inline(always)]
    fn max_lane(self, vector: __m512) -> f32 {
        // If either operand is NaN, the instruction returns the second operand, so NaN lanes become minus infinity.
        let numbers = self.max(vector, self.splat(f32::NEG_INFINITY));
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_reduce_max_ps(numbers) }
    }

    #[inline(always)]
    fn round_to_bf16(self, values: &[f32; 2 * LANES], to: &mut Line) {
        if !Self::HAS_BF16 {
            return bf16_line(to, values);
        }
        // SAFETY: `self` proves that the CPU has AVX-512 with BF16; `values` and `to` hold the bytes that are read and
        // written.
        unsafe {
            let (low, high) = (_mm512_loadu_ps(values.as_ptr()), _mm512_loadu_ps(values.as_ptr().add(LANES)));
            _mm512_store_si512(to.0.as_mut_ptr().cast(), bits_of_bf16(_mm512_cvtne2ps_pbh(high, low)));
        }
    }

    #[inline(always)]
    fn bits(self, words: &[u32; LANES], shift: usize, num_bits: usize) -> __m512 {
        let words = self.load_words(words);
        // SAFETY: `self` proves that the CPU has AVX-512; a table holds the 64 bytes that are read.
        unsafe {
            let shifted = _mm512_srlv_epi32(words, _mm512_set1_epi32(shift as i32));
            // The permutation reads only the lowest four bits of each word.
            let table = match num_bits {
                1 => &LOW_BITS[0],
                2 => &LOW_BITS[1],
                4 => &LOW_BITS[2],
                _ => return _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32((1 << num_bits) - 1))),
            };
            _mm512_permutexvar_ps(shifted, _mm512_loadu_ps(table.as_ptr()))
        }
    }

    #[inline(always)]
    fn whole_numbers(self, low: HalfBits<'_>, high: Option<HalfBits<'_>>) -> __m512i {
        let numbers = self.half_bits(low, 0);
        let Some(high) = high else { return numbers };
        let high = self.half_bits(high, low.num_bits);
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_or_si512(numbers, high) }
    }

    #[inline(always)]
    fn look_up_integers(self, indices: HalfBits<'_>, table: &[i8; LANES]) -> __m512i {
        // SAFETY: `self` proves that the CPU has AVX-512 with BW; the table holds the 16 bytes that are read. The
        // permutation reads only the lowest five bits of each index, of which the fifth selects a copy of the table.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            let shift = _mm512_set1_epi16(indices.shift as i16);
            let indices = _mm512_srlv_epi16(self.load_words(indices.words), shift);
            _mm512_permutexvar_epi16(indices, _mm512_cvtepi8_epi16(table))
        }
    }

    #[inline(always)]
    fn add_integer_dots(self, sums: __m512i, words: __m512i, word: u32) -> __m512i {
        // SAFETY: `self` proves that the CPU has AVX-512 F and BW, and VNNI if `HAS_VNNI`.
        unsafe {
            let word = _mm512_set1_epi32(word.cast_signed());
            if Self::HAS_VNNI {
                return _mm512_dpwssd_epi32(sums, words, word);
            }
            _mm512_add_epi32(sums, _mm512_madd_epi16(words, word))
        }
    }

    #[inline(always)]
    fn pin(self, sums: __m512i) -> __m512i {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { pin(sums) }
    }

    #[inline(always)]
    fn look_up(
        self,
        (low, shift): (&[u32; LANES], usize),
        high: Option<(&[u32; LANES], usize)>,
        table: &[u16; 64],
    ) -> __m512i {
        // SAFETY: `self` proves that the CPU has AVX-512 with BW; the table holds the 128 bytes that are read.
        unsafe {
            let low = _mm512_srlv_epi16(self.load_words(low), _mm512_set1_epi16(shift as i16));
            let first = _mm512_loadu_si512(table.as_ptr().cast());
            // The permutations read only the lowest 5 or 6 bits.
            let Some((high, high_shift)) = high else { return _mm512_permutexvar_epi16(low, first) };
            let high = self.load_words(high);
            let high = if high_shift < 4 {
                _mm512_sllv_epi16(high, _mm512_set1_epi16((4 - high_shift) as i16))
            } else {
                _mm512_srlv_epi16(high, _mm512_set1_epi16((high_shift - 4) as i16))
            };
            let mask = _mm512_set1_epi16(15);
            let index = _mm512_or_si512(_mm512_and_si512(mask, low), _mm512_andnot_si512(mask, high));
            let second = _mm512_loadu_si512(table.as_ptr().add(2 * LANES).cast());
            _mm512_permutex2var_epi16(first, index, second)
        }
    }

    #[inline(always)]
    fn pair_floats(self, low: __m512, high: __m512) -> __m512i {
        // SAFETY: `self` proves that the CPU has AVX-512.
        unsafe { _mm512_or_si512(_mm512_srli_epi32::<16>(_mm512_castps_si512(low)), _mm512_castps_si512(high)) }
    }

    #[inline(always)]
    fn transpose(self, rows: &[Line; LANES], to: &mut [Line; LANES]) {
        // SAFETY: `self` proves that the CPU has AVX-512; rows hold the 64 bytes that are read.
        unsafe {
            let mut registers = [_mm512_setzero_si512(); LANES];
            for (register, row) in registers.iter_mut().zip(rows) {
                *register = _mm512_load_si512(row.0.as_ptr().cast());
            }
            transpose(registers, to);
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
    fn sum_each(self, [a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        // SAFETY: `self` proves that the CPU has AVX-512, and so AVX.
        unsafe { sum_halves([fold(a), fold(b), fold(c), fold(d)]) }
    }
}

/// Transposes 16 rows of 16 words.
///
/// # Safety
/// The CPU must have AVX-512.
#[inline(always)]
unsafe fn transpose(rows: [__m512i; LANES], to: &mut [Line; LANES]) {
    // SAFETY: the caller ensures that the CPU has AVX-512; lines hold the 64 bytes that are written.
    unsafe {
        let (mut a, mut b) = (rows, rows);
        // Interleave words of two rows, then of four, in each quarter of a register.
        for i in 0..LANES / 2 {
            b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
            b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
        }
        for i in 0..LANES / 4 {
            a[4 * i] = _mm512_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
            a[4 * i + 1] = _mm512_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
            a[4 * i + 2] = _mm512_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
            a[4 * i + 3] = _mm512_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
        }
        // `a[4 * i + j]` holds columns j, j + 4, j + 8 and j + 12 of rows 4 i to 4 i + 3. Join the quarters of four
        // registers.
        for j in 0..4 {
            let even =
                [_mm512_shuffle_i32x4::<0x88>(a[j], a[4 + j]), _mm512_shuffle_i32x4::<0x88>(a[8 + j], a[12 + j])];
            let odd = [_mm512_shuffle_i32x4::<0xdd>(a[j], a[4 + j]), _mm512_shuffle_i32x4::<0xdd>(a[8 + j], a[12 + j])];
            let columns = [
                _mm512_shuffle_i32x4::<0x88>(even[0], even[1]),
                _mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]),
                _mm512_shuffle_i32x4::<0xdd>(even[0], even[1]),
                _mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]),
            ];
            for (i, column) in columns.into_iter().enumerate() {
                _mm512_store_si512(to[4 * i + j].0.as_mut_ptr().cast(), column);
            }
        }
    }
}

/// Returns the sums of lanes i and i + 8.
///
/// # Safety
/// The CPU must have AVX-512.
#[inline(always)]
unsafe fn fold(vector: __m512) -> __m256 {
    // SAFETY: the caller ensures that the CPU has AVX-512.
    unsafe {
        let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(vector)));
        _mm256_add_ps(_mm512_castps512_ps256(vector), high)
    }
}

/// Reinterprets the same bits as another type.
#[inline(always)]
fn bf16_vector(pairs: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes, and any bits are valid.
    unsafe { std::mem::transmute(pairs) }
}

/// Reinterprets the same bits as another type.
#[inline(always)]
fn bits_of_bf16(pairs: __m512bh) -> __m512i {
    // SAFETY: both types are 64 bytes, and any bits are valid.
    unsafe { std::mem::transmute(pairs) }
}

/// Passes a register through assembly code without instructions, which the compiler does not move.
///
/// # Safety
/// The CPU must have AVX-512.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn pin(mut register: __m512i) -> __m512i {
    // SAFETY: there are no instructions.
    unsafe { asm!("/* {0} */", inout(zmm_reg) register, options(nomem, nostack, preserves_flags)) };
    register
}
