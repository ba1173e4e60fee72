//! The operations of models, on the CPU: candle tensors in and out, kernels in between.
//!
//! Most functions are one arm of the executor's match. Shapes are not checked again, because the graph's builders have
//! checked them. The result of a token is computed with additions in a fixed order, so it depends neither on the other
//! rows of the step nor on the chunks of the row's prompt.

use std::borrow::Cow;

use backend::{BLOCK_SIZE, Membership};
use candle_core::{D, DType, Tensor};
use kernels::attention::{AttentionRow, AttentionShape, HeadScores};
use kernels::linear::{Layer, PackedWeight};
use kernels::rotary::RotaryTable;
use model::graph::{Activation, AttentionSpec, Shape, StateId, ValuesIn, Window};
use rayon::prelude::*;

use super::host::{self, View};
use super::loader::Weight;
use super::step::Step;
use crate::error::CpuError;

type Result<T> = candle_core::Result<T>;

/// Looks up `tokens` in `table`, the part of the table that `rank` has. The rows of tokens that are in another rank's
/// part are zeros.
pub(super) fn embedding(table: &Weight, tokens: &Tensor, rank: usize) -> Result<Tensor> {
    let view = View::new(tokens)?;
    let (num_rows, hidden_size) = match table {
        Weight::Tensor(table) => table.dims2()?,
        Weight::Packed(table) => (table.num_outputs(), table.num_inputs()),
        Weight::Experts(_) => unreachable!("a table is no expert"),
    };
    let local = |token: &i32| (*token as usize).checked_sub(rank * num_rows).filter(|row| *row < num_rows);
    let rows: Vec<Option<usize>> = match tokens.dtype() {
        DType::U32 => view.u32().iter().map(|position| local(&(*position as i32))).collect(),
        _ => view.i32().iter().map(local).collect(),
    };
    let mut hidden = vec![0.0; rows.len() * hidden_size]; // [tokens, hidden]
    let places = hidden.chunks_exact_mut(hidden_size).zip(&rows).filter_map(|(place, row)| Some((place, (*row)?)));
    match table {
        Weight::Tensor(table) => {
            let indices: Vec<i32> = rows.iter().flatten().map(|row| *row as i32).collect();
            let found = gather_rows(table, &indices)?.to_dtype(DType::F32)?; // [tokens here, hidden]
            let found = View::new(&found)?;
            places.zip(found.f32().chunks_exact(hidden_size)).for_each(|((place, _), row)| place.copy_from_slice(row));
        }
        Weight::Packed(table) => places.for_each(|(place, row)| table.copy_row(row, place)),
        Weight::Experts(_) => unreachable!("a table is no expert"),
    }
    host::shaped(hidden, (rows.len(), hidden_size))
}

pub(super) fn linear(x: &Tensor, weight: &PackedWeight, bias: Option<&Tensor>) -> Result<Tensor> {
    let num_rows = x.dim(0)?;
    let mut y = vec![0.0; num_rows * weight.num_outputs()]; // [n, out]
    let bias = bias.map(View::new).transpose()?;
    kernels::linear::linear(View::new(x)?.f32(), weight, bias.as_ref().map(View::f32), &mut y);
    host::shaped(y, (num_rows, weight.num_outputs()))
}

