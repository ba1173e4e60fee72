//! Builders of the operations of models.
//!
//! Each builder checks its operands. It returns the handle of the result, or a [`GraphError`] with the operands' shapes
//! and types and what the operation expects.

use std::ops::Range;
use std::sync::Arc;

use super::{
    Activation, AttentionSpec, Binary, DType, Dim, ExpertsSpec, Extent, Graph, GraphError, Node, Numbers, Op,
    PositionScale, RotarySpec, RouterSpec, Shape, StateId, StateSpec, Value, ValuesIn,
};

impl Graph {
    /// [`Op::CurrentTokens`] of ids `[tokens]`.
    pub fn current_tokens(&mut self, token_ids: Value) -> Result<Value, GraphError> {
        let op = Op::CurrentTokens;
        let is_valid = self.dims(token_ids) == [Dim::Tokens] && self.dtype(token_ids) == DType::I32;
        self.require(is_valid, &op, &[token_ids], "[tokens] int32")?;
        self.state(&StateSpec::token_history());
        Ok(self.push(op, vec![token_ids], Shape::new([Dim::Tokens]), DType::I32)) // [tokens]
    }

    /// [`Op::Embedding`]: the rows of `table` `[vocab, hidden]` at `tokens` `[tokens]`, which are ids or positions.
    pub fn embedding(&mut self, table: Value, tokens: Value) -> Result<Value, GraphError> {
        let op = Op::Embedding;
        let operands = [table, tokens];
        let is_table = self.dims(table).len() == 2 && self.dtype(table).is_float();
        let are_tokens = self.dims(tokens) == [Dim::Tokens] && matches!(self.dtype(tokens), DType::I32 | DType::U32);
        self.require(is_table && are_tokens, &op, &operands, "[vocab, hidden] float, [tokens] int32 or uint32")?;
        let shape = Shape::new([Dim::Tokens, self.dims(table)[1]]);
        Ok(self.push(op, operands.to_vec(), shape, DType::F32)) // [tokens, hidden]
    }

    /// [`Op::Linear`]: x `[n, in]` times the transpose of weight `[out, in]`, plus bias `[out]`.
    pub fn linear(&mut self, x: Value, weight: Value, bias: Option<Value>) -> Result<Value, GraphError> {
        let op = Op::Linear;
        let operands: Vec<Value> = [x, weight].into_iter().chain(bias).collect();
        let weight_dims = self.dims(weight).to_vec();
        let fits = self.dims(x).len() == 2 && weight_dims.len() == 2 && self.dims(x)[1] == weight_dims[1];
        let bias_fits = bias.is_none_or(|bias| fits && self.dims(bias) == [weight_dims[0]]);
        let are_floats = operands.iter().all(|value| self.dtype(*value).is_float());
        self.require(fits && bias_fits && are_floats, &op, &operands, "[n, in], [out, in] and maybe [out], floats")?;
        let shape = self.node(x).shape.with_last(weight_dims[0]);
        let dtype = self.dtype(x);
        Ok(self.push(op, operands, shape, dtype)) // [n, out]
    }

    /// [`Op::HeadLinear`]: each head of x `[tokens, heads, in]` times the transpose of its matrix in weight
    /// `[heads, out, in]`.
    pub fn head_linear(&mut self, x: Value, weight: Value) -> Result<Value, GraphError> {
        let op = Op::HeadLinear;
        let fits = match (self.dims(x), self.dims(weight)) {
            ([Dim::Tokens, heads, inputs], [of_heads, _, of_inputs]) => heads == of_heads && inputs == of_inputs,
            _ => false,
        };
        let are_floats = self.dtype(x) == DType::F32 && self.dtype(weight).is_float();
        self.require(fits && are_floats, &op, &[x, weight], "[tokens, heads, in] float32, [heads, out, in] float")?;
        let shape = self.node(x).shape.with_last(self.dims(weight)[1]);
        Ok(self.push(op, vec![x, weight], shape, DType::F32)) // [tokens, heads, out]
    }

