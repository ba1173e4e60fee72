//! Activations as StableHLO, by the formulas of the CPU kernels.
//!
//! Entry point: [`activate`].

use model::graph::{Activation, DType};

use super::emitter::Emitter;
use super::tensor::Tensor;

/// Applies the activation to each element of x.
pub(super) fn activate(emitter: &mut Emitter, activation: Activation, x: &Tensor) -> Tensor {
    match activation {
        Activation::Silu => {
            let sigmoid = emitter.elementwise("logistic", &[x]);
            emitter.elementwise("multiply", &[x, &sigmoid])
        }
        Activation::Gelu => gelu(emitter, x),
        Activation::GeluTanh => {
            let square = emitter.elementwise("multiply", &[x, x]);
            let cube = emitter.elementwise("multiply", &[&square, x]);
            let cube = scaled(emitter, &cube, 0.044_715);
            let inner = emitter.elementwise("add", &[x, &cube]);
            let inner = scaled(emitter, &inner, 1.595_769);
            let sigmoid = emitter.elementwise("logistic", &[&inner]);
            emitter.elementwise("multiply", &[x, &sigmoid])
        }
        Activation::QuickGelu => {
            let inner = scaled(emitter, x, 1.702);
            let sigmoid = emitter.elementwise("logistic", &[&inner]);
            emitter.elementwise("multiply", &[x, &sigmoid])
        }
        Activation::Relu => positive(emitter, x),
        Activation::SquaredRelu => {
            let positive = positive(emitter, x);
            emitter.elementwise("multiply", &[&positive, &positive])
        }
        Activation::Sigmoid => emitter.elementwise("logistic", &[x]),
        Activation::Tanh => emitter.elementwise("tanh", &[x]),
    }
}

/// Applies xIELU to each element of x. The operands are x, then the parameters in the order of
/// [`Op::Xielu`](model::graph::Op::Xielu).
pub(super) fn xielu(emitter: &mut Emitter, operands: &[Tensor]) -> Tensor {
    let x = &operands[0];
    let [positive, negative, beta, eps] = [1, 2, 3, 4].map(|index: usize| {
        let parameter = emitter.convert(&operands[index], DType::F32); // [1] or []
        emitter.reshape(&parameter, &[]) // []
    });
    let [positive, negative] = [positive, negative].map(|alpha| softplus(emitter, &alpha)); // []
    let negative = emitter.elementwise("add", &[&beta, &negative]); // []
    let [positive, negative, beta, eps] =
        [positive, negative, beta, eps].map(|number| emitter.broadcast(&number, &[], x.dims())); // as x
    let square = emitter.elementwise("multiply", &[x, x]); // as x
    let above = emitter.elementwise("multiply", &[&positive, &square]); // as x
    let bounded = emitter.elementwise("minimum", &[x, &eps]); // as x
    let power = emitter.elementwise("exponential_minus_one", &[&bounded]); // as x
    let bend = emitter.elementwise("subtract", &[&power, x]); // as x
    let below = emitter.elementwise("multiply", &[&negative, &bend]); // as x
    let zero = emitter.splat(0.0, x.ty.clone()); // as x
    let is_above = emitter.compare("GT", x, &zero); // as x
    let curve = emitter.select(&is_above, &above, &below); // as x
    let line = emitter.elementwise("multiply", &[&beta, x]); // as x
    emitter.elementwise("add", &[&curve, &line]) // as x
}

/// Computes ln(1 + e^x) without overflow.
fn softplus(emitter: &mut Emitter, x: &Tensor) -> Tensor {
    let size = emitter.elementwise("abs", &[x]);
    let fall = emitter.elementwise("negate", &[&size]);
    let fall = emitter.elementwise("exponential", &[&fall]);
    let tail = emitter.elementwise("log_plus_one", &[&fall]);
    let positive = positive(emitter, x);
    emitter.elementwise("add", &[&positive, &tail])
}

/// Computes max(x, 0) - |x| · erfc(|x| / √2) / 2, with Abramowitz and Stegun's formula 7.1.26 for erfc, because
/// StableHLO has no error function.
fn gelu(emitter: &mut Emitter, x: &Tensor) -> Tensor {
    let size = emitter.elementwise("abs", &[x]);
    let z = scaled(emitter, &size, std::f64::consts::FRAC_1_SQRT_2);
    let one = emitter.splat(1.0, x.ty.clone());
    let t = scaled(emitter, &z, 0.327_591_1);
    let t = emitter.elementwise("add", &[&one, &t]);
    let t = emitter.elementwise("divide", &[&one, &t]);
    let mut series = emitter.splat(1.061_405_4, x.ty.clone());
    for coefficient in [-1.453_152, 1.421_413_7, -0.284_496_73, 0.254_829_6] {
        series = emitter.elementwise("multiply", &[&series, &t]);
        let coefficient = emitter.splat(coefficient, x.ty.clone());
        series = emitter.elementwise("add", &[&series, &coefficient]);
    }
    let square = emitter.elementwise("multiply", &[&z, &z]);
    let square = emitter.elementwise("negate", &[&square]);
    let fall = emitter.elementwise("exponential", &[&square]);
    let series = emitter.elementwise("multiply", &[&series, &t]);
    let tail = emitter.elementwise("multiply", &[&series, &fall]);
    let size = scaled(emitter, &size, 0.5);
    let tail = emitter.elementwise("multiply", &[&size, &tail]);
    let positive = positive(emitter, x);
    emitter.elementwise("subtract", &[&positive, &tail])
}

fn positive(emitter: &mut Emitter, x: &Tensor) -> Tensor {
    let zero = emitter.splat(0.0, x.ty.clone());
    emitter.elementwise("maximum", &[&zero, x])
}

fn scaled(emitter: &mut Emitter, x: &Tensor, factor: f64) -> Tensor {
    let factor = emitter.splat(factor, x.ty.clone());
    emitter.elementwise("multiply", &[x, &factor])
}
