//! The activation functions of feed-forward networks, and functions that limit scores.
//!
//! Entry points: [`activate`], and [`gated`] for networks with a gate, whose inputs [`clamp`] may bound first. Each
//! value is computed independently, by formulas whose only transcendental part is e^x, so that AVX2 and AVX-512 agree
//! bit for bit.

use rayon::prelude::*;

use crate::isa::{self, Isa, Kernel, LANES, Simd};
use crate::rows::rows_per_task;

/// A function of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + e^-x)`
    Silu,
    /// `x · Φ(x)` within 5e-7 · |x|, where Φ is the cumulative normal distribution.
    Gelu,
    /// The approximation of [`Activation::Gelu`] by a hyperbolic tangent (Hendrycks and Gimpel, 2016).
    GeluTanh,
    /// The approximation of [`Activation::Gelu`] by a sigmoid: `x / (1 + e^(-1.702 x))`
    QuickGelu,
    /// `max(x, 0)`
    Relu,
    /// `max(x, 0)²`
    SquaredRelu,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// `tanh(x)` within 5e-7.
    Tanh,
}

impl Activation {
    /// Computes `gate = f(gate) * up` in place.
    #[inline(always)]
    pub(crate) fn gate<S: Simd>(self, simd: S, gate: &mut [[f32; LANES]], up: &[[f32; LANES]]) {
        match self {
            Self::Silu => simd.call(Gate { function: Silu, gate, up }),
            Self::Gelu => simd.call(Gate { function: Gelu, gate, up }),
            Self::GeluTanh => simd.call(Gate { function: GeluTanh, gate, up }),
            Self::QuickGelu => simd.call(Gate { function: QuickGelu, gate, up }),
            Self::Relu => simd.call(Gate { function: Relu, gate, up }),
            Self::SquaredRelu => simd.call(Gate { function: SquaredRelu, gate, up }),
            Self::Sigmoid => simd.call(Gate { function: Sigmoid, gate, up }),
            Self::Tanh => simd.call(Gate { function: Tanh, gate, up }),
        }
    }
}

/// Computes `y = f(x)` for every value.
///
/// # Panics
/// When `x` and `y` differ in length.
pub fn activate(activation: Activation, x: &[f32], y: &mut [f32]) {
    activate_on(isa::active(), activation, x, y);
}

/// Computes `y = f(gate) * up` for every value.
///
/// # Panics
/// When `gate`, `up` and `y` differ in length.
pub fn gated(activation: Activation, gate: &[f32], up: &[f32], y: &mut [f32]) {
    gated_on(isa::active(), activation, [gate, up], y);
}

/// Clamps the inputs of [`gated`]. `gate` becomes at most `limit`. `up` becomes at least `-limit` and at most
/// `limit`; then `offset` is added to it. NaN stays NaN.
pub fn clamp([limit, offset]: [f32; 2], gate: &mut [f32], up: &mut [f32]) {
    isa::active().run(ClampBoth { limit, offset, gate, up });
}

/// [`activate`] with a given instruction set.
pub(crate) fn activate_on(isa: Isa, activation: Activation, x: &[f32], y: &mut [f32]) {
    let len = y.len();
    assert_eq!(x.len(), len, "x must hold {len} values, as y does");
    let task_len = rows_per_task(len.div_ceil(LANES), LANES) * LANES;
    y.par_chunks_mut(task_len).zip(x.par_chunks(task_len)).for_each(|(y, x)| on(isa, activation, x, None, y));
}

/// [`gated`] with a given instruction set.
pub(crate) fn gated_on(isa: Isa, activation: Activation, [gate, up]: [&[f32]; 2], y: &mut [f32]) {
    let len = y.len();
    assert_eq!((gate.len(), up.len()), (len, len), "gate and up must hold {len} values, as y does");
    let task_len = rows_per_task(len.div_ceil(LANES), LANES) * LANES;
    y.par_chunks_mut(task_len)
        .zip(gate.par_chunks(task_len).zip(up.par_chunks(task_len)))
        .for_each(|(y, (gate, up))| on(isa, activation, gate, Some(up), y));
}

fn on(isa: Isa, activation: Activation, x: &[f32], up: Option<&[f32]>, y: &mut [f32]) {
    match activation {
        Activation::Silu => isa.run(Apply { function: Silu, x, up, y }),
        Activation::Gelu => isa.run(Apply { function: Gelu, x, up, y }),
        Activation::GeluTanh => isa.run(Apply { function: GeluTanh, x, up, y }),
        Activation::QuickGelu => isa.run(Apply { function: QuickGelu, x, up, y }),
        Activation::Relu => isa.run(Apply { function: Relu, x, up, y }),
        Activation::SquaredRelu => isa.run(Apply { function: SquaredRelu, x, up, y }),
        Activation::Sigmoid => isa.run(Apply { function: Sigmoid, x, up, y }),
        Activation::Tanh => isa.run(Apply { function: Tanh, x, up, y }),
    }
}

