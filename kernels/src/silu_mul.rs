//! The gate of a gated MLP.
//!
//! Door: [`silu_mul`]. Every value is computed alone.

use rayon::prelude::*;

use crate::isa::{self, Isa, Kernel, LANES, Simd};
use crate::rows::rows_per_task;

/// `y = silu(gate) * up` for every value, where `silu(x) = x / (1 + e^-x)`. All three have one length.
///
/// # Panics
/// When they have not.
pub fn silu_mul(gate: &[f32], up: &[f32], y: &mut [f32]) {
    silu_mul_on(isa::active(), gate, up, y);
}

/// [`silu_mul`] with a given instruction set.
pub(crate) fn silu_mul_on(isa: Isa, gate: &[f32], up: &[f32], y: &mut [f32]) {
    let len = y.len();
    assert_eq!((gate.len(), up.len()), (len, len), "gate and up must hold {len} values, as y does");
    let task_len = rows_per_task(len.div_ceil(LANES), LANES) * LANES;
    y.par_chunks_mut(task_len)
        .zip(gate.par_chunks(task_len).zip(up.par_chunks(task_len)))
        .for_each(|(y, (gate, up))| isa.run(SiluMul { gate, up, y }));
}

struct SiluMul<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for SiluMul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (gate_lanes, gate_rest) = self.gate.as_chunks::<LANES>();
        let (up_lanes, up_rest) = self.up.as_chunks::<LANES>();
        let (y_lanes, y_rest) = self.y.as_chunks_mut::<LANES>();
        for ((y, gate), up) in y_lanes.iter_mut().zip(gate_lanes).zip(up_lanes) {
            simd.store(gated(simd, simd.load(gate), simd.load(up)), y);
        }
        let rest = gated(simd, simd.load_padded(gate_rest, 0.0), simd.load_padded(up_rest, 0.0));
        simd.store_prefix(rest, y_rest);
    }
}

#[inline(always)]
fn gated<S: Simd>(simd: S, gate: S::Vector, up: S::Vector) -> S::Vector {
    let exponential = simd.exp(simd.sub(simd.splat(0.0), gate));
    let silu = simd.div(gate, simd.add(simd.splat(1.0), exponential));
    simd.mul(silu, up)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::numbers;

    #[test]
    fn agrees_with_f64_wherever_a_value_stands() {
        for (isa, len) in Isa::available().into_iter().flat_map(|isa| [0, 1, 16, 37, 70_001].map(|len| (isa, len))) {
            let gate: Vec<f32> = numbers(len, 1).into_iter().map(|value| value * 30.0).collect();
            let up = numbers(len, 2);
            let mut y = vec![0.0; len];
            silu_mul_on(isa, &gate, &up, &mut y);
            for ((gate, up), y) in gate.iter().zip(&up).zip(&y) {
                let (wide_gate, wide_up) = (f64::from(*gate), f64::from(*up));
                let exact = wide_gate / (1.0 + (-wide_gate).exp()) * wide_up;
                assert!((f64::from(*y) - exact).abs() <= 5e-7 * exact.abs(), "{isa}: {gate} gives {y} not {exact}");
                let mut alone = [0.0];
                silu_mul_on(isa, &[*gate], &[*up], &mut alone);
                assert_eq!(alone, [*y]);
            }
        }
    }

    #[test]
    fn a_closed_gate_gives_zero() {
        let mut y = [1.0; 2];
        silu_mul(&[-1e4, f32::MIN], &[1.0, 1.0], &mut y);
        assert_eq!(y, [0.0, 0.0]);
    }
}
