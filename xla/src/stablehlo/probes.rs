//! Small programs that try what a device can do. No model uses them; `crate::probe` runs them.

use model::graph::DType;
use numbers::FloatType;

use super::emitter::{Combine, DotDims, Emitter};
use super::tensor::{Tensor, Type};
use super::{Parameter, module};

/// The name of the modules.
const NAME: &str = "probe";

/// Returns the type of floats with these dimensions.
fn floats(dims: impl Into<Vec<usize>>) -> Type {
    Type::new(dims, DType::Float(FloatType::F32))
}

/// Returns the program without arguments that returns the number `value`, i32.
pub(crate) fn constant(value: i32) -> String {
    let mut emitter = Emitter::default();
    let result = emitter.scalar(f64::from(value), DType::I32);
    module(NAME, 1, &[], emitter, (&[result], &[]))
}

/// Returns the program that takes `x` `[len]` f32, and returns `x + x`.
pub(crate) fn doubled(len: usize) -> String {
    let mut emitter = Emitter::default();
    let x = Emitter::argument(0, floats([len]));
    let result = emitter.elementwise("add", &[&x, &x]);
    module(NAME, 1, &[Parameter::kept(x.ty)], emitter, (&[result], &[]))
}

/// Returns the program that takes `num_donated` arrays, which it returns increased by 1 in the same memory, and
/// `num_kept` more arrays, whose sum is the last result. All arrays are `[len]` i32.
pub(crate) fn many_arguments(num_donated: usize, num_kept: usize, len: usize) -> String {
    let ty = Type::new([len], DType::I32);
    let mut emitter = Emitter::default();
    let one = emitter.splat(1.0, ty.clone());
    let donated = (0..num_donated).map(|index| Emitter::argument(index, ty.clone()));
    let mut results: Vec<Tensor> = donated.map(|x| emitter.elementwise("add", &[&x, &one])).collect();
    let kept = (num_donated..num_donated + num_kept).map(|index| Emitter::argument(index, ty.clone()));
    let zero = emitter.splat(0.0, ty.clone());
    results.push(kept.fold(zero, |sum, x| emitter.elementwise("add", &[&sum, &x])));
    let donated = (0..num_donated).map(|index| Parameter::donated(ty.clone(), index));
    let parameters: Vec<Parameter> = donated.chain((0..num_kept).map(|_| Parameter::kept(ty.clone()))).collect();
    module(NAME, 1, &parameters, emitter, (&results, &[]))
}

/// Returns the program that takes `x` `[size, size]` f32, squares it `count` times, and returns it in the same memory.
pub(crate) fn squared(size: usize, count: usize) -> String {
    let mut emitter = Emitter::default();
    let dims = DotDims { batch: [&[], &[]], contract: [&[1], &[0]] };
    let x = Emitter::argument(0, floats([size, size]));
    let result = (0..count).fold(x.clone(), |x, _| emitter.dot(&x, &x, dims));
    module(NAME, 1, &[Parameter::donated(x.ty, 0)], emitter, (&[result], &[]))
}

/// Returns the program that takes a state of the type `state` `[blocks, tokens, n]`, indices `[rows, 2]` i32 and
/// `[rows, n]`, and writes these rows into the state in its own memory.
pub(crate) fn scattered(state: &Type, num_rows: usize) -> String {
    let mut emitter = Emitter::default();
    let x = Emitter::argument(0, state.clone());
    let indices = Emitter::argument(1, Type::new([num_rows, 2], DType::I32));
    let rows = Emitter::argument(2, Type::new([num_rows, state.dims[2]], state.dtype));
    let result = emitter.scatter_rows(&x, &indices, &rows, Combine::Replace);
    let parameters = [Parameter::donated(x.ty, 0), Parameter::kept(indices.ty), Parameter::kept(rows.ty)];
    module(NAME, 1, &parameters, emitter, (&[result], &[]))
}

/// Returns the program that takes `x` `[len]` f32 on each device, and returns the sum over all devices.
pub(crate) fn summed(len: usize, num_devices: usize) -> String {
    let mut emitter = Emitter::default();
    let x = Emitter::argument(0, floats([len]));
    let result = emitter.all_reduce(&x, num_devices);
    module(NAME, num_devices, &[Parameter::kept(x.ty)], emitter, (&[result], &[]))
}
