//! Writes the body of one StableHLO function, operation by operation.
//!
//! Entry point: [`Emitter`], with methods for the operations of the
//! [specification](https://openxla.org/stablehlo/spec) that we use. Most methods compute the type of their result.
//! Values are numbered in the order of writing, so the same calls always write the same bytes. If the caller passes
//! shapes that do not fit, the plugin's compiler reports the error.

use std::fmt::Write;

use model::graph::DType;
use numbers::{FloatType, fp8};

use super::tensor::{Tensor, Type};

/// A function body under construction.
#[derive(Debug, Default)]
pub(crate) struct Emitter {
    text: String,
    num_values: usize,
    num_channels: usize,
    depth: usize,
}

/// The dimensions of the first and of the second factor that a dot product pairs. The product keeps the `batch`
/// dimensions and sums over the `contract` dimensions.
#[derive(Debug, Clone, Copy)]
pub(super) struct DotDims<'a> {
    pub(super) batch: [&'a [usize]; 2],
    pub(super) contract: [&'a [usize]; 2],
}

/// The way in which [`Emitter::scatter_rows`] combines a row with its update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Combine {
    /// The update takes the place of the row.
    Replace,
    Add,
    Max,
}

/// How a reduction combines elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reduction {
    Sum,
    Max,
    Min,
}

impl Emitter {
    /// Returns the text.
    pub(super) fn finish(self) -> String {
        self.text
    }

    /// Returns the `index`-th argument of the function.
    pub(crate) fn argument(index: usize, ty: Type) -> Tensor {
        Tensor::new(format!("%arg{index}"), ty)
    }

    /// Applies `op` to operands of one type, which is also the type of the result.
    pub(super) fn elementwise(&mut self, op: &str, operands: &[&Tensor]) -> Tensor {
        let ty = operands[0].ty.clone();
        self.push(ty, |ty| format!("stablehlo.{op} {} : {ty}", names(operands)))
    }

    /// Compares the elements of `a` and `b`. `direction` is `LT`, `LE`, `EQ`, `GE` or `GT`.
    pub(super) fn compare(&mut self, direction: &str, a: &Tensor, b: &Tensor) -> Tensor {
        let kind = comparison_kind(a.dtype());
        let ty = Type::new(a.dims(), DType::Bool);
        let from = &a.ty;
        self.push(ty, |ty| {
            format!("stablehlo.compare {direction}, {}, {}, {kind} : ({from}, {}) -> {ty}", a.name, b.name, b.ty)
        })
    }

    /// Returns `a` where `condition` is true, else `b`. All have the same shape.
    pub(super) fn select(&mut self, condition: &Tensor, a: &Tensor, b: &Tensor) -> Tensor {
        self.push(a.ty.clone(), |ty| {
            format!("stablehlo.select {}, {}, {} : {}, {ty}", condition.name, a.name, b.name, condition.ty)
        })
    }

    /// Converts the elements of `x` to another type, or returns `x` itself if it already has the type.
    pub(super) fn convert(&mut self, x: &Tensor, dtype: DType) -> Tensor {
        if x.dtype() == dtype {
            return x.clone();
        }
        let ty = Type::new(x.dims(), dtype);
        self.push(ty, |ty| format!("stablehlo.convert {} : ({}) -> {ty}", x.name, x.ty))
    }

    /// Returns the same bits as another type of the same width.
    pub(super) fn bitcast(&mut self, x: &Tensor, dtype: DType) -> Tensor {
        if x.dtype() == dtype {
            return x.clone();
        }
        let ty = Type::new(x.dims(), dtype);
        self.push(ty, |ty| format!("stablehlo.bitcast_convert {} : ({}) -> {ty}", x.name, x.ty))
    }

    /// Returns a tensor whose elements are all equal to `value`.
    pub(crate) fn splat(&mut self, value: f64, ty: Type) -> Tensor {
        let literal = literal(value, ty.dtype);
        self.push(ty, |ty| format!("stablehlo.constant dense<{literal}> : {ty}"))
    }

    /// Returns a scalar.
    pub(super) fn scalar(&mut self, value: f64, dtype: DType) -> Tensor {
        self.splat(value, Type::new([], dtype))
    }