    /// [`Op::RmsNorm`] over the last dimension of x, with a weight or none.
    pub fn rms_norm(
        &mut self,
        x: Value,
        weight: impl Into<Option<Value>>,
        eps: f32,
        offset: f32,
    ) -> Result<Value, GraphError> {
        let op = Op::RmsNorm { eps, offset };
        let operands: Vec<Value> = [x].into_iter().chain(weight.into()).collect();
        let last = self.dims(x).last().copied();
        let fits = last.is_some_and(|last| operands[1..].iter().all(|weight| self.dims(*weight) == [last]));
        self.require(fits && self.dtype(x).is_float(), &op, &operands, "[.., hidden], maybe [hidden], floats")?;
        Ok(self.push_like(op, operands, x)) // as x
    }

    /// [`Op::LayerNorm`] over the last dimension of x. `parameters` are the weight and the bias, the weight alone, or
    /// nothing.
    pub fn layer_norm(&mut self, x: Value, parameters: &[Value], eps: f32, offset: f32) -> Result<Value, GraphError> {
        let op = Op::LayerNorm { eps, offset };
        let operands = [&[x], parameters].concat();
        let fits = |value: &Value| {
            let dims = self.dims(*value);
            !dims.is_empty() && self.dims(x).ends_with(dims) && dims.len() < self.dims(x).len()
        };
        let is_valid = parameters.len() <= 2 && parameters.iter().all(fits) && self.dtype(x).is_float();
        let expected = "[.., hidden], maybe a weight and a bias of its last dimensions, floats";
        self.require(is_valid, &op, &operands, expected)?;
        Ok(self.push_like(op, operands, x)) // as x
    }

    /// [`Op::Rotary`]: rotates the heads of x `[tokens, heads, head_dim]` by their positions `[tokens]`.
    pub fn rotary(&mut self, x: Value, positions: Value, spec: &Arc<RotarySpec>) -> Result<Value, GraphError> {
        let op = Op::Rotary(Arc::clone(spec));
        let is_valid = self.dims(x).len() == 3
            && self.dims(x)[0] == Dim::Tokens
            && self.node(x).shape.last_size().is_some_and(|head_dim| 2 * spec.frequencies.len() <= head_dim)
            && self.dims(positions) == [Dim::Tokens]
            && self.dtype(positions) == DType::U32;
        let expected = format!("[tokens, heads, head_dim >= {}], [tokens] uint32", 2 * spec.frequencies.len());
        self.require(is_valid, &op, &[x, positions], &expected)?;
        Ok(self.push_like(op, vec![x, positions], x)) // [tokens, heads, head_dim]
    }

    /// [`Op::ScaleByPosition`] of x `[tokens, heads, head_dim]` at `positions` `[tokens]`.
    pub fn scale_by_position(&mut self, x: Value, positions: Value, scale: PositionScale) -> Result<Value, GraphError> {
        let op = Op::ScaleByPosition(scale);
        let is_valid = self.dims(x).len() == 3
            && self.dims(x)[0] == Dim::Tokens
            && self.dtype(x) == DType::F32
            && self.dims(positions) == [Dim::Tokens]
            && self.dtype(positions) == DType::U32;
        self.require(is_valid, &op, &[x, positions], "[tokens, heads, head_dim] float32, [tokens] uint32")?;
        Ok(self.push_like(op, vec![x, positions], x)) // [tokens, heads, head_dim]
    }

    /// [`Op::PagedAttention`] of queries `[tokens, heads, head_dim]`, keys `[tokens, kv_heads, head_dim]`, values
    /// `[tokens, kv_heads, value_dim]` and, if there are any, sinks `[heads]`.
    pub fn paged_attention(
        &mut self,
        [q, k, v]: [Value; 3],
        sinks: Option<Value>,
        spec: AttentionSpec,
    ) -> Result<Value, GraphError> {
        let op = Op::PagedAttention(spec);
        let operands: Vec<Value> = [q, k, v].into_iter().chain(sinks).collect();
        let are_values = match (self.dims(k), self.dims(v), spec.values) {
            ([_, kv_heads, _], [Dim::Tokens, value_heads, Dim::Fixed(_)], ValuesIn::State(values)) => {
                value_heads == kv_heads && self.is_kept(v, values, &spec)
            }
            _ => false,
        };
        let is_sink = |sinks: Value| self.dims(sinks) == &self.dims(q)[1..2] && self.dtype(sinks).is_float();
        let is_valid = are_values && self.has_keys([q, k], &spec) && sinks.is_none_or(is_sink);
        let expected = "[tokens, heads, head_dim], [tokens, kv_heads, head_dim], [tokens, kv_heads, value_dim] and \
                        maybe sinks [heads], with the sizes of the states, heads a multiple of kv_heads, a window of \
                        at least 1 and at most that of the states, and the same pair of keys and values wherever one \
                        of them is used";
        self.require(is_valid, &op, &operands, expected)?;
        let shape = self.node(q).shape.with_last(self.dims(v)[2]);
        let dtype = self.dtype(q);
        Ok(self.push(op, operands, shape, dtype)) // [tokens, heads, value_dim]
    }

