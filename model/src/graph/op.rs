//! The operations of graphs: large ones for models, and small ones of which samplers and parts of models are composed.
//!
//! An [`Op`] is the function that a node computes from its operands; the comment of a variant gives their shapes and
//! the result. Operations about a row's slot, context or blocks read them from the step's row metadata, which every
//! backend has. A new operation needs a variant here and a builder; the compiler then reports the matches that lack it.

use std::sync::Arc;

use super::{DType, Shape, StateId, WeightSpec};

/// The token that seeds [`Op::ContextUniform`] is multiplied by this factor, TGI's hash key. The factor is odd, so no
/// two tokens have the same seed.
pub const CONTEXT_SEED_FACTOR: u32 = 15_485_863;

/// The function that a node computes.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Data of the step.
    Input(Input),
    /// The argument with this index: a value that is computed outside of the graph.
    Argument(usize),
    /// This rank's part of a weight of the checkpoint.
    Weight(WeightSpec),
    /// A scalar, `[]`.
    Constant(f32),

    /// Token ids `[tokens]` → ids `[tokens]`. An id of -1 stands for the token that the row sampled for this position.
    /// Reads the missing ids from the token history and writes the given ones to it.
    CurrentTokens,
    /// Table `[vocab, hidden]`, ids or positions `[tokens]` → `[tokens, hidden]`, f32. The rows of ids that are in
    /// another rank's part of the table are zeros.
    Embedding,
    /// x `[n, in]`, weight `[out, in]`, and bias `[out]` if there is one → x · weightᵀ + bias, `[n, out]`.
    Linear,
    /// x `[tokens, heads, in]`, weight `[heads, out, in]` → each head of x times the transpose of its own matrix,
    /// `[tokens, heads, out]`.
    HeadLinear,
    /// x `[.., hidden]`, weight `[hidden]` → x / sqrt(mean(x²) + eps) · (offset + weight). Without a weight, the last
    /// factor is 1.
    RmsNorm { eps: f32, offset: f32 },
    /// x `[.., hidden]`, weight and optional bias with the last dimensions of x →
    /// (x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) · (offset + weight) + bias, with means over the last dimension.
    /// Without a weight, there is no bias either, and the last factor is 1.
    LayerNorm { eps: f32, offset: f32 },
    /// x `[tokens, heads, head_dim]`, positions `[tokens]` → the same shape, rotated.
    Rotary(Arc<RotarySpec>),
    /// q `[tokens, heads, head_dim]`, k `[tokens, kv_heads, head_dim]`, v `[tokens, kv_heads, value_dim]` →
    /// `[tokens, heads, value_dim]`. Writes k and v to the states of the KV cache that the spec names, then attends
    /// causally to the row's context, or to its last tokens if there is a window. There is no v if the values are the
    /// first numbers of the keys. An optional last operand is the sinks `[heads]`: the sink of a head takes part in the
    /// softmax like the score, neither scaled nor capped, of a key whose value is zero.
    PagedAttention(AttentionSpec),
    /// q `[tokens, heads, head_dim]` → `[tokens, heads, value_dim]`: as `PagedAttention`, but nothing is written. The
    /// keys and values of the step's tokens are those that an earlier operation wrote to the same states.
    SharedAttention(AttentionSpec),
    /// x `[tokens, n]` → the sum of each token's x and those of all earlier tokens of its row, `[tokens, n]`: the
    /// cumulative sum that linear recurrences need. The state keeps `[n]` for each slot, the sum of the row so far.
    RunningSum(StateId),
    /// x `[tokens, heads, head_dim]`, positions `[tokens]` → x times a factor that grows with the position.
    ScaleByPosition(PositionScale),
    /// x, then four weights of one element (alpha of positive x and alpha of negative x, beta and epsilon) → xIELU
    /// (Huang and Schlag, 2024) of each element: softplus(alpha) · x² + beta · x if x > 0, otherwise
    /// (beta + softplus(alpha)) · (e^min(x, epsilon) - 1 - x) + beta · x.
    Xielu,
    /// x → f(x), element by element.
    Activate(Activation),
    /// gate, up `[tokens, n]` → f(gate) · up.
    Gated(Activation),
    /// Scores `[tokens, experts]` → the weights of the experts, `[tokens, experts]`: [`Scoring`] of the scores, kept
    /// for the token's `num_chosen` largest (among equals, the lowest index first), and 0 for the other experts. Large
    /// scores may have equal sigmoids; without biases and groups, scores are compared in place of sigmoids. An
    /// optional second operand has a bias for each expert, which is added to the weights that are compared, but not to
    /// those that are kept. If there are groups, the token chooses among the experts of its best groups
    /// ([`ExpertGroups`]). If `least_sum` is set, the kept weights are divided by their sum, or by this number if it is
    /// larger.
    Route(RouterSpec),
    /// x `[tokens, hidden]`, weights `[tokens, experts]`, gate and up `[experts here, intermediate, hidden]`, down
    /// `[experts here, hidden, intermediate]` → the sum of weight · down(f(gate x) · up x) over the experts of this
    /// rank, or with another product that [`Gating`] describes, or with weight · x in place of x and no other weight
    /// ([`Weighted`]). If there are three more operands, they are the biases of the outputs of gate, up and down,
    /// `[experts here, intermediate]` twice and `[experts here, hidden]`.
    Experts(ExpertsSpec),
    /// x → the same elements with other dimensions after the first.
    Reshape,
    /// x, one summand on each rank → the sum of all ranks, with the same bits on every rank.
    AllReduce,
    /// x `[n, part]`, one part on each rank → `[n, part · num_ranks]`, the parts in the order of ranks.
    AllGather,
    /// x `[n, out]`, bias `[out]` → x + bias.
    AddBias,
    /// x `[n, m]`, weight `[m]` or `[1]` → x · weight.
    ScaleColumns,
    /// x `[n, m]` → the columns of x from the index `first` on. The shape of the result gives their number.
    Columns { first: usize },
    /// a `[.., m]`, b `[.., n]` → the numbers of a, then those of b, along the last dimension, `[.., m + n]`.
    Join,

    /// A function of each element.
    Unary(Unary),
    /// A function of the elements of two values. The values have one shape, or one of them is broadcast: a scalar to
    /// any shape, `[rows]` to `[rows, n]`, or `[tokens]` to `[tokens, n]`.
    Binary(Binary),
    /// a, b → true if a < b. The operands are broadcast as in `Binary`. If either is NaN, the result is false.
    Less,
    /// Condition, a, b → a where the condition holds, else b. The operands are broadcast as in `Binary`.
    Select,
    /// x `[rows, n]` or `[tokens, n]` → the sum of each row, `[rows]` or `[tokens]`.
    SumColumns,
    /// Scores `[rows, vocab]` → log-probabilities.
    LogSoftmax,
    /// Scores `[rows, vocab]` → the index of each row's largest score, the lowest index among equals, `[rows]`.
    ArgMax,
    /// x `[rows, n]`, indices `[rows]` or `[rows, top_tokens]` → the elements of each row at the row's indices.
    GatherColumns,
    /// Scores `[rows, vocab]`, k `[rows]` → each row's k-th largest score; minus infinity if k is 0. A k above vocab
    /// counts as vocab.
    KthLargest,
    /// Keys and weights `[rows, vocab]`, mass `[rows]` → the smallest key such that the weights of all keys up to it
    /// sum to at least mass; the largest key if all weights sum to less.
    MassThreshold,
    /// The number of times that each token of the vocabulary occurs in the part `scope` of the row, `[rows, vocab]`,
    /// f32.
    TokenCounts { scope: TokenScope, vocab_size: usize },
    /// True for the end-of-sequence tokens that a row may not choose in this step because of `min_new_tokens`,
    /// `[rows, vocab]`, bool.
    HeldBack { vocab_size: usize },
    /// Scores `[rows, vocab]` → the scores plus the row's bias for each token that the row's `logit_bias` names.
    AddLogitBias,
    /// True for tokens that a row may choose in this step, `[rows, vocab]`, bool.
    IsAllowed { vocab_size: usize },
    /// Seed words and counter, each `[rows]`, u32 → one number in [0, 1) per row: Threefry-2x32-20 of key (low, high)
    /// and counter (counter, 0); the upper 24 bits of the first word, divided by 2²⁴.
    Uniform,
    /// One number in [0, 1) per token of the vocabulary, from the last token of the row's context alone,
    /// `[rows, vocab]`, f32: Threefry-2x32-20 of key ([`CONTEXT_SEED_FACTOR`] · last token mod 2³², 0) and counter
    /// (token, 1), converted as in `Uniform`. The 1 keeps these counters apart from those of `Uniform`.
    ContextUniform { vocab_size: usize },
    /// Probabilities `[rows, vocab]`, u `[rows]` → the first index whose cumulative probability exceeds u · total,
    /// `[rows]`. If rounding leaves none, the last index with a probability above 0.
    InverseCdf,
    /// Scores `[rows, vocab]`, n `[rows]` → the tokens whose score is at least the n-th largest, best first, the lowest
    /// index first among equals, `[rows, top_tokens]`; none if n is 0. A token with a score of minus infinity is never
    /// reported. Backends limit the number of tokens that tie with the n-th.
    TopTokens,
    /// Token `[rows]` → the same token. Writes the token to the token history after the row's context; writes nothing
    /// beyond the end of the history.
    AppendToken,
}

