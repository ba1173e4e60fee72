//! The operations of models as StableHLO.
//!
//! Floats between operations are f32, but weights may have other types. A linear layer rounds its input to the type of
//! its weight, and sums in f32. If the weight is int8, the layer quantizes each row of its input to int8 with a scale
//! of its own, as the CPU's kernels do (`numbers/src/int8.rs`), and sums exactly. int4 weights are first multiplied by
//! their factors, which makes them int8. If the weight is fp8, each row is quantized to fp8, and products are summed in
//! f32.

use model::graph::{DType, Pairing, PositionScale, RotarySpec};
use numbers::{LEAST_MAGNITUDE, fp8, int8};

use super::emitter::{DotDims, Emitter, Reduction};
use super::tensor::{Tensor, Type};

/// Returns the rows of `table` `[vocab, hidden]` at ids `[tokens]`, `[tokens, hidden]`, f32.
pub(super) fn embedding(emitter: &mut Emitter, table: &Tensor, ids: &Tensor) -> Tensor {
    let ids = emitter.bitcast(ids, DType::I32); // [tokens]
    let rows = emitter.gather_rows(table, &ids); // [tokens, hidden]
    let rows = emitter.convert(&rows, DType::F32); // [tokens, hidden]
    let Some(scale) = &table.scale else { return rows };
    let scale = emitter.gather_rows(scale, &ids); // [tokens]
    let scale = emitter.broadcast(&scale, &[0], rows.dims()); // [tokens, hidden]
    emitter.elementwise("multiply", &[&rows, &scale]) // [tokens, hidden]
}

/// Does the same as [`embedding`] with the part of a table that is on device `rank` `[]`. For ids in other parts the
/// result is zeros.
pub(super) fn embedding_part(emitter: &mut Emitter, table: &Tensor, ids: &Tensor, rank: &Tensor) -> Tensor {
    let part = table.dims()[0];
    let ids = &emitter.bitcast(ids, DType::I32); // [tokens]
    let device = emitter.broadcast(rank, &[], ids.dims()); // [tokens]
    let size = emitter.splat(part as f64, ids.ty.clone()); // [tokens]
    let start = emitter.elementwise("multiply", &[&device, &size]); // [tokens]
    let local = emitter.elementwise("subtract", &[ids, &start]); // [tokens]
    let zero = emitter.splat(0.0, ids.ty.clone()); // [tokens]
    let is_after = emitter.compare("GE", &local, &zero); // [tokens]
    let is_before = emitter.compare("LT", &local, &size); // [tokens]
    let is_here = emitter.elementwise("and", &[&is_after, &is_before]); // [tokens]
    let rows = embedding(emitter, table, &local); // [tokens, hidden]
    let is_here = emitter.broadcast(&is_here, &[0], rows.dims()); // [tokens, hidden]
    let none = emitter.splat(0.0, rows.ty.clone()); // [tokens, hidden]
    emitter.select(&is_here, &rows, &none) // [tokens, hidden]
}

/// Computes x `[n, in]` · weightᵀ `[out, in]` + bias `[out]`, `[n, out]`, f32.
pub(super) fn linear(emitter: &mut Emitter, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let y = match &weight.scale {
        Some(scale) => {
            let (rounded, row_scale) = rounded_rows(emitter, x, weight.dtype()); // [n, in], [n]
            let sums = match &weight.factors {
                Some(factors) => product_of_groups(emitter, &rounded, weight, factors), // [n, out]
                None => product(emitter, &rounded, weight, [&[1], &[1]]),               // [n, out]
            };
            let sums = emitter.convert(&sums, DType::F32); // [n, out]
            let row_scale = emitter.broadcast(&row_scale, &[0], sums.dims()); // [n, out]
            let scale = emitter.broadcast(scale, &[1], sums.dims()); // [n, out]
            let scale = emitter.elementwise("multiply", &[&row_scale, &scale]); // [n, out]
            emitter.elementwise("multiply", &[&sums, &scale]) // [n, out]
        }
        None => {
            let rounded = emitter.convert(x, weight.dtype()); // [n, in]
            product(emitter, &rounded, weight, [&[1], &[1]]) // [n, out]
        }
    };
    match bias {
        Some(bias) => add_bias(emitter, &y, bias), // [n, out]
        None => y,
    }
}