    /// [`Op::PagedAttention`] of queries `[tokens, heads, head_dim]` and keys `[tokens, kv_heads, head_dim]`, whose
    /// first numbers are the values.
    pub fn latent_attention(&mut self, [q, k]: [Value; 2], spec: AttentionSpec) -> Result<Value, GraphError> {
        let op = Op::PagedAttention(spec);
        let value_dim = match spec.values {
            ValuesIn::Keys { value_dim } => value_dim,
            ValuesIn::State(_) => 0,
        };
        let has_values = self.node(k).shape.last_size().is_some_and(|head_dim| (1..=head_dim).contains(&value_dim));
        let expected = "[tokens, heads, head_dim] and [tokens, kv_heads, head_dim], with the sizes of the state, heads \
                        a multiple of kv_heads, values of 1 to head_dim numbers in the keys, a window of at least 1 \
                        and at most that of the state, and the same values wherever the keys are used";
        self.require(has_values && self.has_keys([q, k], &spec), &op, &[q, k], expected)?;
        let shape = self.node(q).shape.with_last(Dim::Fixed(value_dim));
        let dtype = self.dtype(q);
        Ok(self.push(op, vec![q, k], shape, dtype)) // [tokens, heads, value_dim]
    }

    /// [`Op::SharedAttention`] of queries `[tokens, heads, head_dim]` to keys and values that an earlier operation
    /// writes to the states of `spec`.
    pub fn shared_attention(&mut self, q: Value, spec: AttentionSpec) -> Result<Value, GraphError> {
        let op = Op::SharedAttention(spec);
        let is_writer = |node: &&Node| match &node.op {
            Op::PagedAttention(other) => (other.keys, other.values) == (spec.keys, spec.values),
            _ => false,
        };
        let writer = self.nodes().iter().find(is_writer);
        let value_dim = writer.and_then(|writer| writer.shape.last_size()).map(Dim::Fixed);
        let is_valid = writer.is_some_and(|writer| self.has_keys([q, writer.operands[1]], &spec));
        let expected = "[tokens, heads, head_dim] with the sizes of the keys' state, heads a multiple of kv_heads, a \
                        window of at least 1 and at most that of the states, and an earlier operation that writes to \
                        both states";
        self.require(is_valid, &op, &[q], expected)?;
        let shape = self.node(q).shape.with_last(value_dim.unwrap_or(Dim::Fixed(0)));
        let dtype = self.dtype(q);
        Ok(self.push(op, vec![q], shape, dtype)) // [tokens, heads, value_dim]
    }

    /// True if queries and keys fit each other and the state of the keys, and the keys have the same values wherever
    /// they are used.
    fn has_keys(&self, [q, k]: [Value; 2], spec: &AttentionSpec) -> bool {
        let fits = match (self.dims(q), self.dims(k)) {
            ([Dim::Tokens, Dim::Fixed(heads), head_dim], [Dim::Tokens, Dim::Fixed(kv_heads), kv_head_dim]) => {
                *kv_heads > 0 && heads % kv_heads == 0 && head_dim == kv_head_dim
            }
            _ => false,
        };
        // Layers may keep values of one size in different keys.
        let is_beside = |other: &AttentionSpec| match (other.keys == spec.keys, other.values) {
            (true, values) => values == spec.values,
            (false, ValuesIn::State(_)) => other.values != spec.values,
            (false, ValuesIn::Keys { .. }) => true,
        };
        let are_pairs = self.nodes().iter().all(|node| match &node.op {
            Op::PagedAttention(other) => is_beside(other),
            _ => true,
        });
        let has_window = spec.window.is_none_or(|window| window.num_keys() > 0);
        fits && are_pairs && has_window && self.is_kept(k, spec.keys, spec)
    }