/// The parameters of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSpec {
    /// The state of the keys that the layer writes and attends to, `[kv_heads, head_dim]` for each token.
    pub keys: StateId,
    /// The place of the values, `[kv_heads, value_dim]` for each token. Operations with the same keys must have the
    /// same values.
    pub values: ValuesIn,
    /// The factor by which attention scores are multiplied.
    pub scale: f32,
    /// The keys that a query attends to; `None` means all keys up to its own.
    pub window: Option<Window>,
    /// If set, scores become `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// If set, the slope of the head times the distance from the query's position to the key's, which is not positive,
    /// is then added to each score.
    pub slopes: Option<Slopes>,
}

/// A limit on the keys that a query attends to. Without one, it attends to all keys up to its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// The last keys up to the query's own, at most this number.
    Sliding(usize),
    /// The keys up to the query's own in its own stretch of positions. A stretch has this number of positions, and the
    /// first begins at position 0 (`chunked_attention` in config.json).
    Chunked(usize),
}

/// The slopes of attention with linear biases (ALiBi; Press et al., 2021): a falling sequence of powers of two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slopes {
    /// The number of query heads of all ranks.
    pub num_heads: usize,
    /// The negative exponent of the last slope, if the number of heads is a power of two.
    pub last_exponent: f32,
}

