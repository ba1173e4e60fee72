//! Writes the functions of a kernel, operation by operation, as generic MLIR text in the dialect `stable_mosaic`.
//!
//! Entry point: [`Emitter`], with methods for the operations that our kernels use. `stable_mosaic` is the form of the
//! dialects `arith`, `math`, `memref`, `scf`, `tpu` and `vector` that libtpu reads for as long as it knows [`VERSION`].
//! Values are numbered in the order of writing, so the same kernel always gives the same bytes. libtpu's compiler
//! reports shapes that do not fit each other.

use std::fmt::Write;

use super::value::{Element, Type, Value};

/// The version of the dialect. libtpu 0.0.51 reads 1 to 18.
const VERSION: usize = 11;

/// The functions of a kernel under construction.
#[derive(Debug, Default)]
pub(crate) struct Emitter {
    text: String,
    num_values: usize,
    depth: usize,
}

/// An operation on two numbers, or on two vectors element by element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Subtract,
    Multiply,
    /// The quotient; that of integers is rounded towards zero.
    Divide,
    /// The remainder of two integers.
    Remainder,
    Min,
    Max,
    And,
}

/// A comparison of integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal = 0,
    Less = 2,
    GreaterOrEqual = 5,
}

/// How [`Emitter::reduce_lanes`] combines the elements of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reduction {
    Sum,
    Max,
}

/// How a function is called by the grid of its kernel, as attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grid {
    /// The number of calls.
    pub(crate) steps: usize,
    /// The number of arguments in scalar memory, which follow the index of the call.
    pub(crate) num_scalars: usize,
    /// The parts that one call sees of the operands after the scalars, and of the results; `None` for operands that
    /// stay where they are.
    pub(crate) windows: Vec<Option<Window>>,
    /// The number of arguments, at the end, that are neither operands nor results.
    pub(crate) num_scratch: usize,
}

/// The part of an array in vector memory that one call sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) bounds: Vec<usize>,
    /// True if each call sees the next part along the first dimension, false if all calls see the first part.
    pub(crate) moves: bool,
}

impl Emitter {
    /// Returns the module with the functions written so far.
    pub(crate) fn finish(self) -> String {
        let Self { text, .. } = self;
        format!("\"builtin.module\"() ({{\n{text}}}) {{stable_mosaic.version = {VERSION} : i64}} : () -> ()\n")
    }

    /// Begins a function with an integer and arguments of `types`, and returns all of these.
    pub(crate) fn begin_kernel(&mut self, types: &[Type]) -> Vec<Value> {
        self.begin_function(&[&[Type::Scalar(Element::I32)], types].concat())
    }

    /// Ends the function that began with `arguments`, and calls it `name`. `grid` calls it with the index of the call.
    /// Each window is selected along its first dimension by that index.
    pub(crate) fn end_kernel(&mut self, name: &str, arguments: &[Value], grid: &Grid) {
        self.end_function(name, arguments, &[], &format!(", {}", grid.attributes()));
        let scalars: Vec<Type> = arguments[..=grid.num_scalars].iter().map(|value| value.ty.clone()).collect();
        for (index, window) in grid.windows.iter().enumerate() {
            let Some(Window { bounds, moves }) = window else { continue };
            let arguments = self.begin_function(&scalars);
            let mut results: Vec<Value> = bounds.iter().map(|_| self.integer(0)).collect();
            if *moves {
                results[0] = arguments[0].clone();
            }
            self.end_function(&format!("transform_{index}"), &arguments, &results, "");
        }
    }

    fn begin_function(&mut self, types: &[Type]) -> Vec<Value> {
        self.line("\"stable_mosaic.func.func\"() ({");
        self.begin_block(types)
    }

    /// Ends a function that returns `results`. `attributes` follow the name.
    fn end_function(&mut self, name: &str, arguments: &[Value], results: &[Value], attributes: &str) {
        let signature = format!("({}) -> ({})", types_of(arguments), types_of(results));
        self.end_block("func.return", results);
        self.line(&format!("}}) {{function_type = {signature}, sym_name = \"{name}\"{attributes}}} : () -> ()"));
    }

    /// Returns an integer.
    pub(crate) fn integer(&mut self, value: i64) -> Value {
        self.constant(&format!("{value} : i32"), Type::Scalar(Element::I32))
    }

    /// Returns an index of an array.
    pub(crate) fn index(&mut self, value: usize) -> Value {
        self.constant(&format!("{value} : index"), Type::Scalar(Element::Index))
    }

    /// Returns a vector whose elements are all equal to `value`.
    pub(crate) fn splat(&mut self, value: f32, dims: &[usize]) -> Value {
        let ty = Type::vector(dims, Element::F32);
        // The bits, because decimal digits may be rounded to another number.
        let bits = value.to_bits();
        self.constant(&format!("dense<0x{bits:08X}> : {ty}"), ty)
    }