/// x `[tokens, heads, in]` and a matrix `[out, in]` for each head → `[tokens, heads, out]`.
pub(super) fn head_linear(x: &Tensor, matrices: &[PackedWeight]) -> Result<Tensor> {
    let (num_tokens, num_heads, num_inputs) = x.dims3()?;
    let num_outputs = matrices.first().map_or(0, PackedWeight::num_outputs);
    let view = View::new(x)?;
    let of_head = |(head, matrix): (usize, &PackedWeight)| {
        let tokens = view.f32().chunks_exact(num_inputs).skip(head).step_by(num_heads);
        let inputs: Vec<f32> = tokens.flatten().copied().collect(); // [tokens, in]
        let mut outputs = vec![0.0; num_tokens * num_outputs]; // [tokens, out]
        kernels::linear::linear(&inputs, matrix, None, &mut outputs);
        outputs
    };
    // Matrices are small: each is multiplied by one thread, and threads share the heads.
    let of_heads: Vec<Vec<f32>> = matrices.par_iter().enumerate().map(of_head).collect();
    let mut y = Vec::with_capacity(num_tokens * num_heads * num_outputs); // [tokens, heads, out]
    for token in 0..num_tokens {
        of_heads.iter().for_each(|outputs| y.extend_from_slice(&outputs[token * num_outputs..][..num_outputs]));
    }
    host::shaped(y, (num_tokens, num_heads, num_outputs))
}

/// Computes [`linear`] for each weight and bias.
pub(super) fn linear_each<'a>(
    x: &Tensor,
    parameters: impl Iterator<Item = (&'a PackedWeight, Option<&'a Tensor>)>,
) -> Result<Vec<Tensor>> {
    let num_rows = x.dim(0)?;
    let parameters: Vec<_> =
        parameters.map(|(weight, bias)| Ok((weight, bias.map(View::new).transpose()?))).collect::<Result<_>>()?;
    let mut outputs: Vec<Vec<f32>> =
        parameters.iter().map(|(weight, _)| vec![0.0; num_rows * weight.num_outputs()]).collect(); // [n, out]
    let layers = parameters.iter().zip(&mut outputs);
    let layers = layers.map(|((weight, bias), y)| Layer { weight, bias: bias.as_ref().map(View::f32), y });
    kernels::linear::linear_each(View::new(x)?.f32(), layers.collect());
    let shaped =
        outputs.into_iter().zip(&parameters).map(|(y, (weight, _))| host::shaped(y, (num_rows, weight.num_outputs())));
    shaped.collect()
}

/// Returns `down(f(gate(x)) * up(x))`; `weights` are those of gate, up and down.
pub(super) fn gated_mlp(x: &Tensor, weights: [&PackedWeight; 3], activation: Activation) -> Result<Tensor> {
    let num_rows = x.dim(0)?;
    let num_outputs = weights[2].num_outputs();
    let mut y = vec![0.0; num_rows * num_outputs]; // [n, out]
    kernels::linear::gated_mlp(View::new(x)?.f32(), weights, kernel(activation), &mut y);
    host::shaped(y, (num_rows, num_outputs))
}

pub(super) fn rms_norm(x: &Tensor, weight: Option<&Tensor>, eps: f32, offset: f32) -> Result<Tensor> {
    let mut y = vec![0.0; x.elem_count()]; // as x
    let weight = weight.map(View::new).transpose()?;
    let weight = factors(weight.as_ref(), x.dim(D::Minus1)?, offset);
    kernels::rms_norm::rms_norm(View::new(x)?.f32(), &weight, eps, &mut y);
    host::shaped(y, x.shape())
}

/// `parameters` are the weight and the bias.
pub(super) fn layer_norm(x: &Tensor, parameters: [Option<&Tensor>; 2], eps: f32, offset: f32) -> Result<Tensor> {
    let mut y = vec![0.0; x.elem_count()]; // as x
    let size = x.dim(D::Minus1)?;
    let [weight, bias] = parameters.map(|parameter| parameter.map(View::new).transpose());
    let (weight, bias) = (weight?, bias?);
    let weight = factors(weight.as_ref(), size, offset);
    let bias = bias.as_ref().map_or_else(|| Cow::Owned(vec![0.0; weight.len()]), |bias| Cow::Borrowed(bias.f32()));
    kernels::layer_norm::layer_norm(View::new(x)?.f32(), size, [&*weight, &*bias], eps, &mut y);
    host::shaped(y, x.shape())
}