/// The place in which attention keeps values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValuesIn {
    /// A state of their own.
    State(StateId),
    /// The state of the keys: a value is the first `value_dim` numbers of its key.
    Keys { value_dim: usize },
}

/// Data of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input {
    /// The token ids, `[tokens]`, i32; -1 stands for a token that the row sampled itself.
    TokenIds,
    /// The position of each token in its row, `[tokens]`, u32.
    Positions,
    /// One number of each row that samples, `[rows]`: the column of `sampling` with this name.
    Sampling { name: &'static str, dtype: DType },
}

/// The parameters of a rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct RotarySpec {
    /// Radians per position, `[rotary_dim / 2]`: one per rotated pair of values.
    pub frequencies: Vec<f32>,
    /// Factor of the cosines and sines.
    pub amplitude: f32,
    pub pairing: Pairing,
}

/// The pairs of values of a head that are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// A value of the first half of the rotated part and one of the second, as in most of Hugging Face's models.
    Halves,
    /// Adjacent values.
    Neighbours,
}

/// The factor of [`Op::ScaleByPosition`]: `1 + beta · ln(1 + floor((position + offset) / period))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PositionScale {
    pub beta: f32,
    /// The number of positions after which the factor grows; a positive number.
    pub period: f32,
    /// The number that is added to the position.
    pub offset: f32,
}

/// The choice of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterSpec {
    /// Number of experts chosen for each token.
    pub num_chosen: usize,
    pub scoring: Scoring,
    /// The groups of experts; `None` if each token chooses among all experts.
    pub groups: Option<ExpertGroups>,
    /// If set, the weights of the chosen experts are divided by their sum, or by this positive number if it is larger.
    pub least_sum: Option<f32>,
}

/// The function that turns a token's scores of all experts into weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// The softmax over all experts.
    Softmax,
    /// The sigmoid of each score.
    Sigmoid,
}

