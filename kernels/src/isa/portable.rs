//! Sixteen lanes in plain Rust, which the compiler vectorises for whatever the compilation target guarantees.
//!
//! Multiply-add is fused only on aarch64 and in builds with the target feature `fma`, because a fused multiply-add in
//! software would be far slower. So in a default build for x86-64 the results differ from AVX2 and AVX-512 in the last
//! bits.

use super::simd::{Kernel, LANES, Simd};

const HAS_FUSED_MULTIPLY_ADD: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

/// The token for plain Rust code, which needs no CPU feature.
#[derive(Clone, Copy)]
pub(super) struct Portable;

/// Compiles kernels without extra features. This is a trait for the reason stated at `Compile` in `avx2.rs`.
pub(super) trait Compile: Kernel + Sized {
    /// Runs the kernel in a function of its own: inlined into all their callers, kernels take minutes to compile.
    #[inline(never)]
    fn run_portable(self) -> Self::Output {
        self.run(Portable)
    }
}

impl<K: Kernel> Compile for K {}

#[inline(always)]
fn lanewise(a: [f32; LANES], b: [f32; LANES], operation: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut result = [0.0; LANES];
    for i in 0..LANES {
        result[i] = operation(a[i], b[i]);
    }
    result
}

impl Simd for Portable {
    type Vector = [f32; LANES];
    type Integers = [i32; LANES];

    const NUM_SUMS: usize = 4;
    const HAS_VECTORS: bool = false;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run_portable()
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; LANES] {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> [f32; LANES] {
        *values
    }

    #[inline(always)]
    fn store(self, vector: [f32; LANES], to: &mut [f32; LANES]) {
        *to = vector;
    }

    #[inline(always)]
    fn add(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        lanewise(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        lanewise(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        lanewise(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        lanewise(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        let mut result = [0.0; LANES];
        for i in 0..LANES {
            result[i] = if HAS_FUSED_MULTIPLY_ADD { a[i].mul_add(b[i], c[i]) } else { a[i] * b[i] + c[i] };
        }
        result
    }

    #[inline(always)]
    fn max(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        lanewise(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        lanewise(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn power_of_two(self, exponents: [f32; LANES]) -> [f32; LANES] {
        let mut result = [0.0; LANES];
        for i in 0..LANES {
            // The low bits of 1.5 * 2^23 + 127 + n are n + 127, the exponent field of 2^n.
            result[i] = f32::from_bits((exponents[i] + (12_582_912.0 + 127.0)).to_bits() << 23);
        }
        result
    }

    #[inline(always)]
    fn widen_bf16_pairs(self, pairs: [i32; LANES]) -> [[f32; LANES]; 2] {
        let mut result = [[0.0; LANES]; 2];
        for i in 0..LANES {
            result[0][i] = f32::from_bits(pairs[i].cast_unsigned() << 16);
            result[1][i] = f32::from_bits(pairs[i].cast_unsigned() & 0xffff_0000);
        }
        result
    }

    #[inline(always)]
    fn widen_f16(self, halves: &[u16; LANES]) -> [f32; LANES] {
        let mut result = [0.0; LANES];
        for i in 0..LANES {
            result[i] = f16_to_f32(halves[i]);
        }
        result
    }

    #[inline(always)]
    fn widen_i8(self, bytes: &[i8; LANES]) -> [f32; LANES] {
        let mut result = [0.0; LANES];
        for i in 0..LANES {
            result[i] = f32::from(bytes[i]);
        }
        result
    }

    #[inline(always)]
    fn to_floats(self, integers: [i32; LANES]) -> [f32; LANES] {
        let mut result = [0.0; LANES];
        for i in 0..LANES {
            result[i] = integers[i] as f32;
        }
        result
    }

    #[inline(always)]
    fn load_integers(self, values: &[i32; LANES]) -> [i32; LANES] {
        *values
    }

    #[inline(always)]
    fn store_integers(self, integers: [i32; LANES], to: &mut [i32; LANES]) {
        *to = integers;
    }

    #[inline(always)]
    fn add_dots(self, mut sums: [i32; LANES], quads: [i32; LANES], word: u32) -> [i32; LANES] {
        for i in 0..LANES {
            for byte in 0..4 {
                // Shift the byte to the top, then down again with its sign.
                let [a, b] = [quads[i], word.cast_signed()].map(|word| word << (24 - 8 * byte) >> 24);
                sums[i] += a * b;
            }
        }
        sums
    }
}

/// Converts without a branch, so that the loop vectorises. Exact, including subnormals.
#[inline(always)]
fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    // The exponent biases differ by 112.
    let magnitude = f32::from_bits(u32::from(half & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    let infinite_exponent = if magnitude >= 65536.0 { 0x7f80_0000 } else { 0 };
    f32::from_bits(sign | magnitude.to_bits() | infinite_exponent)
}