/// Computes each head of x `[tokens, heads, in]` times the transpose of its matrix in weight `[heads, out, in]`,
/// `[tokens, heads, out]`, f32.
pub(super) fn head_linear(emitter: &mut Emitter, x: &Tensor, weight: &Tensor) -> Tensor {
    let rounded = emitter.convert(x, weight.dtype()); // [tokens, heads, in]
    let dims = DotDims { batch: [&[1], &[0]], contract: [&[2], &[2]] };
    let y = emitter.dot(&rounded, weight, dims); // [heads, tokens, out]
    emitter.transpose(&y, &[1, 0, 2]) // [tokens, heads, out]
}

/// Computes x `[n, in]` · (int4 weights `[groups, inputs of a group, out]` times factors `[groups, out]`), `[n, out]`,
/// i32. Inputs that are missing in the last group are zeros.
fn product_of_groups(emitter: &mut Emitter, x: &Tensor, weight: &Tensor, factors: &Tensor) -> Tensor {
    let ([num_rows, inputs], [groups, group_inputs]) =
        ([0, 1].map(|dim| x.dims()[dim]), [0, 1].map(|dim| weight.dims()[dim]));
    let num_missing = groups * group_inputs - inputs;
    let padded = if num_missing == 0 {
        x.clone()
    } else {
        let zeros = emitter.splat(0.0, Type::new([num_rows, num_missing], x.dtype())); // [n, missing]
        emitter.concatenate(&[x, &zeros], 1) // [n, groups * inputs of a group]
    };
    let x = emitter.reshape(&padded, &[num_rows, groups, group_inputs]); // [n, groups, inputs of a group]
    let weight = emitter.convert(weight, DType::I8); // [groups, inputs of a group, out]
    let factors = emitter.broadcast(factors, &[0, 2], weight.dims()); // [groups, inputs of a group, out]
    // The products are from -120 to 120.
    let weight = emitter.elementwise("multiply", &[&weight, &factors]); // [groups, inputs of a group, out]
    product(emitter, &x, &weight, [&[1, 2], &[0, 1]]) // [n, out]
}

/// Computes x `[n, ..]` · weight, both of one type, `[n, out]`. The products are summed over the dimensions `contract`.
fn product(emitter: &mut Emitter, x: &Tensor, weight: &Tensor, contract: [&[usize]; 2]) -> Tensor {
    let dims = DotDims { batch: [&[], &[]], contract };
    if x.dims()[0] > 1 {
        return emitter.dot(x, weight, dims); // [n, out]
    }
    // For narrow types, XLA's CPU compiler multiplies a single row in a loop without vector instructions, but several
    // rows with a library.
    let twice = emitter.concatenate(&[x, x], 0); // [2, ..]
    let y = emitter.dot(&twice, weight, dims); // [2, out]
    emitter.slice(&y, 0, 0..1) // [1, out]
}