/// Groups of neighbouring experts, all of one size. A token chooses only among the experts of its best groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    pub num: usize,
    /// Number of groups chosen for each token: those of the largest values (among equals, the lowest index first).
    pub num_chosen: usize,
    /// The value of a group is the sum of this number of its experts' largest weights, biases included.
    pub num_summed: usize,
}

/// The networks of the experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertsSpec {
    /// The maximum number of experts whose weight for a token is not 0.
    pub num_chosen: usize,
    pub gating: Gating,
    /// The vector that the weight of an expert multiplies.
    pub weighted: Weighted,
}

/// The vector that the weight of an expert multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighted {
    /// The output of the expert.
    Output,
    /// The input of the expert.
    Input,
}

/// The product of a gated network: `f(gate) · up`, or with a clamp
/// `f(min(gate, limit)) · (clamp(up, -limit, limit) + offset)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gating {
    pub activation: Activation,
    pub clamp: Option<Clamp>,
}

/// The bounds of gate and up in [`Gating`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clamp {
    /// A positive number.
    pub limit: f32,
    /// The number that is added to the clamped up.
    pub offset: f32,
}

/// Activation functions of feed-forward networks, and functions that bound a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + e^-x)`
    Silu,
    /// `x · Φ(x)`
    Gelu,
    /// The approximation of `Gelu` by a hyperbolic tangent.
    GeluTanh,
    /// The approximation of `Gelu` by a sigmoid: `x / (1 + e^(-1.702 x))`
    QuickGelu,
    /// `max(x, 0)`
    Relu,
    /// `max(x, 0)²`
    SquaredRelu,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    Tanh,
}

/// Functions of one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unary {
    Negate,
    Abs,
    Exp,
    /// `1 / sqrt(x)`
    ReciprocalRoot,
}

/// Functions of two elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
}

/// A part of a row's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenScope {
    /// Prompt and completion.
    Context,
    /// Completion only.
    Generated,
}

impl Window {
    /// Returns the maximum number of keys that a query attends to, its own key included.
    pub fn num_keys(self) -> usize {
        match self {
            Self::Sliding(num_keys) | Self::Chunked(num_keys) => num_keys,
        }
    }

    /// Returns the position of the first key that a query at `position` attends to.
    pub fn first_key(self, position: usize) -> usize {
        match self {
            Self::Sliding(num_keys) => (position + 1).saturating_sub(num_keys),
            Self::Chunked(num_keys) => position / num_keys * num_keys,
        }
    }
}

impl From<StateId> for ValuesIn {
    fn from(values: StateId) -> Self {
        Self::State(values)
    }
}

impl AttentionSpec {
    /// The states that the layer writes: that of the keys and, if values have a state of their own, that of the values.
    pub fn states(&self) -> impl Iterator<Item = StateId> + use<> {
        let values = match self.values {
            ValuesIn::State(values) => Some(values),
            ValuesIn::Keys { .. } => None,
        };
        std::iter::once(self.keys).chain(values)
    }
}

impl RouterSpec {
    /// Returns the choice of the largest of a softmax over all experts, without groups.
    pub fn softmax(num_chosen: usize, is_normalised: bool) -> Self {
        let least_sum = is_normalised.then_some(f32::MIN_POSITIVE);
        Self { num_chosen, scoring: Scoring::Softmax, groups: None, least_sum }
    }
}

impl ExpertGroups {
    /// Returns the number of experts in the groups that a token chooses; `None` if `num_experts` experts do not form
    /// such groups.
    pub(crate) fn num_eligible(&self, num_experts: usize) -> Option<usize> {
        let Self { num, num_chosen, num_summed } = *self;
        let size = num_experts.checked_div(num).filter(|size| size * num == num_experts)?;
        let is_valid = (1..=num).contains(&num_chosen) && (1..=size).contains(&num_summed);
        is_valid.then_some(size * num_chosen)
    }
}

impl Slopes {
    /// Returns the slopes of the `num_heads` heads that `rank` has, `[num_heads]`. If the number of all heads is no
    /// power of two, the heads after the largest power below it have the slopes between those of the heads before.
    pub fn of_rank(&self, rank: usize, num_heads: usize) -> Vec<f32> {
        let whole = 1 << self.num_heads.max(1).ilog2();
        let exponent = |head: usize| match head.checked_sub(whole) {
            None => (head + 1) as f32 / whole as f32,
            Some(index) => (2 * index + 1) as f32 / (2 * whole) as f32,
        };
        (0..num_heads).map(|head| (-self.last_exponent * exponent(rank * num_heads + head)).exp2()).collect()
    }
}