    fn constant(&mut self, value: &str, ty: Type) -> Value {
        self.push("arith.constant", &[], &format!("value = {value}"), ty)
    }

    /// Returns an integer as an index of an array.
    pub(crate) fn as_index(&mut self, x: &Value) -> Value {
        self.push("arith.index_cast", &[x], "", Type::Scalar(Element::Index))
    }

    /// Applies `op` to numbers or vectors of one type, which is also the type of the result.
    pub(crate) fn binary(&mut self, op: Binary, a: &Value, b: &Value) -> Value {
        let (name, attributes) = op.in_text(a.ty.element());
        self.push(name, &[a, b], attributes, a.ty.clone())
    }

    /// Compares integers.
    pub(crate) fn compare(&mut self, comparison: Comparison, a: &Value, b: &Value) -> Value {
        let ty = a.ty.with_element(Element::I1);
        self.push("arith.cmpi", &[a, b], &format!("predicate = {} : i64", comparison as i64), ty)
    }

    /// Returns `a` where `condition` is true, else `b`.
    pub(crate) fn select(&mut self, condition: &Value, a: &Value, b: &Value) -> Value {
        self.push("arith.select", &[condition, a, b], "", a.ty.clone())
    }

    /// Returns e to the power of each element.
    pub(crate) fn exp(&mut self, x: &Value) -> Value {
        self.push("math.exp", &[x], FAST_MATH, x.ty.clone())
    }

    /// Returns the hyperbolic tangent of each element.
    pub(crate) fn tanh(&mut self, x: &Value) -> Value {
        self.push("math.tanh", &[x], FAST_MATH, x.ty.clone())
    }

    /// Converts floats to another type, or returns `x` itself if it already has the type.
    pub(crate) fn convert(&mut self, x: &Value, element: Element) -> Value {
        let from = x.ty.element();
        if from == element {
            return x.clone();
        }
        let name = if element.size_bytes() > from.size_bytes() { "arith.extf" } else { "arith.truncf" };
        self.push(name, &[x], "", x.ty.with_element(element))
    }

    /// Returns a vector of integers, 0, 1, 2 … along `dim`.
    pub(crate) fn iota(&mut self, dims: &[usize], dim: usize) -> Value {
        let ty = Type::vector(dims, Element::I32);
        self.push("tpu.iota", &[], &format!("dimensions = array<i32: {dim}>"), ty)
    }

    /// Repeats a number, or a vector along its dimensions of one element, to a vector of the sizes `dims`.
    pub(crate) fn broadcast(&mut self, x: &Value, dims: &[usize]) -> Value {
        if x.dims() == dims {
            return x.clone();
        }
        self.push("vector.broadcast", &[x], "", Type::vector(dims, x.ty.element()))
    }

    /// Returns the same elements with other sizes.
    pub(crate) fn reshape(&mut self, x: &Value, dims: &[usize]) -> Value {
        if x.dims() == dims {
            return x.clone();
        }
        self.push("vector.shape_cast", &[x], "", x.ty.with_dims(dims))
    }

    /// Returns the columns `from..from + len` of `x` `[rows, n]`.
    pub(crate) fn columns(&mut self, x: &Value, from: usize, len: usize) -> Value {
        let rows = x.dims()[0];
        if from == 0 && len == x.dims()[1] {
            return x.clone();
        }
        let attributes = format!("offsets = [0, {from}], sizes = [{rows}, {len}], strides = [1, 1]");
        self.push("vector.extract_strided_slice", &[x], &attributes, x.ty.with_dims([rows, len]))
    }

    /// Returns `num_copies` copies of `x` `[rows, n]` beside each other, `[rows, num_copies * n]`.
    pub(crate) fn copies(&mut self, x: &Value, num_copies: usize) -> Value {
        if num_copies == 1 {
            return x.clone();
        }
        let ty = x.ty.with_dims([x.dims()[0], num_copies * x.dims()[1]]);
        self.push("tpu.concatenate", &vec![x; num_copies], "dimension = 1 : i32", ty)
    }

    /// Combines the elements of each row of `x` `[rows, n]`, `[rows, 1]` f32.
    pub(crate) fn reduce_lanes(&mut self, reduction: Reduction, x: &Value) -> Value {
        let rows = x.dims()[0];
        let (kind, neutral) = match reduction {
            Reduction::Sum => ("add", 0.0),
            Reduction::Max => ("maximumf", f32::NEG_INFINITY),
        };
        let neutral = self.splat(neutral, &[rows]);
        let attributes = format!("kind = #vector.kind<{kind}>, reduction_dims = array<i64: 1>");
        let reduced = self.push("vector.multi_reduction", &[x, &neutral], &attributes, neutral.ty.clone());
        self.reshape(&reduced, &[rows, 1])
    }

