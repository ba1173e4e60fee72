//! Element-wise operations, with broadcasting of scalars, and of `[rows]` to `[rows, n]`.
//!
//! Candle has these operations too, but spreads large tensors over a separate pool of spinning threads, for which our
//! compute threads would have to wait. The operations here are plain loops, most of which the compiler vectorises. Only
//! sums, differences, products and quotients of two large tensors of one shape, and xIELU, run on several threads.

use candle_core::{DType, Tensor};
use model::graph::{Binary, PositionScale, Unary};
use rayon::prelude::*;

use super::host::{self, View};

type Result<T> = candle_core::Result<T>;

/// The number of values per task. Two tensors of one shape with more values than this are combined on several threads.
const TASK_VALUES: usize = 1 << 16;
/// The same number for [`xielu`], whose values take longer.
const XIELU_TASK_VALUES: usize = 1 << 11;

/// One row of an operand: a value for each element, or the same value for all.
#[derive(Clone, Copy)]
enum Row<'a, T> {
    Each(&'a [T]),
    Same(T),
}

pub(super) fn unary(function: Unary, x: &Tensor) -> Result<Tensor> {
    let view = View::new(x)?;
    let y: Vec<f32> = match function {
        Unary::Negate => view.f32().iter().map(|x| -x).collect(),
        Unary::Abs => view.f32().iter().map(|x| x.abs()).collect(),
        Unary::Exp => view.f32().iter().map(|x| x.exp()).collect(),
        Unary::ReciprocalRoot => view.f32().iter().map(|x| 1.0 / x.sqrt()).collect(),
    };
    host::shaped(y, x.shape()) // as x
}

pub(super) fn binary(function: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match function {
        Binary::Add => map(a, b, |a, b| a + b),
        Binary::Subtract => map(a, b, |a, b| a - b),
        Binary::Multiply => map(a, b, |a, b| a * b),
        Binary::Divide => map(a, b, |a, b| a / b),
    }
}

pub(super) fn less(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let shape = larger(a, b).dims();
    let (a, b) = (View::new(a)?, View::new(b)?);
    let (num_rows, width) = rows_of(shape);
    let mut y = vec![0_u8; num_rows * width]; // as the larger
    for (index, y) in y.chunks_exact_mut(width).enumerate() {
        zip(row(a.f32(), index, num_rows, width), row(b.f32(), index, num_rows, width), y, |a, b| u8::from(a < b));
    }
    host::shaped(y, shape)
}

pub(super) fn select(condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let dims = larger(larger(condition, a), b).dims();
    let (condition, a_view, b_view) = (View::new(condition)?, View::new(a)?, View::new(b)?);
    match a.dtype() {
        DType::I32 => host::shaped(selected(dims, condition.bool(), a_view.i32(), b_view.i32()), dims),
        _ => host::shaped(selected(dims, condition.bool(), a_view.f32(), b_view.f32()), dims),
    }
}

/// Multiplies x `[tokens, heads, head_dim]` by the factors of `positions` `[tokens]`.
pub(super) fn scale_by_position(x: &Tensor, positions: &Tensor, scale: PositionScale) -> Result<Tensor> {
    let PositionScale { beta, period, offset } = scale;
    let (view, positions) = (View::new(x)?, View::new(positions)?);
    let width = rows_of(x.dims()).1;
    let mut y = view.f32().to_vec(); // [tokens, heads, head_dim]
    for (y, position) in y.chunks_exact_mut(width).zip(positions.u32()) {
        let factor = 1.0 + beta * ((*position as f32 + offset) / period).floor().ln_1p();
        y.iter_mut().for_each(|y| *y *= factor);
    }
    host::shaped(y, x.shape())
}

/// Applies xIELU to every element of x. The parameters are in the order of [`Op::Xielu`](model::graph::Op::Xielu).
pub(super) fn xielu(x: &Tensor, parameters: [&Tensor; 4]) -> Result<Tensor> {
    let [positive, negative, beta, eps] =
        parameters.map(|parameter| Ok::<f32, candle_core::Error>(View::new(parameter)?.f32()[0]));
    let (beta, eps) = (beta?, eps?);
    let [positive, negative] = [softplus(positive?), beta + softplus(negative?)];
    let of = |x: f32| {
        let curve = if x > 0.0 { positive * x * x } else { negative * (x.min(eps).exp_m1() - x) };
        curve + beta * x
    };
    let view = View::new(x)?;
    let mut y = view.f32().to_vec(); // as x
    y.par_chunks_mut(XIELU_TASK_VALUES).for_each(|y| y.iter_mut().for_each(|y| *y = of(*y)));
    host::shaped(y, x.shape())
}

