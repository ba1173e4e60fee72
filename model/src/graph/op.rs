//! The operations a graph is made of: coarse ones for a model, small ones that sampling is composed of.
//!
//! An [`Op`] says what a node computes from its operands; the comment of a variant gives their shapes and the result.
//! Operations that speak of a row's slot, context or blocks read them from the step's row metadata, which every backend
//! has at hand. A new operation is a variant here and a builder beside it; the compiler then names each backend.

use std::sync::Arc;

use super::{AttentionSpec, DType, Shape, StateId, WeightSpec};

/// Factor of the token that seeds [`Op::ContextUniform`]: TGI's hash key. It is odd, so no two tokens have the same seed.
pub const CONTEXT_SEED_FACTOR: u32 = 15_485_863;

/// What a node computes.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Data of the step.
    Input(Input),
    /// A value that another graph made: the n-th argument.
    Argument(usize),
    /// A tensor of the checkpoint.
    Weight(WeightSpec),
    /// The same number everywhere, `[]`.
    Constant(f32),

    /// Token ids `[tokens]` with -1 where the id is the token that this row sampled for this position → ids `[tokens]`.
    /// Reads the missing ids from the token history and writes the given ones to it.
    CurrentTokens,
    /// Table `[vocab, hidden]`, ids or positions `[tokens]` → `[tokens, hidden]`, f32. Zeros for ids that are in another
    /// rank's part of the table.
    Embedding,
    /// x `[n, in]`, weight `[out, in]`, and maybe bias `[out]` → `[n, out]`.
    Linear,
    /// x `[.., hidden]`, weight `[hidden]` → x / sqrt(mean(x²) + eps) · (offset + weight).
    RmsNorm { eps: f32, offset: f32 },
    /// x `[.., hidden]`, weight and maybe bias of the last dimensions of x →
    /// (x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) · (offset + weight) + bias, means over the last dimension.
    LayerNorm { eps: f32, offset: f32 },
    /// x `[tokens, heads, head_dim]`, positions `[tokens]` → the same shape, rotated.
    Rotary(Arc<RotarySpec>),
    /// q `[tokens, heads, head_dim]`, k `[tokens, kv_heads, head_dim]`, v `[tokens, kv_heads, value_dim]` →
    /// `[tokens, heads, value_dim]`. Writes k and v to the layer's KV cache, then attends causally to the row's
    /// context, or to the end of it that the window covers.
    PagedAttention(AttentionSpec),
    /// x `[tokens, n]` → each token's x plus those of all tokens of its row before it, `[tokens, n]`: the cumulative
    /// sum that linear recurrences are made of. The state holds `[n]` for each slot, the sum of the row so far.
    RunningSum(StateId),
    /// x → f(x), element by element.
    Activate(Activation),
    /// gate, up `[tokens, n]` → f(gate) · up.
    Gated(Activation),
    /// Scores `[tokens, experts]` → the weights of the experts, `[tokens, experts]`: their softmax where it is among the largest
    /// of the token, the lowest of equals first, else 0.
    Route(RouterSpec),
    /// x `[tokens, hidden]`, weights `[tokens, experts]`, gate and up `[experts here, intermediate, hidden]`, down
    /// `[experts here, hidden, intermediate]` → the sum of weight · down(f(gate x) · up x) over the experts of this rank.
    Experts(ExpertsSpec),
    /// The same elements with other dimensions behind the first.
    Reshape,
    /// x, of which each rank has a summand → the sum, the same on every rank.
    AllReduce,
    /// x `[n, part]`, of which each rank has its part → `[n, part · world_size]`, the parts in the order of ranks.
    AllGather,
    /// x `[n, out]`, bias `[out]` → x + bias.
    AddBias,
    /// x `[n, m]`, weight `[m]` → x · weight.
    ScaleColumns,
    /// x `[n, m]` → its first columns, as many as the result has.
    FirstColumns,

    /// Of every element.
    Unary(Unary),
    /// Of two values of one shape; a scalar, or `[rows]` beside `[rows, n]`, is repeated.
    Binary(Binary),
    /// a, b → whether a < b; they are repeated as in `Binary`. False where either is not a number.
    Less,
    /// Condition, a, b → a where the condition holds, else b. a and b are repeated as in `Binary`.
    Select,
    /// x `[rows, n]` or `[tokens, n]` → the sum of each row, `[rows]` or `[tokens]`.
    SumColumns,
    /// Scores `[rows, vocab]` → log-probabilities.
    LogSoftmax,
    /// Scores `[rows, vocab]` → index of each row's largest, the lowest of equals, `[rows]`.
    ArgMax,
    /// x `[rows, n]`, indices `[rows]` or `[rows, top_tokens]` → the elements there.
    GatherColumns,
    /// Scores `[rows, vocab]`, k `[rows]` → each row's k-th largest score; minus infinity where k is 0; k above vocab is vocab.
    KthLargest,
    /// Keys and weights `[rows, vocab]`, mass `[rows]` → the smallest key such that the keys up to it have a weight of at least
    /// mass together; the largest key where all of them have less.
    MassThreshold,
    /// How often each token occurs in part of the row, `[rows, vocab]`, f32.
    TokenCounts { scope: TokenScope, vocab_size: usize },
    /// True for tokens that are held back in this step, `[rows, vocab]`, bool.
    HeldBack { vocab_size: usize },
    /// Scores `[rows, vocab]` → the same plus the bias that each row has for the tokens it names.
    AddLogitBias,
    /// True for tokens that a row may choose in this step, `[rows, vocab]`, bool.
    IsAllowed { vocab_size: usize },
    /// Seed words and counter, each `[rows]`, u32 → one number in [0, 1) per row: Threefry-2x32-20 of key (low, high) and
    /// counter (counter, 0); the upper 24 bits of the first word.
    Uniform,
    /// One number in [0, 1) per token of the vocabulary, from the last token of the row's context alone, `[rows, vocab]`, f32:
    /// Threefry-2x32-20 of key ([`CONTEXT_SEED_FACTOR`] · last token mod 2³², 0) and counter (token, 1), read as in `Uniform`,
    /// which has no counter with a 1 there.
    ContextUniform { vocab_size: usize },
    /// Probabilities `[rows, vocab]`, u `[rows]` → the first index whose cumulative probability exceeds u · total, `[rows]`.
    InverseCdf,
    /// Scores `[rows, vocab]`, n `[rows]` → the tokens whose score is at least the n-th largest, best first, the lowest
    /// of equals first, `[rows, top_tokens]`. Minus infinity is never among them.
    TopTokens,
    /// Token `[rows]` → the same; writes it to the token history behind the row's context. Beyond the end of the history
    /// nothing is written.
    AppendToken,
}