/// Returns offset + weight, or ones if there is no weight. The vector is small, so it is computed in each step and not
/// stored.
fn factors<'a>(weight: Option<&'a View<'_>>, size: usize, offset: f32) -> Cow<'a, [f32]> {
    match weight {
        None => Cow::Owned(vec![1.0; size]),
        Some(weight) if offset == 0.0 => Cow::Borrowed(weight.f32()),
        Some(weight) => weight.f32().iter().map(|weight| offset + weight).collect(),
    }
}

pub(super) fn rotary(x: &Tensor, positions: &Tensor, table: &RotaryTable) -> Result<Tensor> {
    let mut y = View::new(x)?.f32().to_vec(); // [tokens, heads, head_dim]
    kernels::rotary::rotary(&mut y, x.dim(2)?, View::new(positions)?.u32(), table);
    host::shaped(y, x.shape())
}

/// Computes [`model::graph::Op::PagedAttention`] of q, k and `rest`: v, if values have a state of their own, and the
/// sinks, if there are any.
pub(super) fn paged_attention(
    [q, k]: [&Tensor; 2],
    rest: &[&Tensor],
    spec: &AttentionSpec,
    step: &Step<'_>,
) -> Result<Tensor> {
    let (v, sinks, value_dim) = match spec.values {
        ValuesIn::State(_) => (Some(rest[0]), rest.get(1), rest[0].dim(2)?),
        ValuesIn::Keys { value_dim } => (None, rest.first(), value_dim),
    };
    let cached = [k.dim(1)?, value_dim];
    let (k, v) = (View::new(k)?, v.map(View::new).transpose()?);
    let written = [k.f32(), v.as_ref().map_or(&[][..], View::f32)];
    attend((q, sinks.copied()), (cached, Some(written)), spec, step)
}

/// Attends to the contexts of all rows in a cache of `num_kv_heads` heads with values of `value_dim` numbers, after
/// writing the step's keys and values to the cache, if there are any.
pub(super) fn attend(
    (q, sinks): (&Tensor, Option<&Tensor>),
    ([num_kv_heads, value_dim], written): ([usize; 2], Option<[&[f32]; 2]>),
    spec: &AttentionSpec,
    step: &Step<'_>,
) -> Result<Tensor> {
    let AttentionSpec { keys, values: _, scale, window, soft_cap, slopes } = *spec;
    let (num_tokens, num_heads, head_dim) = q.dims3()?;
    let mut cache = step.state.cache(keys);
    let block_size = BLOCK_SIZE;
    let window = window.map(|window| match window {
        Window::Sliding(num_keys) => kernels::attention::Window::Sliding(num_keys),
        Window::Chunked(num_keys) => kernels::attention::Window::Chunked(num_keys),
    });
    let shape = AttentionShape { num_heads, num_kv_heads, head_dim, value_dim, block_size, scale, window, soft_cap };
    let row = |row: &backend::BatchRow| AttentionRow {
        first_token: row.first_token,
        num_tokens: row.num_tokens,
        context_len: row.context_len,
        block_table: step.batch.block_table(row),
    };
    let rows: Vec<AttentionRow<'_>> = step.batch.rows.iter().map(row).collect();
    let mut out = vec![0.0; num_tokens * shape.out_width()]; // [tokens, heads, value_dim]
    if let Some(written) = written {
        kernels::attention::write_kv(&shape, &rows, written, &mut cache);
    }
    let (q, sinks) = (View::new(q)?, sinks.map(View::new).transpose()?);
    let slopes = slopes.map(|slopes| slopes.of_rank(step.membership.rank(), num_heads)); // [heads]
    let queries = (q.f32(), HeadScores { sinks: sinks.as_ref().map(View::f32), slopes: slopes.as_deref() });
    kernels::attention::paged_attention(&shape, &rows, queries, &cache, &mut out);
    host::shaped(out, (num_tokens, num_heads, value_dim))
}