/// Returns ln(1 + e^x), without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn selected<T: Copy + Default>(dims: &[usize], condition: &[u8], a: &[T], b: &[T]) -> Vec<T> {
    let (num_rows, width) = rows_of(dims);
    let mut y = vec![T::default(); num_rows * width]; // as the largest
    for (index, y) in y.chunks_exact_mut(width).enumerate() {
        match row(b, index, num_rows, width) {
            Row::Each(b) => y.copy_from_slice(b),
            Row::Same(b) => y.fill(b),
        }
        let a = row(a, index, num_rows, width);
        match row(condition, index, num_rows, width) {
            Row::Same(0) => {}
            Row::Same(_) => replace(y, a, |_| true),
            Row::Each(condition) => replace(y, a, |i| condition[i] != 0),
        }
    }
    y
}

fn map(a: &Tensor, b: &Tensor, function: impl Fn(f32, f32) -> f32 + Sync) -> Result<Tensor> {
    let shape = larger(a, b).dims();
    let (a, b) = (View::new(a)?, View::new(b)?);
    let (a, b) = (a.f32(), b.f32());
    let (num_rows, width) = rows_of(shape);
    let mut y = vec![0.0; num_rows * width]; // as the larger
    if a.len() == b.len() {
        let tasks = y.par_chunks_mut(TASK_VALUES).zip(a.par_chunks(TASK_VALUES).zip(b.par_chunks(TASK_VALUES)));
        tasks.for_each(|(y, (a, b))| zip(Row::Each(a), Row::Each(b), y, &function));
    } else {
        for (index, y) in y.chunks_exact_mut(width).enumerate() {
            zip(row(a, index, num_rows, width), row(b, index, num_rows, width), y, &function);
        }
    }
    host::shaped(y, shape)
}

fn zip<R>(a: Row<'_, f32>, b: Row<'_, f32>, y: &mut [R], function: impl Fn(f32, f32) -> R) {
    match (a, b) {
        (Row::Each(a), Row::Each(b)) => y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = function(*a, *b)),
        (Row::Each(a), Row::Same(b)) => y.iter_mut().zip(a).for_each(|(y, a)| *y = function(*a, b)),
        (Row::Same(a), Row::Each(b)) => y.iter_mut().zip(b).for_each(|(y, b)| *y = function(a, *b)),
        (Row::Same(a), Row::Same(b)) => y.iter_mut().for_each(|y| *y = function(a, b)),
    }
}

fn replace<T: Copy>(y: &mut [T], a: Row<'_, T>, is_replaced: impl Fn(usize) -> bool) {
    for (i, y) in y.iter_mut().enumerate() {
        let value = match a {
            Row::Each(a) => a[i],
            Row::Same(a) => a,
        };
        *y = if is_replaced(i) { value } else { *y };
    }
}

/// Returns the part of an operand that belongs to one row of the result `[num_rows, width]`.
fn row<T: Copy>(values: &[T], index: usize, num_rows: usize, width: usize) -> Row<'_, T> {
    if values.len() == num_rows * width {
        Row::Each(&values[index * width..][..width])
    } else if values.len() == num_rows {
        Row::Same(values[index])
    } else {
        Row::Same(values[0])
    }
}

/// Returns the number of rows and their width. A shape with one dimension has rows of one value.
fn rows_of(shape: &[usize]) -> (usize, usize) {
    match shape {
        [num_rows, rest @ ..] => (*num_rows, rest.iter().product::<usize>().max(1)),
        [] => (1, 1),
    }
}