    /// Returns `values` as a tensor `[values]`, f32.
    pub(super) fn vector(&mut self, values: &[f32]) -> Tensor {
        let literals: Vec<String> = values.iter().map(|value| literal(f64::from(*value), DType::F32)).collect();
        let ty = Type::new([values.len()], DType::F32);
        self.push(ty, |ty| format!("stablehlo.constant dense<[{}]> : {ty}", literals.join(", ")))
    }

    /// Returns a tensor with 0, 1, 2 … along `dim`.
    pub(super) fn iota(&mut self, dim: usize, ty: Type) -> Tensor {
        self.push(ty, |ty| format!("stablehlo.iota dim = {dim} : {ty}"))
    }

    /// Broadcasts `x` to the dimensions `to`: the n-th dimension of `x` becomes the `dims[n]`-th of `to`.
    pub(super) fn broadcast(&mut self, x: &Tensor, dims: &[usize], to: &[usize]) -> Tensor {
        if x.dims() == to {
            return x.clone();
        }
        let ty = Type::new(to, x.dtype());
        self.push(ty, |ty| format!("stablehlo.broadcast_in_dim {}, dims = {dims:?} : ({}) -> {ty}", x.name, x.ty))
    }

    /// Returns the same elements with other dimensions.
    pub(super) fn reshape(&mut self, x: &Tensor, dims: &[usize]) -> Tensor {
        if x.dims() == dims {
            return x.clone();
        }
        let ty = Type::new(dims, x.dtype());
        self.push(ty, |ty| format!("stablehlo.reshape {} : ({}) -> {ty}", x.name, x.ty))
    }

    /// Returns `x` unchanged. The compiler moves no operation across the barrier.
    pub(super) fn barrier(&mut self, x: &Tensor) -> Tensor {
        self.push(x.ty.clone(), |ty| format!("stablehlo.optimization_barrier {} : {ty}", x.name))
    }

    /// Permutes the dimensions of `x`: dimension `permutation[n]` becomes the n-th.
    pub(super) fn transpose(&mut self, x: &Tensor, permutation: &[usize]) -> Tensor {
        let dims: Vec<usize> = permutation.iter().map(|dim| x.dims()[*dim]).collect();
        let ty = Type::new(dims, x.dtype());
        self.push(ty, |ty| format!("stablehlo.transpose {}, dims = {permutation:?} : ({}) -> {ty}", x.name, x.ty))
    }

    /// Returns the elements `range` of the dimension `dim`.
    pub(super) fn slice(&mut self, x: &Tensor, dim: usize, range: std::ops::Range<usize>) -> Tensor {
        let mut dims = x.dims().to_vec();
        dims[dim] = range.len();
        let bounds = |(index, size): (usize, &usize)| {
            if index == dim { format!("{}:{}", range.start, range.end) } else { format!("0:{size}") }
        };
        let bounds: Vec<String> = x.dims().iter().enumerate().map(bounds).collect();
        let ty = Type::new(dims, x.dtype());
        self.push(ty, |ty| format!("stablehlo.slice {} [{}] : ({}) -> {ty}", x.name, bounds.join(", "), x.ty))
    }

    /// Returns the row at `index` of `x` `[rows, n]`, `[n]`.
    pub(crate) fn row(&mut self, x: &Tensor, index: usize) -> Tensor {
        let row = self.slice(x, 0, index..index + 1); // [1, n]
        self.reshape(&row, &x.dims()[1..])
    }

    /// Returns `x` `[rows]` as `[rows, 1]`, or `x` itself if it has two dimensions.
    pub(crate) fn as_matrix(&mut self, x: &Tensor) -> Tensor {
        if x.dims().len() == 1 { self.reshape(x, &[x.dims()[0], 1]) } else { x.clone() }
    }

    /// Returns the slice of `x` with the dimensions `sizes` that begins at the indices `starts`, one scalar per
    /// dimension.
    pub(super) fn dynamic_slice(&mut self, x: &Tensor, starts: &[&Tensor], sizes: &[usize]) -> Tensor {
        let ty = Type::new(sizes, x.dtype());
        let start_types: Vec<String> = starts.iter().map(|start| start.ty.to_string()).collect();
        self.push(ty, |ty| {
            let (starts, types) = (names(starts), start_types.join(", "));
            format!("stablehlo.dynamic_slice {}, {starts}, sizes = {sizes:?} : ({}, {types}) -> {ty}", x.name, x.ty)
        })
    }