/// A function that is applied to each of sixteen lanes. Implementations are `#[inline(always)]`, as kernels are.
pub(crate) trait Function: Copy {
    fn of<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector;
}

#[derive(Clone, Copy)]
struct Silu;
#[derive(Clone, Copy)]
struct Gelu;
#[derive(Clone, Copy)]
struct GeluTanh;
#[derive(Clone, Copy)]
struct QuickGelu;
#[derive(Clone, Copy)]
struct Relu;
#[derive(Clone, Copy)]
struct SquaredRelu;
#[derive(Clone, Copy)]
struct Sigmoid;
#[derive(Clone, Copy)]
pub(crate) struct Tanh;

impl Function for Silu {
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        let exponential = simd.exp(simd.sub(simd.splat(0.0), x));
        simd.div(x, simd.add(simd.splat(1.0), exponential))
    }
}

impl Function for Gelu {
    /// Computes max(x, 0) - |x| · erfc(|x| / √2) / 2, with Abramowitz and Stegun's formula 7.1.26 for erfc.
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        let size = simd.max(simd.sub(simd.splat(0.0), x), x);
        let z = simd.mul(size, simd.splat(std::f32::consts::FRAC_1_SQRT_2));
        let t = simd.div(simd.splat(1.0), simd.mul_add(z, simd.splat(0.327_591_1), simd.splat(1.0)));
        let mut series = simd.splat(1.061_405_4);
        for coefficient in [-1.453_152, 1.421_413_7, -0.284_496_73, 0.254_829_6] {
            series = simd.mul_add(series, t, simd.splat(coefficient));
        }
        let fall = simd.exp(simd.sub(simd.splat(0.0), simd.mul(z, z)));
        let tail = simd.mul(simd.mul(series, t), fall);
        let half_tail = simd.mul(simd.mul(size, simd.splat(0.5)), tail);
        simd.sub(simd.max(simd.splat(0.0), x), half_tail)
    }
}

impl Function for GeluTanh {
    /// Computes x · (1 + tanh(u)) / 2 as x / (1 + e^-2u).
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        let cube = simd.mul(simd.mul(x, x), x);
        let inner = simd.mul_add(cube, simd.splat(0.044_715), x);
        let exponential = simd.exp(simd.mul(inner, simd.splat(-1.595_769)));
        simd.div(x, simd.add(simd.splat(1.0), exponential))
    }
}

impl Function for QuickGelu {
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        let exponential = simd.exp(simd.mul(x, simd.splat(-1.702)));
        simd.div(x, simd.add(simd.splat(1.0), exponential))
    }
}

impl Function for Relu {
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        simd.max(simd.splat(0.0), x)
    }
}

impl Function for SquaredRelu {
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        let positive = simd.max(simd.splat(0.0), x);
        simd.mul(positive, positive)
    }
}

impl Function for Sigmoid {
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        let exponential = simd.exp(simd.sub(simd.splat(0.0), x));
        simd.div(simd.splat(1.0), simd.add(simd.splat(1.0), exponential))
    }
}

impl Function for Tanh {
    /// Computes 1 - 2 / (1 + e^2x).
    #[inline(always)]
    fn of<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        let exponential = simd.exp(simd.add(x, x));
        simd.sub(simd.splat(1.0), simd.div(simd.splat(2.0), simd.add(simd.splat(1.0), exponential)))
    }
}

struct Gate<'a, F> {
    function: F,
    gate: &'a mut [[f32; LANES]],
    up: &'a [[f32; LANES]],
}

impl<F: Function> Kernel for Gate<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (gate, up) in self.gate.iter_mut().zip(self.up) {
            simd.store(simd.mul(self.function.of(simd, simd.load(gate)), simd.load(up)), gate);
        }
    }
}

struct Apply<'a, F> {
    function: F,
    x: &'a [f32],
    up: Option<&'a [f32]>,
    y: &'a mut [f32],
}

impl<F: Function> Kernel for Apply<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { function, x, up, y } = self;
        let (x_lanes, x_rest) = x.as_chunks::<LANES>();
        let (y_lanes, y_rest) = y.as_chunks_mut::<LANES>();
        let rest = function.of(simd, simd.load_padded(x_rest, 0.0));
        if let Some(up) = up {
            let (up_lanes, up_rest) = up.as_chunks::<LANES>();
            for ((y, x), up) in y_lanes.iter_mut().zip(x_lanes).zip(up_lanes) {
                simd.store(simd.mul(function.of(simd, simd.load(x)), simd.load(up)), y);
            }
            simd.store_prefix(simd.mul(rest, simd.load_padded(up_rest, 0.0)), y_rest);
        } else {
            for (y, x) in y_lanes.iter_mut().zip(x_lanes) {
                simd.store(function.of(simd, simd.load(x)), y);
            }
            simd.store_prefix(rest, y_rest);
        }
    }
}

