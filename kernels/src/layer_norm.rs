//! Layer normalisation (Ba et al., 2016).
//!
//! Entry point: [`layer_norm`]. Rows are independent of each other, and sums have a fixed order.

use rayon::prelude::*;

use crate::isa::{self, Isa, Kernel, LANES, Simd};
use crate::rows::rows_per_task;

/// Computes `y = (x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) * weight + bias` for every row of `size` values.
/// `weight` and `bias` are `[n, size]`, where n is 1 or the number of heads: row i of x uses their row `i % n`.
///
/// # Panics
/// When `size` is 0, when `weight` is empty or its length is not a multiple of `size`, when `bias` differs from
/// `weight` in length, when the length of `x` is not a multiple of that of `weight`, or when `y` differs from `x` in
/// length.
pub fn layer_norm(x: &[f32], size: usize, [weight, bias]: [&[f32]; 2], eps: f32, y: &mut [f32]) {
    layer_norm_on(isa::active(), LayerNorm { x, size, weight, bias, eps, y });
}

/// The arguments of [`layer_norm`].
pub(crate) struct LayerNorm<'a> {
    x: &'a [f32],
    size: usize,
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    y: &'a mut [f32],
}

/// [`layer_norm`] with a given instruction set.
pub(crate) fn layer_norm_on(isa: Isa, norm: LayerNorm<'_>) {
    let LayerNorm { x, size, weight, bias, eps, y } = norm;
    let is_whole = size > 0 && !weight.is_empty() && weight.len().is_multiple_of(size);
    assert!(is_whole, "a weight of {} values is not whole rows of {size}", weight.len());
    assert_eq!(weight.len(), bias.len(), "weight holds {} values but bias {}", weight.len(), bias.len());
    assert!(x.len().is_multiple_of(weight.len()), "x holds {} values, not a multiple of {}", x.len(), weight.len());
    assert_eq!(x.len(), y.len(), "x holds {} values but y {}", x.len(), y.len());
    let task_len = rows_per_task(x.len() / weight.len(), weight.len()) * weight.len();
    y.par_chunks_mut(task_len)
        .zip(x.par_chunks(task_len))
        .for_each(|(y, x)| isa.run(LayerNorm { x, size, weight, bias, eps, y }));
}

impl Kernel for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { x, size, weight, bias, eps, y } = self;
        let num_turns = weight.len() / size;
        for (row, (x, y)) in x.chunks_exact(size).zip(y.chunks_exact_mut(size)).enumerate() {
            let start = row % num_turns * size;
            let (weight_lanes, weight_rest) = weight[start..start + size].as_chunks::<LANES>();
            let (bias_lanes, bias_rest) = bias[start..start + size].as_chunks::<LANES>();
            let (x_lanes, x_rest) = x.as_chunks::<LANES>();
            let (y_lanes, y_rest) = y.as_chunks_mut::<LANES>();
            let mut sums = simd.load_padded(x_rest, 0.0);
            for lanes in x_lanes {
                sums = simd.add(simd.load(lanes), sums);
            }
            let mean = simd.sum(sums) / size as f32;
            let centre = simd.splat(mean);
            let rest = simd.sub(simd.load_padded(x_rest, mean), centre);
            let mut squares = simd.mul(rest, rest);
            for lanes in x_lanes {
                let centred = simd.sub(simd.load(lanes), centre);
                squares = simd.mul_add(centred, centred, squares);
            }
            let variance = simd.sum(squares) / size as f32;
            let factor = simd.splat(1.0 / (variance + eps).sqrt());
            for (((y, x), weight), bias) in y_lanes.iter_mut().zip(x_lanes).zip(weight_lanes).zip(bias_lanes) {
                let normed = simd.mul(simd.sub(simd.load(x), centre), factor);
                simd.store(simd.mul_add(normed, simd.load(weight), simd.load(bias)), y);
            }
            let weighted = simd.mul_add(
                simd.mul(rest, factor),
                simd.load_padded(weight_rest, 0.0),
                simd.load_padded(bias_rest, 0.0),
            );
            simd.store_prefix(weighted, y_rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;

    #[test]
    fn agrees_with_f64_and_rows_are_alone() {
        let sizes = [1, 15, 16, 33, 2048];
        for (isa, size) in Isa::available().into_iter().flat_map(|isa| sizes.map(|size| (isa, size))) {
            for turns in [1, 3] {
                let (weight, bias) = (numbers(turns * size, 2), numbers(turns * size, 3));
                let x: Vec<f32> = numbers(12 * size, 1).into_iter().map(|value| value * 3.0 + 1.0).collect();
                let mut y = vec![0.0; x.len()];
                layer_norm_on(isa, LayerNorm { x: &x, size, weight: &weight, bias: &bias, eps: 1e-5, y: &mut y });
                for (row, (x, y)) in x.chunks(size).zip(y.chunks(size)).enumerate() {
                    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / size as f64;
                    let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / size as f64;
                    for (idx, (x, y)) in x.iter().zip(y).enumerate() {
                        let place = row % turns * size + idx;
                        let normed = (f64::from(*x) - mean) / (variance + 1e-5).sqrt();
                        let exact = normed * f64::from(weight[place]) + f64::from(bias[place]);
                        assert!((f64::from(*y) - exact).abs() <= 1e-5, "{isa} {size}: {y} not {exact}");
                    }
                }
                let mut alone = vec![0.0; turns * size];
                let turn = &x[turns * size..2 * turns * size];
                layer_norm_on(isa, LayerNorm { x: turn, size, weight: &weight, bias: &bias, eps: 1e-5, y: &mut alone });
                assert_eq!(alone, y[turns * size..2 * turns * size]);
            }
        }
    }
}