    /// True if `value` has the sizes of the state `id`, which keeps all tokens that `spec` reads.
    fn is_kept(&self, value: Value, id: StateId, spec: &AttentionSpec) -> bool {
        let StateSpec { extent, shape, window, .. } = self.state_spec(id);
        let is_within = window.is_none_or(|most| spec.window.is_some_and(|window| window.num_keys() <= most));
        *extent == Extent::Token && is_within && self.dims(value)[1..] == *Shape::fixed(shape).dims()
    }

    /// [`Op::RunningSum`] of x `[tokens, n]`.
    pub fn running_sum(&mut self, x: Value, state: StateId) -> Result<Value, GraphError> {
        let op = Op::RunningSum(state);
        let StateSpec { extent, shape, numbers, .. } = self.state_spec(state);
        let is_kept = *extent == Extent::Slot && *numbers == Numbers::Exact(DType::F32) && shape.len() == 1;
        let is_valid = is_kept && *self.dims(x) == [Dim::Tokens, Dim::Fixed(shape[0])] && self.dtype(x) == DType::F32;
        self.require(is_valid, &op, &[x], "[tokens, n] float32, and a state of slots [n] float32")?;
        Ok(self.push_like(op, vec![x], x)) // [tokens, n]
    }

    /// Adds a + b to the graph, with broadcasting: a scalar is added to every element, and in `[rows, n]` each value of
    /// `[rows]` is added to every element of its row, and likewise for tokens.
    pub(crate) fn add(&mut self, a: Value, b: Value) -> Result<Value, GraphError> {
        self.binary(Binary::Add, a, b) // as the larger
    }

    /// Returns x times `factor`; x itself if `factor` is 1.
    pub(crate) fn scale(&mut self, x: Value, factor: f32) -> Result<Value, GraphError> {
        if factor == 1.0 {
            return Ok(x);
        }
        let factor = self.constant(factor); // []
        self.binary(Binary::Multiply, x, factor) // as x
    }

    /// Returns x with each element brought to the nearest number from `-limit` to `limit`.
    pub(crate) fn clip(&mut self, x: Value, limit: f32) -> Result<Value, GraphError> {
        let [lowest, highest] = [-limit, limit].map(|number| self.constant(number)); // []
        let is_below = self.less(x, lowest)?; // as x
        let x = self.select(is_below, lowest, x)?; // as x
        let is_above = self.less(highest, x)?; // as x
        self.select(is_above, highest, x) // as x
    }

    /// [`Op::Activate`] of every element of x.
    pub fn activate(&mut self, activation: Activation, x: Value) -> Result<Value, GraphError> {
        let op = Op::Activate(activation);
        self.require(self.dtype(x) == DType::F32, &op, &[x], "float32")?;
        Ok(self.push_like(op, vec![x], x)) // as x
    }

    /// [`Op::Xielu`] of every element of x, with weights of one element.
    pub fn xielu(&mut self, x: Value, parameters: [Value; 4]) -> Result<Value, GraphError> {
        let op = Op::Xielu;
        let operands = [&[x], &parameters[..]].concat();
        let is_one = |value: &Value| {
            self.node(*value).shape.dims().iter().all(|dim| *dim == Dim::Fixed(1)) && self.dtype(*value).is_float()
        };
        let is_valid = self.dtype(x) == DType::F32 && parameters.iter().all(is_one);
        self.require(is_valid, &op, &operands, "float32, and four floats of one element")?;
        Ok(self.push_like(op, operands, x)) // as x
    }

    /// Returns `cap · tanh(x / cap)`, which is x bounded by `cap`.
    pub(crate) fn soft_cap(&mut self, x: Value, cap: f32) -> Result<Value, GraphError> {
        let shrunk = self.scale(x, 1.0 / cap)?; // as x
        let bounded = self.activate(Activation::Tanh, shrunk)?; // as x
        self.scale(bounded, cap) // as x
    }

