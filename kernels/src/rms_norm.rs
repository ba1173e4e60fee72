//! Root-mean-square normalisation, as in `LlamaRMSNorm`.
//!
//! Entry point: [`rms_norm`]. Rows are independent of each other, and the squares of a row are summed in a fixed order.

use rayon::prelude::*;

use crate::isa::{self, Isa, Kernel, LANES, Simd};
use crate::rows::rows_per_task;

/// Computes `y = x / sqrt(mean(x²) + eps) * weight` for every row; x and y are `[rows, hidden]`, weight is `[hidden]`.
///
/// # Panics
/// When `weight` is empty, the length of `x` is not a multiple of that of `weight`, or `y` differs from `x` in length.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    rms_norm_on(isa::active(), x, weight, eps, y);
}

/// [`rms_norm`] with a given instruction set.
pub(crate) fn rms_norm_on(isa: Isa, x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    let hidden = weight.len();
    assert!(hidden > 0 && x.len().is_multiple_of(hidden), "x holds {} values, not rows of {hidden}", x.len());
    assert_eq!(x.len(), y.len(), "x holds {} values but y {}", x.len(), y.len());
    let task_len = rows_per_task(x.len() / hidden, hidden) * hidden;
    y.par_chunks_mut(task_len).zip(x.par_chunks(task_len)).for_each(|(y, x)| isa.run(RmsNorm { x, weight, eps, y }));
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    y: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { x, weight, eps, y } = self;
        let hidden = weight.len();
        let (weight_lanes, weight_rest) = weight.as_chunks::<LANES>();
        for (x, y) in x.chunks_exact(hidden).zip(y.chunks_exact_mut(hidden)) {
            let (x_lanes, x_rest) = x.as_chunks::<LANES>();
            let (y_lanes, y_rest) = y.as_chunks_mut::<LANES>();
            let rest = simd.load_padded(x_rest, 0.0);
            let mut squares = simd.mul(rest, rest);
            for lanes in x_lanes {
                let lanes = simd.load(lanes);
                squares = simd.mul_add(lanes, lanes, squares);
            }
            let mean = simd.sum(squares) / hidden as f32;
            let factor = simd.splat(1.0 / (mean + eps).sqrt());
            for ((y, x), weight) in y_lanes.iter_mut().zip(x_lanes).zip(weight_lanes) {
                simd.store(simd.mul(simd.mul(simd.load(x), factor), simd.load(weight)), y);
            }
            simd.store_prefix(simd.mul(simd.mul(rest, factor), simd.load_padded(weight_rest, 0.0)), y_rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;

    #[test]
    fn agrees_with_f64_and_rows_are_alone() {
        for (isa, hidden) in
            Isa::available().into_iter().flat_map(|isa| [1, 15, 16, 33, 2048].map(|hidden| (isa, hidden)))
        {
            let rows = 40;
            let (x, weight) = (numbers(rows * hidden, 1), numbers(hidden, 2));
            let mut y = vec![0.0; rows * hidden];
            rms_norm_on(isa, &x, &weight, 1e-5, &mut y);
            for (x, y) in x.chunks(hidden).zip(y.chunks(hidden)) {
                let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / hidden as f64;
                for ((x, weight), y) in x.iter().zip(&weight).zip(y) {
                    let exact = f64::from(*x) / (mean + 1e-5).sqrt() * f64::from(*weight);
                    assert!((f64::from(*y) - exact).abs() <= 2e-6 * exact.abs(), "{isa} {hidden}: {y} not {exact}");
                }
                let mut alone = vec![0.0; hidden];
                rms_norm_on(isa, x, &weight, 1e-5, &mut alone);
                assert_eq!(alone, y);
            }
        }
    }
}