/// Quantizes x `[n, in]` to fp8 if `dtype`, the type of the weights, is fp8, otherwise to int8. Values are rounded to
/// the nearest, ties to even. Also returns the scale of each row, `[n]`. The largest magnitude of a row becomes 448
/// (fp8) or 127 (int8), so nothing is clipped. A row becomes zeros if all its magnitudes are below [`LEAST_MAGNITUDE`].
fn rounded_rows(emitter: &mut Emitter, x: &Tensor, dtype: DType) -> (Tensor, Tensor) {
    let is_float = dtype == DType::F8;
    let magnitudes = emitter.elementwise("abs", &[x]); // [n, in]
    let largest = emitter.reduce(Reduction::Max, &magnitudes, &[1]); // [n]
    let limit = if is_float { fp8::MAX } else { int8::MAX };
    let constants = [limit, LEAST_MAGNITUDE, 0.0];
    let [limit, least, zero] = constants.map(|number| emitter.splat(f64::from(number), largest.ty.clone())); // [n]
    let scale = emitter.elementwise("divide", &[&largest, &limit]); // [n]
    let inverse = emitter.elementwise("divide", &[&limit, &largest]); // [n]
    let is_zero = emitter.compare("LT", &largest, &least); // [n]
    let [scale, inverse] = [scale, inverse].map(|factor| emitter.select(&is_zero, &zero, &factor)); // [n]
    let inverse = emitter.broadcast(&inverse, &[0], x.dims()); // [n, in]
    let scaled = emitter.elementwise("multiply", &[x, &inverse]); // [n, in]
    if is_float {
        return (emitter.convert(&scaled, DType::F8), scale);
    }
    let rounded = emitter.elementwise("round_nearest_even", &[&scaled]); // [n, in]
    (emitter.convert(&rounded, DType::I8), scale)
}

/// Computes x `[n, out]` + bias `[out]`.
pub(super) fn add_bias(emitter: &mut Emitter, x: &Tensor, bias: &Tensor) -> Tensor {
    let bias = emitter.convert(bias, DType::F32); // [out]
    let bias = emitter.broadcast(&bias, &[1], x.dims()); // [n, out]
    emitter.elementwise("add", &[x, &bias]) // [n, out]
}

/// Multiplies the columns of x `[n, m]` by weight `[m]`.
pub(super) fn scale_columns(emitter: &mut Emitter, x: &Tensor, weight: &Tensor) -> Tensor {
    let weight = emitter.convert(weight, DType::F32); // [m] or [1]
    let weight = if weight.dims() == [1] {
        let weight = emitter.reshape(&weight, &[]); // []
        emitter.broadcast(&weight, &[], x.dims()) // [n, m]
    } else {
        emitter.broadcast(&weight, &[1], x.dims()) // [n, m]
    };
    emitter.elementwise("multiply", &[x, &weight]) // [n, m]
}

/// Computes x / sqrt(mean(x²) + eps) · (offset + weight) over the last dimension. The operands are `[x]` or
/// `[x, weight]`.
pub(super) fn rms_norm(emitter: &mut Emitter, operands: &[Tensor], eps: f32, offset: f32) -> Tensor {
    let x = &operands[0];
    let normed = divided_by_root(emitter, x, eps); // as x
    let Some(weight) = operands.get(1) else { return normed };
    let weight = shifted(emitter, weight, offset, x.dims()); // as x
    emitter.elementwise("multiply", &[&normed, &weight]) // as x
}

/// Computes (x - mean(x)) / sqrt(variance(x) + eps) · (offset + weight) + bias over the last dimension. The operands
/// are `[x]`, `[x, weight]` or `[x, weight, bias]`.
pub(super) fn layer_norm(emitter: &mut Emitter, operands: &[Tensor], eps: f32, offset: f32) -> Tensor {
    let x = &operands[0];
    let last = x.dims().len() - 1;
    let leading: Vec<usize> = (0..last).collect();
    let sum = emitter.reduce(Reduction::Sum, x, &[last]); // [..]
    let size = emitter.splat(x.dims()[last] as f64, sum.ty.clone()); // [..]
    let mean = emitter.elementwise("divide", &[&sum, &size]); // [..]
    let mean = emitter.broadcast(&mean, &leading, x.dims()); // as x
    let centred = emitter.elementwise("subtract", &[x, &mean]); // as x
    let normed = divided_by_root(emitter, &centred, eps); // as x
    let Some(weight) = operands.get(1) else { return normed };
    let weight = shifted(emitter, weight, offset, x.dims()); // as x
    let weighted = emitter.elementwise("multiply", &[&normed, &weight]); // as x
    let Some(bias) = operands.get(2) else { return weighted };
    let bias = shifted(emitter, bias, 0.0, x.dims()); // as x
    emitter.elementwise("add", &[&weighted, &bias]) // as x
}