    /// [`Op::Gated`] of gate and up, both `[tokens, n]`.
    pub fn gated(&mut self, activation: Activation, gate: Value, up: Value) -> Result<Value, GraphError> {
        let op = Op::Gated(activation);
        let is_valid = self.dims(gate) == self.dims(up) && self.dtype(gate) == self.dtype(up);
        self.require(is_valid, &op, &[gate, up], "two values of one shape and type")?;
        Ok(self.push_like(op, vec![gate, up], gate)) // [tokens, n]
    }

    /// [`Op::Route`] of scores `[tokens, experts]` and, if there are any, biases, one for each expert.
    pub fn route(&mut self, scores: Value, biases: Option<Value>, spec: RouterSpec) -> Result<Value, GraphError> {
        let op = Op::Route(spec);
        let operands: Vec<Value> = [scores].into_iter().chain(biases).collect();
        let num_experts = self.node(scores).shape.last_size().filter(|_| self.dims(scores).len() == 2);
        let num_experts = num_experts.unwrap_or_default();
        let num_eligible = spec.groups.map_or(Some(num_experts), |groups| groups.num_eligible(num_experts));
        let fits = num_eligible.is_some_and(|num_eligible| (1..=num_eligible).contains(&spec.num_chosen));
        let is_bias = |biases| self.node(biases).shape.fixed_len() == num_experts && self.dtype(biases).is_float();
        let fits = fits && biases.is_none_or(is_bias) && spec.least_sum.is_none_or(|least| least > 0.0);
        let expected = format!("[tokens, experts] float32 and maybe a bias for each expert, for {spec:?}");
        self.require(fits && self.dtype(scores) == DType::F32, &op, &operands, &expected)?;
        Ok(self.push_like(op, operands, scores)) // [tokens, experts]
    }

    /// [`Op::Experts`] of x `[tokens, hidden]` and `mixture` `[tokens, experts]`, with the matrices gate, up and down
    /// and, if there are any, the biases of all three.
    pub fn experts(
        &mut self,
        [x, mixture]: [Value; 2],
        [gate, up, down]: [Value; 3],
        biases: Option<[Value; 3]>,
        spec: ExpertsSpec,
    ) -> Result<Value, GraphError> {
        let op = Op::Experts(spec);
        let operands: Vec<Value> =
            [x, mixture, gate, up, down].into_iter().chain(biases.into_iter().flatten()).collect();
        let is_bias =
            |(bias, matrix): (Value, Value)| self.dims(bias) == &self.dims(matrix)[..2] && self.dtype(bias).is_float();
        let fits = match (self.dims(x), self.dims(gate), self.dims(down)) {
            ([_, hidden], [experts, intermediate, inputs], [other_experts, outputs, features]) => {
                let is_square = hidden == inputs && hidden == outputs && intermediate == features;
                is_square && experts == other_experts && self.dims(gate) == self.dims(up)
            }
            _ => false,
        };
        let fits = fits && self.dims(mixture).len() == 2 && self.dims(mixture)[0] == self.dims(x)[0];
        let fits = fits && biases.is_none_or(|biases| biases.into_iter().zip([gate, up, down]).all(is_bias));
        let expected = "[tokens, hidden], [tokens, experts], twice [experts, intermediate, hidden], \
                        [experts, hidden, intermediate], and maybe the biases of the three, [experts, outputs]";
        self.require(fits && self.dtype(x) == DType::F32, &op, &operands, expected)?;
        Ok(self.push_like(op, operands, x)) // [tokens, hidden]
    }

    /// [`Op::Reshape`]: keeps the first dimension of x and replaces all other dimensions by `sizes`.
    pub fn reshape(&mut self, x: Value, sizes: &[usize]) -> Result<Value, GraphError> {
        let op = Op::Reshape;
        let is_valid = !self.dims(x).is_empty() && self.node(x).shape.fixed_len() == sizes.iter().product::<usize>();
        self.require(is_valid, &op, &[x], &format!("as many elements as {sizes:?} per token or row"))?;
        let dims: Vec<Dim> = self.dims(x)[..1].iter().copied().chain(sizes.iter().copied().map(Dim::Fixed)).collect();
        let dtype = self.dtype(x);
        Ok(self.push(op, vec![x], Shape::new(dims), dtype)) // [first, sizes..]
    }