fn larger<'a>(a: &'a Tensor, b: &'a Tensor) -> &'a Tensor {
    if b.rank() > a.rank() { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(shape: &[usize], values: &[f32]) -> Tensor {
        host::shaped(values.to_vec(), shape).unwrap()
    }

    fn elements(tensor: &Tensor) -> Vec<f32> {
        View::new(tensor).unwrap().f32().to_vec()
    }

    #[test]
    fn smaller_operands_are_repeated() {
        let scores = values(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let per_row = values(&[2], &[10.0, 20.0]);
        let scalar = values(&[], &[2.0]);
        let sum = |a: &Tensor, b: &Tensor| elements(&binary(Binary::Add, a, b).unwrap());
        assert_eq!(sum(&scores, &per_row), [11.0, 12.0, 13.0, 24.0, 25.0, 26.0]);
        assert_eq!(sum(&per_row, &scores), sum(&scores, &per_row));
        assert_eq!(sum(&scores, &scalar), [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(sum(&per_row, &scalar), [12.0, 22.0]);
        assert_eq!(elements(&binary(Binary::Subtract, &scalar, &scores).unwrap()), [1.0, 0.0, -1.0, -2.0, -3.0, -4.0]);
    }

    #[test]
    fn each_element_is_selected_alone() {
        let scores = values(&[2, 2], &[1.0, 5.0, f32::NAN, -1.0]);
        let limit = values(&[2], &[3.0, 0.0]);
        let condition = less(&scores, &limit).unwrap();
        let zero = values(&[], &[0.0]);
        let selected = elements(&select(&condition, &zero, &scores).unwrap());
        assert_eq!((selected[0], selected[1], selected[3]), (0.0, 5.0, 0.0));
        assert!(selected[2].is_nan());
        let per_row = less(&limit, &values(&[], &[1.0])).unwrap();
        assert_eq!(elements(&select(&per_row, &limit, &zero).unwrap()), [0.0, 0.0]);
        assert_eq!(elements(&select(&per_row, &zero, &limit).unwrap()), [3.0, 0.0]);
    }

    #[test]
    fn xielu_has_a_curve_on_each_side() {
        let parameters = [0.25, -1.5, 0.5, -1e-6].map(|value| values(&[1], &[value]));
        let x = [-30.0, -1.0, -1e-7, 0.0, 1e-7, 2.0];
        let y = elements(&xielu(&values(&[2, 3], &x), parameters.each_ref()).unwrap());
        let softplus = |x: f64| (1.0 + x.exp()).ln();
        let exact = |x: f64| {
            let below = (0.5 + softplus(-1.5)) * (x.min(-1e-6).exp() - 1.0 - x);
            0.5 * x + if x > 0.0 { softplus(0.25) * x * x } else { below }
        };
        for (x, y) in x.into_iter().zip(y) {
            let exact = exact(f64::from(x));
            assert!((f64::from(y) - exact).abs() <= 1e-6 * exact.abs() + 1e-12, "{x} gives {y} not {exact}");
        }
    }

    #[test]
    fn factors_grow_after_each_period() {
        let x = values(&[4, 1, 2], &[1.0, -2.0].repeat(4));
        let positions = host::tensor(vec![0_u32, 15, 16, 40]).unwrap();
        for (offset, steps) in [(0.0, [0.0, 0.0, 1.0, 2.0]), (1.0, [0.0, 1.0, 1.0, 2.0])] {
            let scale = PositionScale { beta: 0.5, period: 16.0, offset };
            let y = elements(&scale_by_position(&x, &positions, scale).unwrap());
            let expected = steps.map(|steps: f32| 1.0 + 0.5 * (1.0 + steps).ln());
            for (y, factor) in y.chunks(2).zip(expected) {
                assert!((y[0] - factor).abs() < 1e-6 && (y[1] + 2.0 * factor).abs() < 1e-6, "{y:?} not {factor}");
            }
        }
    }

    #[test]
    fn large_sums_are_the_same_on_several_threads() {
        let a: Vec<f32> = (0..3 * TASK_VALUES + 5).map(|i| i as f32).collect();
        let shape = [a.len() / 5, 5];
        let a = values(&shape, &a[..shape[0] * 5]);
        let doubled = elements(&binary(Binary::Add, &a, &a).unwrap());
        assert!(doubled.iter().enumerate().all(|(i, value)| *value == 2.0 * i as f32));
    }
}