/// Returns offset + the parameter of a norm, f32, broadcast to `dims`. The dimensions of the parameter are the last
/// ones of `dims`.
fn shifted(emitter: &mut Emitter, parameter: &Tensor, offset: f32, dims: &[usize]) -> Tensor {
    let mut parameter = emitter.convert(parameter, DType::F32); // [.., hidden]
    if offset != 0.0 {
        let offset = emitter.splat(f64::from(offset), parameter.ty.clone()); // [.., hidden]
        parameter = emitter.elementwise("add", &[&parameter, &offset]); // [.., hidden]
    }
    let own: Vec<usize> = (dims.len() - parameter.dims().len()..dims.len()).collect();
    emitter.broadcast(&parameter, &own, dims)
}

/// Computes x / sqrt(mean(x²) + eps) over the last dimension.
fn divided_by_root(emitter: &mut Emitter, x: &Tensor, eps: f32) -> Tensor {
    let last = x.dims().len() - 1;
    let leading: Vec<usize> = (0..last).collect();
    let squares = emitter.elementwise("multiply", &[x, x]); // as x
    let sum = emitter.reduce(Reduction::Sum, &squares, &[last]); // [..]
    let size = emitter.splat(x.dims()[last] as f64, sum.ty.clone()); // [..]
    let mean = emitter.elementwise("divide", &[&sum, &size]); // [..]
    let eps = emitter.splat(f64::from(eps), mean.ty.clone()); // [..]
    let mean = emitter.elementwise("add", &[&mean, &eps]); // [..]
    let factor = emitter.elementwise("rsqrt", &[&mean]); // [..]
    let factor = emitter.broadcast(&factor, &leading, x.dims()); // as x
    emitter.elementwise("multiply", &[x, &factor]) // as x
}

/// Rotates the pairs of elements of x `[tokens, heads, head_dim]`, each by its frequency times the token's position,
/// `[tokens]` u32, and multiplies them by the amplitude. Elements that belong to no pair do not change.
pub(super) fn rotary(emitter: &mut Emitter, x: &Tensor, positions: &Tensor, spec: &RotarySpec) -> Tensor {
    let RotarySpec { frequencies, amplitude, pairing } = spec;
    let (half, head_dim) = (frequencies.len(), x.dims()[2]);
    let positions = emitter.convert(positions, DType::F32); // [tokens]
    let frequencies = emitter.vector(frequencies); // [half]
    let table = [x.dims()[0], half];
    let positions = emitter.broadcast(&positions, &[0], &table); // [tokens, half]
    let frequencies = emitter.broadcast(&frequencies, &[1], &table); // [tokens, half]
    let angles = emitter.elementwise("multiply", &[&positions, &frequencies]); // [tokens, half]
    let amplitude = emitter.splat(f64::from(*amplitude), angles.ty.clone()); // [tokens, half]
    let each_head = [x.dims()[0], x.dims()[1], half];
    let [cos, sin] = ["cosine", "sine"].map(|function| {
        let value = emitter.elementwise(function, &[&angles]); // [tokens, half]
        let value = emitter.elementwise("multiply", &[&value, &amplitude]); // [tokens, half]
        emitter.broadcast(&value, &[0, 2], &each_head) // [tokens, heads, half]
    });
    let [first, second] = match pairing {
        Pairing::Halves => [emitter.slice(x, 2, 0..half), emitter.slice(x, 2, half..2 * half)], // [tokens, heads, half]
        Pairing::Neighbours => neighbours(emitter, x, half),
    };
    let [a, b] = [emitter.elementwise("multiply", &[&first, &cos]), emitter.elementwise("multiply", &[&second, &sin])];
    let turned_first = emitter.elementwise("subtract", &[&a, &b]); // [tokens, heads, half]
    let [a, b] = [emitter.elementwise("multiply", &[&second, &cos]), emitter.elementwise("multiply", &[&first, &sin])];
    let turned_second = emitter.elementwise("add", &[&a, &b]); // [tokens, heads, half]
    let mut parts = match pairing {
        Pairing::Halves => vec![turned_first, turned_second],
        Pairing::Neighbours => vec![side_by_side(emitter, &[turned_first, turned_second])],
    };
    if 2 * half < head_dim {
        parts.push(emitter.slice(x, 2, 2 * half..head_dim)); // [tokens, heads, rest]
    }
    if parts.len() == 1 {
        return parts.remove(0);
    }
    emitter.concatenate(&parts.iter().collect::<Vec<_>>(), 2) // [tokens, heads, head_dim]
}