pub(super) fn running_sum(x: &Tensor, state: StateId, step: &Step<'_>) -> Result<Tensor> {
    let size = x.dim(1)?;
    let mut sums = View::new(x)?.f32().to_vec(); // [tokens, n]
    let mut slots = step.state.slots(state);
    for row in &step.batch.rows {
        let sum = slots.of_slot(row.slot); // [n]
        for token in sums[row.first_token * size..][..row.num_tokens * size].chunks_exact_mut(size) {
            sum.iter_mut().zip(&*token).for_each(|(sum, x)| *sum += x);
            token.copy_from_slice(sum);
        }
    }
    host::shaped(sums, x.shape())
}

pub(super) fn activate(activation: Activation, x: &Tensor) -> Result<Tensor> {
    let mut y = vec![0.0; x.elem_count()]; // as x
    kernels::activation::activate(kernel(activation), View::new(x)?.f32(), &mut y);
    host::shaped(y, x.shape())
}

pub(super) fn gated(activation: Activation, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let mut y = vec![0.0; gate.elem_count()]; // [tokens, n]
    kernels::activation::gated(kernel(activation), View::new(gate)?.f32(), View::new(up)?.f32(), &mut y);
    host::shaped(y, gate.shape())
}

/// Returns the kernels' name for an activation of the graph.
pub(super) fn kernel(activation: Activation) -> kernels::activation::Activation {
    match activation {
        Activation::Silu => kernels::activation::Activation::Silu,
        Activation::Gelu => kernels::activation::Activation::Gelu,
        Activation::GeluTanh => kernels::activation::Activation::GeluTanh,
        Activation::QuickGelu => kernels::activation::Activation::QuickGelu,
        Activation::Relu => kernels::activation::Activation::Relu,
        Activation::SquaredRelu => kernels::activation::Activation::SquaredRelu,
        Activation::Sigmoid => kernels::activation::Activation::Sigmoid,
        Activation::Tanh => kernels::activation::Activation::Tanh,
    }
}

pub(super) fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    x.broadcast_add(bias) // [n, out]
}

pub(super) fn columns(x: &Tensor, first: usize, shape: &Shape) -> Result<Tensor> {
    x.narrow(1, first, shape.last_size().unwrap_or(0))?.contiguous() // [n, columns]
}

pub(super) fn join(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    Tensor::cat(&[a, b], D::Minus1)?.contiguous() // [.., m + n]
}

pub(super) fn reshape(x: &Tensor, shape: &Shape) -> Result<Tensor> {
    let mut sizes = vec![x.dim(0)?];
    sizes.extend(shape.dims()[1..].iter().filter_map(|dim| Shape::new([*dim]).last_size()));
    x.reshape(sizes) // [first, sizes..]
}

/// Returns the rows of x `[tokens, n]` at `indices`.
pub(super) fn gather_rows(x: &Tensor, indices: &[i32]) -> Result<Tensor> {
    // Candle does not take i32 indices.
    let indices: Vec<u32> = indices.iter().map(|index| *index as u32).collect();
    x.index_select(&host::tensor(indices)?, 0) // [rows, n]
}

/// Sums x over all ranks. The sum has the same bits on each rank.
pub(super) fn all_reduce(x: &Tensor, membership: &Membership) -> std::result::Result<Tensor, CpuError> {
    let mut sum = View::new(x)?.f32().to_vec(); // as x
    membership.all_reduce(&mut sum)?;
    Ok(host::shaped(sum, x.shape())?)
}

/// Joins the parts `[n, size]` of all ranks side by side, `[n, size * num_ranks]`.
pub(super) fn all_gather(part: &Tensor, membership: &Membership) -> std::result::Result<Tensor, CpuError> {
    let (num_rows, size) = part.dims2()?;
    let num_columns = size * membership.num_ranks();
    let mut gathered = vec![0.0; num_rows * num_columns]; // [n, size * num_ranks]
    membership.all_gather(View::new(part)?.f32(), num_rows, &mut gathered)?;
    Ok(host::shaped(gathered, (num_rows, num_columns))?)
}