    /// Returns `x` with `update` written over the slice that begins at the indices `starts`, one scalar per dimension.
    pub(super) fn dynamic_update_slice(&mut self, x: &Tensor, update: &Tensor, starts: &[&Tensor]) -> Tensor {
        let start_types: Vec<String> = starts.iter().map(|start| start.ty.to_string()).collect();
        self.push(x.ty.clone(), |ty| {
            let (starts, types) = (names(starts), start_types.join(", "));
            let types = format!("({ty}, {}, {types}) -> {ty}", update.ty);
            format!("stablehlo.dynamic_update_slice {}, {}, {starts} : {types}", x.name, update.name)
        })
    }

    /// Joins `parts` along `dim`.
    pub(super) fn concatenate(&mut self, parts: &[&Tensor], dim: usize) -> Tensor {
        let mut dims = parts[0].dims().to_vec();
        dims[dim] = parts.iter().map(|part| part.dims()[dim]).sum();
        let ty = Type::new(dims, parts[0].dtype());
        let types: Vec<String> = parts.iter().map(|part| part.ty.to_string()).collect();
        self.push(ty, |ty| {
            format!("stablehlo.concatenate {}, dim = {dim} : ({}) -> {ty}", names(parts), types.join(", "))
        })
    }

    /// Extends the last dimension of `x` to `size` elements; the new elements are `value`.
    pub(super) fn pad_last(&mut self, x: &Tensor, value: &Tensor, size: usize) -> Tensor {
        let mut dims = x.dims().to_vec();
        let last = dims.len() - 1;
        let mut high = vec![0; dims.len()];
        high[last] = size - dims[last];
        if high[last] == 0 {
            return x.clone();
        }
        dims[last] = size;
        let none = vec![0; high.len()];
        let ty = Type::new(dims, x.dtype());
        self.push(ty, |ty| {
            let bounds = format!("low = {none:?}, high = {high:?}, interior = {none:?}");
            format!("stablehlo.pad {}, {}, {bounds} : ({}, {}) -> {ty}", x.name, value.name, x.ty, value.ty)
        })
    }

    /// Combines the elements along `dims`. The result lacks these dimensions.
    pub(super) fn reduce(&mut self, reduction: Reduction, x: &Tensor, dims: &[usize]) -> Tensor {
        let (op, neutral) = reduction.op(x.dtype());
        let neutral = self.scalar(neutral, x.dtype());
        let kept = x.dims().iter().enumerate().filter(|(dim, _)| !dims.contains(dim));
        let ty = Type::new(kept.map(|(_, size)| *size).collect::<Vec<_>>(), x.dtype());
        self.push(ty, |ty| {
            format!(
                "stablehlo.reduce({} init: {}) applies stablehlo.{op} across dimensions = {dims:?} : ({}, {}) -> {ty}",
                x.name, neutral.name, x.ty, neutral.ty
            )
        })
    }

    /// Returns sums of products. Sums are i32 if `a` is int8, otherwise f32. Factors of f32 are not rounded to a
    /// shorter type.
    pub(super) fn dot(&mut self, a: &Tensor, b: &Tensor, dims: DotDims<'_>) -> Tensor {
        let DotDims { batch, contract } = dims;
        let free = |x: &Tensor, side: usize| {
            let is_free = |dim: &usize| !batch[side].contains(dim) && !contract[side].contains(dim);
            (0..x.dims().len()).filter(is_free).map(|dim| x.dims()[dim]).collect::<Vec<_>>()
        };
        let mut sizes: Vec<usize> = batch[0].iter().map(|dim| a.dims()[*dim]).collect();
        sizes.extend(free(a, 0));
        sizes.extend(free(b, 1));
        let precision = if a.dtype() == DType::F32 { "HIGHEST" } else { "DEFAULT" };
        let batching = if batch[0].is_empty() {
            String::new()
        } else {
            format!("batching_dims = {:?} x {:?}, ", batch[0], batch[1])
        };
        let sum = if a.dtype() == DType::I8 { DType::I32 } else { DType::F32 };
        self.push(Type::new(sizes, sum), |ty| {
            format!(
                "stablehlo.dot_general {}, {}, {batching}contracting_dims = {:?} x {:?}, precision = [{precision}, {precision}] : ({}, {}) -> {ty}",
                a.name, b.name, contract[0], contract[1], a.ty, b.ty
            )
        })
    }