/// Multiplies x `[tokens, heads, head_dim]` by a factor that grows with the position, `[tokens]` u32.
pub(super) fn scale_by_position(emitter: &mut Emitter, x: &Tensor, positions: &Tensor, scale: PositionScale) -> Tensor {
    let positions = emitter.convert(positions, DType::F32); // [tokens]
    let PositionScale { beta, period, offset } = scale;
    let [beta, period, offset, one] =
        [beta, period, offset, 1.0].map(|number| emitter.splat(f64::from(number), positions.ty.clone())); // [tokens]
    let positions = emitter.elementwise("add", &[&positions, &offset]); // [tokens]
    let periods = emitter.elementwise("divide", &[&positions, &period]); // [tokens]
    let periods = emitter.elementwise("floor", &[&periods]); // [tokens]
    let growth = emitter.elementwise("log_plus_one", &[&periods]); // [tokens]
    let growth = emitter.elementwise("multiply", &[&beta, &growth]); // [tokens]
    let factor = emitter.elementwise("add", &[&one, &growth]); // [tokens]
    let factor = emitter.broadcast(&factor, &[0], x.dims()); // as x
    emitter.elementwise("multiply", &[x, &factor]) // as x
}

/// Returns the first and the second elements of the first `half` pairs of x `[tokens, heads, head_dim]`, both
/// `[tokens, heads, half]`.
fn neighbours(emitter: &mut Emitter, x: &Tensor, half: usize) -> [Tensor; 2] {
    let [tokens, heads] = [x.dims()[0], x.dims()[1]];
    let rotated = emitter.slice(x, 2, 0..2 * half); // [tokens, heads, 2 * half]
    let pairs = emitter.reshape(&rotated, &[tokens, heads, half, 2]); // [tokens, heads, half, 2]
    [0, 1].map(|index| {
        let one = emitter.slice(&pairs, 3, index..index + 1); // [tokens, heads, half, 1]
        emitter.reshape(&one, &[tokens, heads, half]) // [tokens, heads, half]
    })
}

/// Joins the first and the second elements of pairs, `[tokens, heads, 2 * half]`: the inverse of [`neighbours`].
fn side_by_side(emitter: &mut Emitter, parts: &[Tensor; 2]) -> Tensor {
    let [tokens, heads, half] = [parts[0].dims()[0], parts[0].dims()[1], parts[0].dims()[2]];
    let [first, second] = [0, 1].map(|index: usize| emitter.reshape(&parts[index], &[tokens, heads, half, 1]));
    let pairs = emitter.concatenate(&[&first, &second], 3); // [tokens, heads, half, 2]
    emitter.reshape(&pairs, &[tokens, heads, 2 * half]) // [tokens, heads, 2 * half]
}