struct ClampBoth<'a> {
    limit: f32,
    offset: f32,
    gate: &'a mut [f32],
    up: &'a mut [f32],
}

impl Kernel for ClampBoth<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let [limit, lowest, offset] = [simd.splat(self.limit), simd.splat(-self.limit), simd.splat(self.offset)];
        // If an operand is NaN, `min` and `max` return the second one.
        for gate in self.gate.chunks_mut(LANES) {
            simd.store_prefix(simd.min(limit, simd.load_padded(gate, 0.0)), gate);
        }
        for up in self.up.chunks_mut(LANES) {
            let bounded = simd.max(lowest, simd.min(limit, simd.load_padded(up, 0.0)));
            simd.store_prefix(simd.add(bounded, offset), up);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;

    const ALL: [Activation; 8] = [
        Activation::Silu,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::QuickGelu,
        Activation::Relu,
        Activation::SquaredRelu,
        Activation::Sigmoid,
        Activation::Tanh,
    ];

    /// Computes Φ(x) by its power series, for the expected values.
    fn normal(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / (2.0 * f64::from(n));
            sum += term / f64::from(2 * n + 1);
        }
        0.5 + sum / (2.0 * std::f64::consts::PI).sqrt()
    }

    fn exact(activation: Activation, x: f64) -> f64 {
        match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            // Beyond 6 the series loses its digits to cancellation, and the function is x or 0 within 1e-8.
            Activation::Gelu if x.abs() > 6.0 => x.max(0.0),
            Activation::Gelu => x * normal(x),
            Activation::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
            }
            Activation::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
            Activation::Relu => x.max(0.0),
            Activation::SquaredRelu => x.max(0.0).powi(2),
            Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Activation::Tanh => x.tanh(),
        }
    }

    #[test]
    fn agrees_with_f64_wherever_a_value_stands() {
        for (isa, len) in Isa::available().into_iter().flat_map(|isa| [0, 1, 16, 37, 70_001].map(|len| (isa, len))) {
            let x: Vec<f32> = numbers(len, 1).into_iter().map(|value| value * 30.0).collect();
            let up = numbers(len, 2);
            for activation in ALL {
                let [mut plain, mut y] = [(); 2].map(|()| vec![0.0; len]);
                activate_on(isa, activation, &x, &mut plain);
                gated_on(isa, activation, [&x, &up], &mut y);
                for (idx, (y, plain)) in y.iter().zip(&plain).enumerate() {
                    let exact = exact(activation, f64::from(x[idx]));
                    let limit = 5e-7 * exact.abs() + 2e-7 * f64::from(x[idx].abs()).max(1.0);
                    let off = (f64::from(*plain) - exact).abs();
                    assert!(off <= limit, "{isa} {activation:?}: {} gives {plain} not {exact}", x[idx]);
                    assert_eq!(*y, plain * up[idx]);
                }
                if len == 37 {
                    let mut alone = [0.0];
                    activate_on(isa, activation, &x[20..21], &mut alone);
                    assert_eq!(alone, plain[20..21]);
                }
            }
        }
    }

    #[test]
    fn gates_are_clamped_above_and_ups_on_both_sides() {
        let inputs = [-9.0, -7.0, 0.5, 7.0, 9.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN].repeat(3);
        let (mut gate, mut up) = (inputs.clone(), inputs);
        clamp([7.0, 1.0], &mut gate, &mut up);
        for (gate, up) in gate.chunks(8).zip(up.chunks(8)) {
            assert_eq!(gate[..7], [-9.0, -7.0, 0.5, 7.0, 7.0, 7.0, f32::NEG_INFINITY]);
            assert_eq!(up[..7], [-6.0, -6.0, 1.5, 8.0, 8.0, 8.0, -6.0]);
            assert!(gate[7].is_nan() && up[7].is_nan());
        }
    }

    #[test]
    fn ends_of_the_numbers_are_bounded() {
        let mut y = [1.0; 2];
        gated(Activation::Silu, &[-1e4, f32::MIN], &[1.0, 1.0], &mut y);
        assert_eq!(y, [0.0, 0.0]);
        activate(Activation::Tanh, &[-1e4, 1e4], &mut y);
        assert_eq!(y, [-1.0, 1.0]);
        for activation in [Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::SquaredRelu] {
            activate(activation, &[-50.0, 0.0], &mut y);
            assert!(y[0].abs() < 1e-30 && y[1] == 0.0, "{activation:?}: {y:?}");
        }
    }

    #[test]
    fn activations_of_nan_are_nan() {
        for activation in ALL {
            let mut y = [0.0];
            activate(activation, &[f32::NAN], &mut y);
            assert!(y[0].is_nan(), "{activation:?}");
        }
    }
}