    /// Returns the rows of `x` `[n, ..]` at `indices` `[i..]`, `[i.., ..]`. An index outside of `x` selects the nearest
    /// row.
    pub(crate) fn gather_rows(&mut self, x: &Tensor, indices: &Tensor) -> Tensor {
        let num_batch = indices.dims().len();
        let mut dims = indices.dims().to_vec();
        dims.extend(&x.dims()[1..]);
        let offset_dims: Vec<usize> = (num_batch..dims.len()).collect();
        let mut slice_sizes = x.dims().to_vec();
        slice_sizes[0] = 1;
        self.push(Type::new(dims, x.dtype()), |ty| {
            format!(
                "\"stablehlo.gather\"({}, {}) <{{dimension_numbers = #stablehlo.gather<offset_dims = {offset_dims:?}, collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {num_batch}>, slice_sizes = array<i64: {}>, indices_are_sorted = false}}> : ({}, {}) -> {ty}",
                x.name, indices.name, list(&slice_sizes), x.ty, indices.ty
            )
        })
    }

    /// Returns `x` with its rows at `indices` `[i]` combined with `updates` `[i, ..]`. Indices `[i, 2]` select rows by
    /// the first two dimensions of `x`. Indices outside of `x` are skipped. If rows are replaced, no two indices inside
    /// of `x` may be equal.
    pub(crate) fn scatter_rows(&mut self, x: &Tensor, indices: &Tensor, updates: &Tensor, how: Combine) -> Tensor {
        let window_dims: Vec<usize> = (1..updates.dims().len()).collect();
        let scattered: Vec<usize> = (0..indices.dims().get(1).copied().unwrap_or(1)).collect();
        let scalar = Type::new([], x.dtype());
        let combine = match how {
            Combine::Replace => format!("stablehlo.return %b : {scalar}"),
            Combine::Add => format!("%s = stablehlo.add %a, %b : {scalar} stablehlo.return %s : {scalar}"),
            Combine::Max => format!("%s = stablehlo.maximum %a, %b : {scalar} stablehlo.return %s : {scalar}"),
        };
        let is_unique = how == Combine::Replace;
        self.push(x.ty.clone(), |ty| {
            format!(
                "\"stablehlo.scatter\"({}, {}, {}) <{{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {window_dims:?}, inserted_window_dims = {scattered:?}, scatter_dims_to_operand_dims = {scattered:?}, index_vector_dim = 1>, indices_are_sorted = false, unique_indices = {is_unique}}}> ({{ ^bb0(%a: {scalar}, %b: {scalar}): {combine} }}) : ({ty}, {}, {}) -> {ty}",
                x.name, indices.name, updates.name, indices.ty, updates.ty
            )
        })
    }

    /// Repeats `body` while `condition` is true, and returns the last values. Both take the values of one iteration,
    /// and `body` returns the values of the next. The first iteration takes `start`.
    pub(super) fn repeat(
        &mut self,
        start: &[Tensor],
        condition: impl FnOnce(&mut Self, &[Tensor]) -> Tensor,
        body: impl FnOnce(&mut Self, &[Tensor]) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        let id = self.num_values;
        self.num_values += 1;
        let carried = |index: usize| format!("%carried{id}_{index}");
        let values = start.iter().enumerate().map(|(index, x)| Tensor::new(carried(index), x.ty.clone()));
        let values: Vec<Tensor> = values.collect();
        let pairs: Vec<String> =
            values.iter().zip(start).map(|(value, x)| format!("{} = {}", value.name, x.name)).collect();
        let types = types(start);
        self.line(&format!("%{id}:{} = stablehlo.while({}) : {types}", start.len(), pairs.join(", ")));
        self.line("cond {");
        self.depth += 1;
        let holds = condition(self, &values);
        self.line(&format!("stablehlo.return {} : {}", holds.name, holds.ty));
        self.depth -= 1;
        self.line("} do {");
        self.depth += 1;
        let next = body(self, &values);
        self.line(&format!("stablehlo.return {} : {types}", names(&next.iter().collect::<Vec<_>>())));
        self.depth -= 1;
        self.line("}");
        let results = start.iter().enumerate();
        results.map(|(index, x)| Tensor::new(format!("%{id}#{index}"), x.ty.clone())).collect()
    }

