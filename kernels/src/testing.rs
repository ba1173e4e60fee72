//! Reproducible inputs of the tests.
//!
//! Entry point: [`numbers`]. This module is compiled for tests only.

/// Returns `len` pseudo-random numbers in [-1, 1), determined by `seed`.
pub(crate) fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}
