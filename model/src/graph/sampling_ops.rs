//! Builders of the operations of which samplers are composed. Models use some of them too.
//!
//! Each builder checks its operands. It returns the handle of the result, or a [`GraphError`] with the operands' shapes
//! and types and what the operation expects. Operands of element-wise operations are broadcast: `[rows]` to
//! `[rows, n]`, `[tokens]` to `[tokens, n]`, a scalar to any shape.

use super::{Binary, DType, Dim, Graph, GraphError, Op, Shape, StateSpec, TokenScope, Unary, Value};

impl Graph {
    /// [`Op::Unary`] of every element of x.
    pub fn unary(&mut self, function: Unary, x: Value) -> Result<Value, GraphError> {
        let op = Op::Unary(function);
        self.require(self.dtype(x) == DType::F32, &op, &[x], "float32")?;
        Ok(self.push_like(op, vec![x], x)) // as x
    }

    /// [`Op::Binary`] of the elements of a and b.
    pub fn binary(&mut self, function: Binary, a: Value, b: Value) -> Result<Value, GraphError> {
        let op = Op::Binary(function);
        let shape = self.repeated_shape(&op, &[a, b])?;
        self.require(self.dtype(a) == self.dtype(b), &op, &[a, b], "one type")?;
        let dtype = self.dtype(a);
        Ok(self.push(op, vec![a, b], shape, dtype)) // as the larger
    }

    /// [`Op::Less`]: a < b.
    pub fn less(&mut self, a: Value, b: Value) -> Result<Value, GraphError> {
        let op = Op::Less;
        let shape = self.repeated_shape(&op, &[a, b])?;
        self.require(self.dtype(a) == self.dtype(b), &op, &[a, b], "one type")?;
        Ok(self.push(op, vec![a, b], shape, DType::Bool)) // as the larger
    }

    /// [`Op::Select`]: `a` where `condition` holds, else `b`.
    pub fn select(&mut self, condition: Value, a: Value, b: Value) -> Result<Value, GraphError> {
        let op = Op::Select;
        let operands = [condition, a, b];
        let shape = self.repeated_shape(&op, &operands)?;
        let are_valid = self.dtype(condition) == DType::Bool && self.dtype(a) == self.dtype(b);
        self.require(are_valid, &op, &operands, "a bool, then one type twice")?;
        let dtype = self.dtype(a);
        Ok(self.push(op, operands.to_vec(), shape, dtype)) // as the largest
    }

    /// [`Op::SumColumns`] of x `[rows, n]` or `[tokens, n]`.
    pub fn sum_columns(&mut self, x: Value) -> Result<Value, GraphError> {
        let op = Op::SumColumns;
        let is_valid = matches!(self.dims(x), [Dim::Rows | Dim::Tokens, _]) && self.dtype(x) == DType::F32;
        self.require(is_valid, &op, &[x], "[rows, n] or [tokens, n], float32")?;
        let shape = Shape::new(&self.dims(x)[..1]);
        Ok(self.push(op, vec![x], shape, DType::F32)) // [rows] or [tokens]
    }

    /// [`Op::LogSoftmax`] of scores `[rows, vocab]`.
    pub fn log_softmax(&mut self, scores: Value) -> Result<Value, GraphError> {
        let op = Op::LogSoftmax;
        self.require_scores(&op, &[scores], scores)?;
        Ok(self.push_like(op, vec![scores], scores)) // [rows, vocab]
    }

    /// [`Op::ArgMax`] of scores `[rows, vocab]`.
    pub fn arg_max(&mut self, scores: Value) -> Result<Value, GraphError> {
        let op = Op::ArgMax;
        self.require_scores(&op, &[scores], scores)?;
        Ok(self.push(op, vec![scores], Shape::new([Dim::Rows]), DType::I32)) // [rows]
    }

    /// [`Op::GatherColumns`]: the elements of x `[rows, n]` at `indices` `[rows]` or `[rows, top_tokens]`.
    pub fn gather_columns(&mut self, x: Value, indices: Value) -> Result<Value, GraphError> {
        let op = Op::GatherColumns;
        self.require_scores(&op, &[x, indices], x)?;
        let are_indices = matches!(self.dims(indices), [Dim::Rows] | [Dim::Rows, Dim::TopTokens]);
        let is_valid = are_indices && self.dtype(indices) == DType::I32;
        self.require(is_valid, &op, &[x, indices], "[rows, n], int32 [rows] or [rows, top_tokens]")?;
        let shape = self.node(indices).shape.clone();
        Ok(self.push(op, vec![x, indices], shape, DType::F32)) // as indices
    }

    /// [`Op::KthLargest`] of scores `[rows, vocab]`, k `[rows]`.
    pub fn kth_largest(&mut self, scores: Value, k: Value) -> Result<Value, GraphError> {
        let op = Op::KthLargest;
        self.require_scores(&op, &[scores, k], scores)?;
        self.require_per_row(&op, &[scores, k], k, DType::I32)?;
        Ok(self.push(op, vec![scores, k], Shape::new([Dim::Rows]), DType::F32)) // [rows]
    }

    /// [`Op::MassThreshold`] of keys and weights `[rows, vocab]`, mass `[rows]`.
    pub fn mass_threshold(&mut self, keys: Value, weights: Value, mass: Value) -> Result<Value, GraphError> {
        let op = Op::MassThreshold;
        let operands = [keys, weights, mass];
        self.require_scores(&op, &operands, keys)?;
        self.require(self.dims(keys) == self.dims(weights), &op, &operands, "keys and weights of one shape")?;
        self.require_per_row(&op, &operands, mass, DType::F32)?;
        Ok(self.push(op, operands.to_vec(), Shape::new([Dim::Rows]), DType::F32)) // [rows]
    }