    /// Sorts the pairs of elements of `keys` and `values` along `dim` by key: ascending if the direction is `LT`,
    /// descending if it is `GT`. Pairs with equal keys keep their order.
    pub(super) fn sort_pairs(&mut self, (direction, dim): (&str, usize), [keys, values]: [&Tensor; 2]) -> [Tensor; 2] {
        let id = self.num_values;
        self.num_values += 1;
        let [key, value] = [keys, values].map(|x| Type::new([], x.dtype()));
        let (types, bool) = (format!("{}, {}", keys.ty, values.ty), Type::new([], DType::Bool));
        let kind = comparison_kind(key.dtype);
        self.line(&format!(
            "%{id}:2 = \"stablehlo.sort\"({}) <{{dimension = {dim} : i64, is_stable = true}}> ({{ ^bb0(%a: {key}, %b: {key}, %c: {value}, %d: {value}): %s = stablehlo.compare {direction}, %a, %b, {kind} : ({key}, {key}) -> {bool} stablehlo.return %s : {bool} }}) : ({types}) -> ({types})",
            names(&[keys, values])
        ));
        [0, 1].map(|index: usize| Tensor::new(format!("%{id}#{index}"), [keys, values][index].ty.clone()))
    }

    /// Sums `x` over all devices.
    pub(super) fn all_reduce(&mut self, x: &Tensor, num_devices: usize) -> Tensor {
        let group = self.collective_group(num_devices);
        let scalar = Type::new([], x.dtype());
        self.push(x.ty.clone(), |ty| {
            format!(
                "\"stablehlo.all_reduce\"({}) <{{{group}}}> ({{ ^bb0(%a: {scalar}, %b: {scalar}): %s = stablehlo.add %a, %b : {scalar} stablehlo.return %s : {scalar} }}) : ({ty}) -> {ty}",
                x.name
            )
        })
    }

    /// Joins the values of `x` on all devices along `dim`.
    pub(super) fn all_gather(&mut self, x: &Tensor, dim: usize, num_devices: usize) -> Tensor {
        let group = self.collective_group(num_devices);
        let mut dims = x.dims().to_vec();
        dims[dim] *= num_devices;
        self.push(Type::new(dims, x.dtype()), |ty| {
            format!(
                "\"stablehlo.all_gather\"({}) <{{all_gather_dim = {dim} : i64, {group}}}> : ({}) -> {ty}",
                x.name, x.ty
            )
        })
    }

    /// Calls `target`, a name that the plugin's compiler knows. `name` is the kernel's name in the compiler's messages.
    /// Operands and result are in memory row by row.
    pub(super) fn custom_call(
        &mut self,
        (target, name): (&str, &str),
        operands: &[&Tensor],
        ty: Type,
        config: &str,
    ) -> Tensor {
        let layout = |ty: &Type| {
            let order: Vec<usize> = (0..ty.dims.len()).rev().collect();
            format!("dense<{order:?}> : tensor<{}xindex>", order.len())
        };
        let layouts: Vec<String> = operands.iter().map(|operand| layout(&operand.ty)).collect();
        let types: Vec<String> = operands.iter().map(|operand| operand.ty.to_string()).collect();
        let config = config.replace('"', "\\22");
        self.push(ty, |ty| {
            format!(
                "stablehlo.custom_call @{target}({}) {{backend_config = \"{config}\", kernel_name = \"{name}\", operand_layouts = [{}], result_layouts = [{}]}} : ({}) -> {ty}",
                names(operands), layouts.join(", "), layout(ty), types.join(", ")
            )
        })
    }