/// Returns the running sums of x `[tokens, n]` along each row, beginning with the sums `before` `[rows, n]`. The first
/// tensor has the sum at each token, the second the sum at each row's end. Each iteration doubles the number of tokens
/// in a sum (Hillis and Steele, 1986).
pub(super) fn running_sum(emitter: &mut Emitter, x: &Tensor, is_token: &Tensor, before: &Tensor) -> [Tensor; 2] {
    let [num_rows, size] = [before.dims()[0], before.dims()[1]];
    let len = x.dims()[0] / num_rows;
    let is_token = emitter.broadcast(is_token, &[0], x.dims()); // [tokens, n]
    let none = emitter.splat(0.0, x.ty.clone()); // [tokens, n]
    let x_or_none = emitter.select(&is_token, x, &none); // [tokens, n]
    let mut sums = emitter.reshape(&x_or_none, &[num_rows, len, size]); // [rows, tokens_per_row, n]
    let mut distance = 1;
    while distance < len {
        let none = emitter.splat(0.0, Type::new([num_rows, distance, size], x.dtype())); // [rows, distance, n]
        let earlier = emitter.slice(&sums, 1, 0..len - distance); // [rows, tokens_per_row - distance, n]
        let earlier = emitter.concatenate(&[&none, &earlier], 1); // [rows, tokens_per_row, n]
        sums = emitter.elementwise("add", &[&sums, &earlier]); // [rows, tokens_per_row, n]
        distance *= 2;
    }
    let before = emitter.broadcast(before, &[0, 2], sums.dims()); // [rows, tokens_per_row, n]
    let sums = emitter.elementwise("add", &[&before, &sums]); // [rows, tokens_per_row, n]
    // Padding adds zeros, so the last sum of a row contains all its tokens.
    let after = emitter.slice(&sums, 1, len - 1..len); // [rows, 1, n]
    let after = emitter.reshape(&after, &[num_rows, size]); // [rows, n]
    [emitter.reshape(&sums, x.dims()), after]
}

/// Returns the log-probabilities of scores `[rows, vocab]`.
pub(super) fn log_softmax(emitter: &mut Emitter, scores: &Tensor) -> Tensor {
    let largest = emitter.reduce(Reduction::Max, scores, &[1]); // [rows]
    let largest = emitter.broadcast(&largest, &[0], scores.dims()); // [rows, vocab]
    let shifted = emitter.elementwise("subtract", &[scores, &largest]); // [rows, vocab]
    let exponentials = emitter.elementwise("exponential", &[&shifted]); // [rows, vocab]
    let sum = emitter.reduce(Reduction::Sum, &exponentials, &[1]); // [rows]
    let log = emitter.elementwise("log", &[&sum]); // [rows]
    let log = emitter.broadcast(&log, &[0], scores.dims()); // [rows, vocab]
    emitter.elementwise("subtract", &[&shifted, &log]) // [rows, vocab]
}

/// Returns the elements of x `[rows, n]` at indices `[rows]` or `[rows, k]`.
pub(super) fn gather_columns(emitter: &mut Emitter, x: &Tensor, indices: &Tensor) -> Tensor {
    let [rows, size] = [x.dims()[0], x.dims()[1]];
    if indices.dims().len() == 1 {
        // A sum in which all other elements are zeros reads x in its own layout. On a TPU, a gather of single elements
        // would first copy x to another layout.
        let columns = emitter.iota(1, Type::new([rows, size], DType::I32)); // [rows, n]
        let wanted = emitter.broadcast(indices, &[0], &[rows, size]); // [rows, n]
        let is_wanted = emitter.compare("EQ", &columns, &wanted); // [rows, n]
        let none = emitter.splat(0.0, x.ty.clone()); // [rows, n]
        let kept = emitter.select(&is_wanted, x, &none); // [rows, n]
        return emitter.reduce(Reduction::Sum, &kept, &[1]); // [rows]
    }
    let row = emitter.iota(0, indices.ty.clone()); // [rows, k]
    let stride = emitter.splat(size as f64, indices.ty.clone()); // [rows, k]
    let start = emitter.elementwise("multiply", &[&row, &stride]); // [rows, k]
    let index = emitter.elementwise("add", &[&start, indices]); // [rows, k]
    let flat = emitter.reshape(x, &[rows * size]); // [rows * n]
    emitter.gather_rows(&flat, &index) // [rows, k]
}