/// Data of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input {
    /// `[tokens]`, i32; -1 for the token that the row sampled.
    TokenIds,
    /// `[tokens]`, u32.
    Positions,
    /// One number of each row that samples, `[rows]`: a column of `sampling` by its name.
    Sampling { name: &'static str, dtype: DType },
}

/// A rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct RotarySpec {
    /// Radians per position, `[rotated part of a head / 2]`.
    pub frequencies: Vec<f32>,
    /// Factor of cosines and sines.
    pub amplitude: f32,
    pub pairing: Pairing,
}

/// Which values of a head are turned together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// One of the first half of the rotated part and one of the second, as in most of Hugging Face's models.
    Halves,
    /// Neighbours.
    Neighbours,
}

/// How experts are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouterSpec {
    /// Experts of a token.
    pub num_chosen: usize,
    /// Whether their weights are divided by their sum.
    pub is_normalised: bool,
}

/// What experts compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertsSpec {
    /// Most weights of a token that are not 0.
    pub num_chosen: usize,
    pub activation: Activation,
}

/// Functions of the feed-forward network, and those that bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + e^-x)`
    Silu,
    /// `x · Φ(x)`
    Gelu,
    /// Its approximation by a hyperbolic tangent.
    GeluTanh,
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

/// Part of a row's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenScope {
    /// Prompt and completion.
    Context,
    /// Completion only.
    Generated,
}

impl Op {
    /// The name in messages and printed graphs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Input(_) => "input",
            Self::Argument(_) => "argument",
            Self::Weight(_) => "weight",
            Self::Constant(_) => "constant",
            Self::CurrentTokens => "current_tokens",
            Self::Embedding => "embedding",
            Self::Linear => "linear",
            Self::RmsNorm { .. } => "rms_norm",
            Self::LayerNorm { .. } => "layer_norm",
            Self::Rotary(_) => "rotary",
            Self::PagedAttention(_) => "paged_attention",
            Self::RunningSum(_) => "running_sum",
            Self::Activate(Activation::Silu) => "silu",
            Self::Activate(Activation::Gelu) => "gelu",
            Self::Activate(Activation::GeluTanh) => "gelu_tanh",
            Self::Activate(Activation::SquaredRelu) => "squared_relu",
            Self::Activate(Activation::Sigmoid) => "sigmoid",
            Self::Activate(Activation::Tanh) => "tanh",
            Self::Gated(Activation::Silu) => "silu_mul",
            Self::Gated(Activation::Gelu) => "gelu_mul",
            Self::Gated(Activation::GeluTanh) => "gelu_tanh_mul",
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
            Self::FirstColumns => "first_columns",
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
    /// Shape and type of this data.
    pub fn signature(self) -> (Shape, DType) {
        use super::Dim;
        match self {
            Self::TokenIds => (Shape::new([Dim::Tokens]), DType::I32),
            Self::Positions => (Shape::new([Dim::Tokens]), DType::U32),
            Self::Sampling { name: _, dtype } => (Shape::new([Dim::Rows]), dtype),
        }
    }
}