    /// Ends the function, which returns `values`.
    pub(super) fn return_values(&mut self, values: &[Tensor]) {
        let names = names(&values.iter().collect::<Vec<_>>());
        self.line(&format!("return {names} : {}", types(values)));
    }

    fn collective_group(&mut self, num_devices: usize) -> String {
        self.num_channels += 1;
        let devices: Vec<usize> = (0..num_devices).collect();
        format!(
            "replica_groups = dense<[{devices:?}]> : tensor<1x{num_devices}xi64>, channel_handle = #stablehlo.channel_handle<handle = {}, type = 1>, use_global_device_ids",
            self.num_channels
        )
    }

    fn push(&mut self, ty: Type, operation: impl FnOnce(&Type) -> String) -> Tensor {
        let name = format!("%{}", self.num_values);
        self.num_values += 1;
        self.line(&format!("{name} = {}", operation(&ty)));
        Tensor::new(name, ty)
    }

    fn line(&mut self, line: &str) {
        writeln!(self.text, "{:indent$}{line}", "", indent = 4 + 2 * self.depth).expect("writing to a string succeeds");
    }
}

impl Reduction {
    /// Returns the name of the operation and its neutral element.
    fn op(self, dtype: DType) -> (&'static str, f64) {
        let (lowest, highest) = match dtype {
            DType::Float(_) => (f64::NEG_INFINITY, f64::INFINITY),
            DType::F8 => (-f64::from(fp8::MAX), f64::from(fp8::MAX)),
            DType::I4 => (-8.0, 7.0),
            DType::I8 => (f64::from(i8::MIN), f64::from(i8::MAX)),
            DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
            DType::U32 => (0.0, f64::from(u32::MAX)),
            DType::Bool => (0.0, 1.0),
        };
        match self {
            Self::Sum => ("add", 0.0),
            Self::Max => ("maximum", lowest),
            Self::Min => ("minimum", highest),
        }
    }
}

/// Returns the way in which StableHLO compares numbers of a type.
fn comparison_kind(dtype: DType) -> &'static str {
    match dtype {
        DType::Float(_) | DType::F8 => "FLOAT",
        DType::I4 | DType::I8 | DType::I32 => "SIGNED",
        DType::U32 | DType::Bool => "UNSIGNED",
    }
}

fn names(tensors: &[&Tensor]) -> String {
    tensors.iter().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn types(tensors: &[Tensor]) -> String {
    tensors.iter().map(|tensor| tensor.ty.to_string()).collect::<Vec<_>>().join(", ")
}

fn list(sizes: &[usize]) -> String {
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns a number as MLIR reads it: floats with a decimal point, or as bits if they are not finite.
fn literal(value: f64, dtype: DType) -> String {
    match dtype {
        DType::Float(float) if !value.is_finite() => {
            let bits = match float {
                FloatType::F16 => u32::from(half::f16::from_f64(value).to_bits()),
                FloatType::Bf16 => u32::from(half::bf16::from_f64(value).to_bits()),
                FloatType::F32 => (value as f32).to_bits(),
            };
            format!("0x{bits:0width$X}", width = 2 * float.size_bytes())
        }
        DType::Float(_) | DType::F8 => {
            let digits = format!("{:?}", value as f32);
            match digits.split_once('e') {
                Some((mantissa, exponent)) if !mantissa.contains('.') => format!("{mantissa}.0e{exponent}"),
                _ => digits,
            }
        }
        DType::I4 | DType::I8 | DType::I32 | DType::U32 => format!("{}", value as i64),
        DType::Bool => (value != 0.0).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_mlir_reads_them() {
        let f32_cases =
            [(1.0, "1.0"), (1e-5, "1.0e-5"), (-0.5, "-0.5"), (1.5e-7, "1.5e-7"), (f64::INFINITY, "0x7F800000")];
        for (value, expected) in f32_cases {
            assert_eq!(literal(value, DType::F32), expected);
        }
        assert_eq!(literal(f64::NEG_INFINITY, DType::Float(FloatType::Bf16)), "0xFF80");
        assert_eq!(literal(f64::from(u32::MAX), DType::U32), "4294967295");
        assert_eq!(literal(1.0, DType::Bool), "true");
    }
}