    /// Returns the product of `a` `[rows, k]` and `b`, f32. `b` is `[k, n]`, or `[n, k]` if `is_transposed`.
    pub(crate) fn matmul(&mut self, a: &Value, b: &Value, is_transposed: bool) -> Value {
        let (contracted, kept) = if is_transposed { (1, 0) } else { (0, 1) };
        let zero = self.splat(0.0, &[a.dims()[0], b.dims()[kept]]);
        // Factors of f32 are not rounded to bf16.
        let precision = if a.ty.element() == Element::F32 { "precision = #tpu.contract_precision<fp32>, " } else { "" };
        let dims = format!("[1], [{contracted}], [0], [{kept}], [0, 0, 1, {kept}], [], []");
        let attributes = format!(
            "dimension_numbers = #tpu.dot_dimension_numbers<{dims}>, {precision}transpose_lhs = false, \
             transpose_rhs = false"
        );
        self.push("tpu.matmul", &[a, b, &zero], &attributes, zero.ty.clone())
    }

    /// Reads a number of an array in scalar memory.
    pub(crate) fn load_scalar(&mut self, array: &Value, indices: &[&Value]) -> Value {
        let operands = [&[array], indices].concat();
        self.push("memref.load", &operands, "", Type::Scalar(array.ty.element()))
    }

    /// Writes a number to an array in scalar memory.
    pub(crate) fn store_scalar(&mut self, x: &Value, array: &Value, indices: &[&Value]) {
        let operands = [&[x, array], indices].concat();
        self.effect("memref.store", &operands, "");
    }

    /// Reads the part of an array in vector memory that begins at `indices` and has the sizes `dims`.
    pub(crate) fn load(&mut self, array: &Value, indices: &[&Value], dims: &[usize]) -> Value {
        let operands = [&[array], indices].concat();
        self.push("vector.load", &operands, "", Type::vector(dims, array.ty.element()))
    }

    /// Writes `x` over the part of an array in vector memory that begins at `indices`.
    pub(crate) fn store(&mut self, x: &Value, array: &Value, indices: &[&Value]) {
        let operands = [&[x, array], indices].concat();
        let segments = format!("operandSegmentSizes = array<i32: 1, 1, {}, 0>", indices.len());
        self.effect("tpu.vector_store", &operands, &format!("add = false, {segments}, strides = array<i32>"));
    }

    /// Returns the part of an array that begins at `starts` and has the sizes `dims`, without its first `squeezed`
    /// dimensions, which have one element.
    pub(crate) fn part(&mut self, array: &Value, starts: &[&Value], dims: &[usize], squeezed: usize) -> Value {
        let operands = [&[array], starts].concat();
        let segments = format!("operandSegmentSizes = array<i32: 1, {}, 0>", starts.len());
        let part = self.push("tpu.memref_slice", &operands, &segments, array.ty.with_dims(dims));
        if squeezed == 0 {
            return part;
        }
        self.push("tpu.memref_squeeze", &[&part], "", part.ty.with_dims(&dims[squeezed..]))
    }

    /// Starts to copy `source` to `target`. `semaphore` counts the bytes.
    pub(crate) fn start_copy(&mut self, source: &Value, target: &Value, semaphore: &Value) {
        let attributes =
            "operandSegmentSizes = array<i32: 1, 0, 1, 1, 0, 0>, priority = 0 : i32, strict_ordering = false";
        self.effect("tpu.enqueue_dma", &[source, target, semaphore], attributes);
    }

    /// Waits until `semaphore` has counted as many bytes as `target` has, and subtracts them. `source` has the size of
    /// `target`.
    pub(crate) fn wait_for_copy(&mut self, source: &Value, target: &Value, semaphore: &Value) {
        let attributes = "operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, strict_ordering = false";
        self.effect("tpu.wait_dma2", &[semaphore, source, target], attributes);
    }

    /// Begins a loop over the integers from `start` up to but without `end`, and returns the integer.
    pub(crate) fn begin_loop(&mut self, start: &Value, end: &Value) -> Value {
        let step = self.integer(1);
        self.line(&format!("\"stable_mosaic.scf.for\"({}, {}, {}) ({{", start.name, end.name, step.name));
        self.begin_block(&[Type::Scalar(Element::I32)]).remove(0)
    }

    /// Ends a loop.
    pub(crate) fn end_loop(&mut self) {
        self.end_block("scf.yield", &[]);
        self.line("}) : (i32, i32, i32) -> ()");
    }

    /// Begins what is carried out if `condition` is true.
    pub(crate) fn begin_branch(&mut self, condition: &Value) {
        self.line(&format!("\"stable_mosaic.scf.if\"({}) ({{", condition.name));
        self.depth += 1;
    }