    /// [`Op::AllReduce`]: the sum of x over all ranks.
    pub fn all_reduce(&mut self, x: Value) -> Result<Value, GraphError> {
        let op = Op::AllReduce;
        self.require(self.dtype(x) == DType::F32, &op, &[x], "float32")?;
        Ok(self.push_like(op, vec![x], x)) // as x
    }

    /// [`Op::AllGather`] of x `[n, part]` from `num_ranks` ranks.
    pub fn all_gather(&mut self, x: Value, num_ranks: usize) -> Result<Value, GraphError> {
        let op = Op::AllGather;
        let part = self.node(x).shape.last_size().filter(|_| self.dims(x).len() == 2);
        self.require(part.is_some(), &op, &[x], "[n, part]")?;
        let shape = self.node(x).shape.with_last(Dim::Fixed(part.unwrap_or_default() * num_ranks));
        let dtype = self.dtype(x);
        Ok(self.push(op, vec![x], shape, dtype)) // [n, part * num_ranks]
    }

    /// [`Op::AddBias`] of x `[n, out]`, bias `[out]`.
    pub fn add_bias(&mut self, x: Value, bias: Value) -> Result<Value, GraphError> {
        let op = Op::AddBias;
        let fits = self.dims(x).len() == 2 && self.dims(bias) == &self.dims(x)[1..];
        self.require(fits && self.dtype(bias).is_float(), &op, &[x, bias], "[n, out], [out], floats")?;
        Ok(self.push_like(op, vec![x, bias], x)) // [n, out]
    }

    /// [`Op::ScaleColumns`] of x `[n, m]`, weight `[m]` or `[1]`.
    pub fn scale_columns(&mut self, x: Value, weight: Value) -> Result<Value, GraphError> {
        let op = Op::ScaleColumns;
        let is_one = self.dims(weight) == [Dim::Fixed(1)];
        let fits = self.dims(x).len() == 2 && (is_one || self.dims(weight) == &self.dims(x)[1..]);
        self.require(fits && self.dtype(weight).is_float(), &op, &[x, weight], "[n, m], [m] or [1], floats")?;
        Ok(self.push_like(op, vec![x, weight], x)) // [n, m]
    }

    /// [`Op::Columns`]: `columns` of x `[n, m]`.
    pub fn columns(&mut self, x: Value, columns: Range<usize>) -> Result<Value, GraphError> {
        let op = Op::Columns { first: columns.start };
        let has_columns = self.node(x).shape.last_size().is_some_and(|size| size >= columns.end);
        let expected = format!("[n, {} or more]", columns.end);
        self.require(self.dims(x).len() == 2 && has_columns, &op, &[x], &expected)?;
        let num_columns = columns.len();
        let shape = self.node(x).shape.with_last(Dim::Fixed(num_columns));
        let dtype = self.dtype(x);
        Ok(self.push(op, vec![x], shape, dtype)) // [n, num_columns]
    }

    /// [`Op::Join`] of a `[.., m]` and b `[.., n]`.
    pub fn join(&mut self, a: Value, b: Value) -> Result<Value, GraphError> {
        let op = Op::Join;
        let split = |value: Value| self.dims(value).split_last();
        let size = match (split(a), split(b)) {
            (Some((Dim::Fixed(m), of_a)), Some((Dim::Fixed(n), of_b))) if of_a == of_b && !of_a.is_empty() => m + n,
            _ => 0,
        };
        let is_valid = size > 0 && self.dtype(a) == self.dtype(b);
        self.require(is_valid, &op, &[a, b], "[.., m], [.., n], of one type")?;
        let shape = self.node(a).shape.with_last(Dim::Fixed(size));
        let dtype = self.dtype(a);
        Ok(self.push(op, vec![a, b], shape, dtype)) // [.., m + n]
    }

    pub(super) fn push_like(&mut self, op: Op, operands: Vec<Value>, like: Value) -> Value {
        let node = self.node(like);
        let (shape, dtype) = (node.shape.clone(), node.dtype);
        self.push(op, operands, shape, dtype)
    }
}