impl From<Activation> for Gating {
    fn from(activation: Activation) -> Self {
        Self { activation, clamp: None }
    }
}

impl Op {
    /// Returns the name in messages and printed graphs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Input(_) => "input",
            Self::Argument(_) => "argument",
            Self::Weight(_) => "weight",
            Self::Constant(_) => "constant",
            Self::CurrentTokens => "current_tokens",
            Self::Embedding => "embedding",
            Self::Linear => "linear",
            Self::HeadLinear => "head_linear",
            Self::RmsNorm { .. } => "rms_norm",
            Self::LayerNorm { .. } => "layer_norm",
            Self::Rotary(_) => "rotary",
            Self::PagedAttention(_) => "paged_attention",
            Self::SharedAttention(_) => "shared_attention",
            Self::RunningSum(_) => "running_sum",
            Self::ScaleByPosition(_) => "scale_by_position",
            Self::Xielu => "xielu",
            Self::Activate(Activation::Silu) => "silu",
            Self::Activate(Activation::Gelu) => "gelu",
            Self::Activate(Activation::GeluTanh) => "gelu_tanh",
            Self::Activate(Activation::QuickGelu) => "quick_gelu",
            Self::Activate(Activation::Relu) => "relu",
            Self::Activate(Activation::SquaredRelu) => "squared_relu",
            Self::Activate(Activation::Sigmoid) => "sigmoid",
            Self::Activate(Activation::Tanh) => "tanh",
            Self::Gated(Activation::Silu) => "silu_mul",
            Self::Gated(Activation::Gelu) => "gelu_mul",
            Self::Gated(Activation::GeluTanh) => "gelu_tanh_mul",
            Self::Gated(Activation::QuickGelu) => "quick_gelu_mul",
            Self::Gated(Activation::Relu) => "relu_mul",
            Self::Gated(Activation::SquaredRelu) => "squared_relu_mul",
            Self::Gated(Activation::Sigmoid) => "sigmoid_mul",
            Self::Gated(Activation::Tanh) => "tanh_mul",
            Self::Route(_) => "route",
            Self::Experts(_) => "experts",
            Self::Reshape => "reshape",
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::AddBias => "add_bias",
            Self::ScaleColumns => "scale_columns",
            Self::Columns { .. } => "columns",
            Self::Join => "join",
            Self::Unary(Unary::Negate) => "negate",
            Self::Unary(Unary::Abs) => "abs",
            Self::Unary(Unary::Exp) => "exp",
            Self::Unary(Unary::ReciprocalRoot) => "reciprocal_root",
            Self::Binary(Binary::Add) => "add",
            Self::Binary(Binary::Subtract) => "subtract",
            Self::Binary(Binary::Multiply) => "multiply",
            Self::Binary(Binary::Divide) => "divide",
            Self::Less => "less",
            Self::Select => "select",
            Self::SumColumns => "sum_columns",
            Self::LogSoftmax => "log_softmax",
            Self::ArgMax => "arg_max",
            Self::GatherColumns => "gather_columns",
            Self::KthLargest => "kth_largest",
            Self::MassThreshold => "mass_threshold",
            Self::TokenCounts { .. } => "token_counts",
            Self::HeldBack { .. } => "held_back",
            Self::AddLogitBias => "add_logit_bias",
            Self::IsAllowed { .. } => "is_allowed",
            Self::Uniform => "uniform",
            Self::ContextUniform { .. } => "context_uniform",
            Self::InverseCdf => "inverse_cdf",
            Self::TopTokens => "top_tokens",
            Self::AppendToken => "append_token",
        }
    }
}

impl Input {
    /// Returns the shape and type of this data.
    pub fn signature(self) -> (Shape, DType) {
        use super::Dim;
        match self {
            Self::TokenIds => (Shape::new([Dim::Tokens]), DType::I32),
            Self::Positions => (Shape::new([Dim::Tokens]), DType::U32),
            Self::Sampling { name: _, dtype } => (Shape::new([Dim::Rows]), dtype),
        }
    }
}