    /// [`Op::TokenCounts`] of a vocabulary.
    pub fn token_counts(&mut self, scope: TokenScope, vocab_size: usize) -> Value {
        let shape = Shape::new([Dim::Rows, Dim::Fixed(vocab_size)]);
        self.state(&StateSpec::token_history());
        self.push_once(Op::TokenCounts { scope, vocab_size }, shape, DType::F32) // [rows, vocab]
    }

    /// [`Op::HeldBack`] of a vocabulary.
    pub fn held_back(&mut self, vocab_size: usize) -> Value {
        let shape = Shape::new([Dim::Rows, Dim::Fixed(vocab_size)]);
        self.push_once(Op::HeldBack { vocab_size }, shape, DType::Bool) // [rows, vocab]
    }

    /// [`Op::AddLogitBias`] to scores `[rows, vocab]`.
    pub fn add_logit_bias(&mut self, scores: Value) -> Result<Value, GraphError> {
        let op = Op::AddLogitBias;
        self.require_scores(&op, &[scores], scores)?;
        Ok(self.push_like(op, vec![scores], scores)) // [rows, vocab]
    }

    /// [`Op::IsAllowed`] of a vocabulary.
    pub fn is_allowed(&mut self, vocab_size: usize) -> Value {
        let shape = Shape::new([Dim::Rows, Dim::Fixed(vocab_size)]);
        self.push_once(Op::IsAllowed { vocab_size }, shape, DType::Bool) // [rows, vocab]
    }

    /// [`Op::Uniform`] of the seed's lower and upper word and a counter, each `[rows]`.
    pub fn uniform(&mut self, [low, high, counter]: [Value; 3]) -> Result<Value, GraphError> {
        let op = Op::Uniform;
        for operand in [low, high, counter] {
            self.require_per_row(&op, &[low, high, counter], operand, DType::U32)?;
        }
        Ok(self.push(op, vec![low, high, counter], Shape::new([Dim::Rows]), DType::F32)) // [rows]
    }

    /// [`Op::ContextUniform`] of a vocabulary.
    pub fn context_uniform(&mut self, vocab_size: usize) -> Value {
        let shape = Shape::new([Dim::Rows, Dim::Fixed(vocab_size)]);
        self.state(&StateSpec::token_history());
        self.push_once(Op::ContextUniform { vocab_size }, shape, DType::F32) // [rows, vocab]
    }

    /// [`Op::InverseCdf`] of probabilities `[rows, vocab]`, u `[rows]`.
    pub fn inverse_cdf(&mut self, probabilities: Value, u: Value) -> Result<Value, GraphError> {
        let op = Op::InverseCdf;
        self.require_scores(&op, &[probabilities, u], probabilities)?;
        self.require_per_row(&op, &[probabilities, u], u, DType::F32)?;
        Ok(self.push(op, vec![probabilities, u], Shape::new([Dim::Rows]), DType::I32)) // [rows]
    }

    /// [`Op::TopTokens`] of scores `[rows, vocab]`, n `[rows]`.
    pub fn top_tokens(&mut self, scores: Value, n: Value) -> Result<Value, GraphError> {
        let op = Op::TopTokens;
        self.require_scores(&op, &[scores, n], scores)?;
        self.require_per_row(&op, &[scores, n], n, DType::I32)?;
        Ok(self.push(op, vec![scores, n], Shape::new([Dim::Rows, Dim::TopTokens]), DType::I32)) // [rows, top_tokens]
    }

    /// [`Op::AppendToken`] of a token `[rows]`.
    pub fn append_token(&mut self, token: Value) -> Result<Value, GraphError> {
        let op = Op::AppendToken;
        self.require_per_row(&op, &[token], token, DType::I32)?;
        self.state(&StateSpec::token_history());
        Ok(self.push_like(op, vec![token], token)) // [rows]
    }

    /// Returns the shape that all operands have after broadcasting.
    fn repeated_shape(&self, op: &Op, operands: &[Value]) -> Result<Shape, GraphError> {
        let largest = operands.iter().copied().max_by_key(|value| self.dims(*value).len());
        let largest = largest.map_or_else(|| Shape::new([]), |value| self.node(value).shape.clone());
        let fits = |value: &Value| {
            let dims = self.dims(*value);
            let is_first = matches!(dims, [Dim::Rows | Dim::Tokens]) && largest.dims()[0] == dims[0];
            dims.is_empty() || dims == largest.dims() || is_first
        };
        let expected = "one shape, or scalars, or [rows] beside [rows, n]";
        self.require(operands.iter().all(fits), op, operands, expected)?;
        Ok(largest)
    }

    fn require_scores(&self, op: &Op, operands: &[Value], scores: Value) -> Result<(), GraphError> {
        let is_valid = matches!(self.dims(scores), [Dim::Rows, _]) && self.dtype(scores) == DType::F32;
        self.require(is_valid, op, operands, "[rows, vocab] float32")
    }

    fn require_per_row(&self, op: &Op, operands: &[Value], value: Value, dtype: DType) -> Result<(), GraphError> {
        let is_valid = self.dims(value) == [Dim::Rows] && self.dtype(value) == dtype;
        self.require(is_valid, op, operands, &format!("[rows] {dtype}"))
    }
}