    /// Begins what is carried out if the condition is false.
    pub(crate) fn begin_otherwise(&mut self) {
        self.end_block("scf.yield", &[]);
        self.line("}, {");
        self.depth += 1;
    }

    /// Ends a branch.
    pub(crate) fn end_branch(&mut self) {
        self.end_block("scf.yield", &[]);
        self.line("}) : (i1) -> ()");
    }

    fn begin_block(&mut self, types: &[Type]) -> Vec<Value> {
        let arguments: Vec<Value> = types.iter().map(|ty| self.name(ty.clone())).collect();
        let list: Vec<String> = arguments.iter().map(|value| format!("{}: {}", value.name, value.ty)).collect();
        self.line(&format!("^bb0({}):", list.join(", ")));
        self.depth += 1;
        arguments
    }

    fn end_block(&mut self, terminator: &str, results: &[Value]) {
        self.effect(terminator, &results.iter().collect::<Vec<_>>(), "");
        self.depth -= 1;
    }

    fn name(&mut self, ty: Type) -> Value {
        let name = format!("%{}", self.num_values);
        self.num_values += 1;
        Value { name, ty }
    }

    /// Writes an operation with a result.
    fn push(&mut self, op: &str, operands: &[&Value], attributes: &str, ty: Type) -> Value {
        let result = self.name(ty);
        let text = operation(op, operands, attributes);
        self.line(&format!("{} = {text} -> {}", result.name, result.ty));
        result
    }

    /// Writes an operation without a result.
    fn effect(&mut self, op: &str, operands: &[&Value], attributes: &str) {
        let text = operation(op, operands, attributes);
        self.line(&format!("{text} -> ()"));
    }

    fn line(&mut self, line: &str) {
        writeln!(self.text, "{:indent$}{line}", "", indent = self.depth).expect("writing to a string succeeds");
    }
}

const FAST_MATH: &str = "fastmath = #arith.fastmath<none>";

impl Binary {
    /// Returns the name of the operation on elements of this type, and its attributes.
    fn in_text(self, element: Element) -> (&'static str, &'static str) {
        const NO_OVERFLOW: &str = "overflowFlags = #arith.overflow<none>";
        let is_float = matches!(element, Element::F32 | Element::Bf16);
        match self {
            Self::Add if is_float => ("arith.addf", FAST_MATH),
            Self::Subtract if is_float => ("arith.subf", FAST_MATH),
            Self::Multiply if is_float => ("arith.mulf", FAST_MATH),
            Self::Divide if is_float => ("arith.divf", FAST_MATH),
            Self::Max if is_float => ("arith.maximumf", FAST_MATH),
            Self::Min if is_float => ("arith.minimumf", FAST_MATH),
            Self::Add => ("arith.addi", NO_OVERFLOW),
            Self::Subtract => ("arith.subi", NO_OVERFLOW),
            Self::Multiply => ("arith.muli", NO_OVERFLOW),
            Self::Divide => ("arith.divsi", ""),
            Self::Remainder => ("arith.remsi", ""),
            Self::Min => ("arith.minsi", ""),
            Self::Max => ("arith.maxsi", ""),
            Self::And => ("arith.andi", ""),
        }
    }
}

impl Grid {
    fn attributes(&self) -> String {
        let window = |(index, window): (usize, &Option<Window>)| match window {
            Some(Window { bounds, moves: _ }) => {
                let bounds: Vec<String> = bounds.iter().map(usize::to_string).collect();
                let bounds = bounds.join(", ");
                format!("{{transform_indices = @transform_{index}, window_bounds = array<i64: {bounds}>}}")
            }
            None => "{}".to_owned(),
        };
        let windows: Vec<String> = self.windows.iter().enumerate().map(window).collect();
        format!(
            "dimension_semantics = [#tpu.dimension_semantics<arbitrary>], iteration_bounds = array<i64: {}>, \
             scalar_prefetch = {} : i64, scratch_operands = {} : i64, tpu.core_type = #tpu.core_type<tc>, \
             window_params = [{}]",
            self.steps,
            self.num_scalars,
            self.num_scratch,
            windows.join(", ")
        )
    }
}

/// Returns an operation without its result.
fn operation(op: &str, operands: &[&Value], attributes: &str) -> String {
    let names: Vec<&str> = operands.iter().map(|value| value.name.as_str()).collect();
    let types: Vec<String> = operands.iter().map(|value| value.ty.to_string()).collect();
    let attributes = if attributes.is_empty() { String::new() } else { format!(" {{{attributes}}}") };
    format!("\"stable_mosaic.{op}\"({}){attributes} : ({})", names.join(", "), types.join(", "))
}

fn types_of(values: &[Value]) -> String {
    values.iter().map(|value| value.ty.to_string()).collect::<Vec<_>>().join(", ")
}
