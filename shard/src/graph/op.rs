//! The operations a graph is made of: coarse ones for a model, small ones that sampling is composed of.
//!
//! An [`Op`] says what a node computes from its operands; the comment of a variant gives their shapes and the result.
//! Operations that speak of a row's slot, context or blocks read them from the step's row metadata, which every backend
//! has at hand. A new operation is a variant here and a builder beside it; the compiler then names each backend.

use std::sync::Arc;

use super::{DType, Shape, WeightSpec};

/// What a node computes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Op {
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
    /// Table `[vocab, hidden]`, ids `[tokens]` → `[tokens, hidden]`, f32. Zeros for ids that are in another rank's part of
    /// the table.
    Embedding,
    /// x `[n, in]`, weight `[out, in]`, and maybe bias `[out]` → `[n, out]`.
    Linear,
    /// x `[.., hidden]`, weight `[hidden]` → x / sqrt(mean(x²) + eps) · weight.
    RmsNorm { eps: f32 },
    /// x `[tokens, heads, head_dim]`, positions `[tokens]` → the same shape, rotated.
    Rotary(Arc<RotarySpec>),
    /// q `[tokens, heads, head_dim]`, k and v `[tokens, kv_heads, head_dim]` → `[tokens, heads, head_dim]`. Writes k and v to
    /// the layer's KV cache, then attends causally to the row's whole context.
    PagedAttention { layer: usize, scale: f32 },
    /// gate, up `[tokens, n]` → silu(gate) · up.
    SiluMul,
    /// The same elements with other dimensions behind the first.
    Reshape,
    /// x, of which each rank has a summand → the sum, the same on every rank.
    AllReduce,
    /// x `[n, part]`, of which each rank has its part → `[n, part · world_size]`, the parts in the order of ranks.
    AllGather,
    /// x `[n, out]`, bias `[out]` → x + bias.
    AddBias,
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
    /// x `[rows, n]` → the sum of each row, `[rows]`.
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
    /// Whether a token is held back in this step, `[rows, vocab]`, bool: see [`SampledRow`](crate::batch::SampledRow).
    HeldBack { vocab_size: usize },
    /// Seed words and counter, each `[rows]`, u32 → one number in [0, 1) per row: Threefry-2x32-20 of key (low, high) and
    /// counter (counter, 0); the upper 24 bits of the first word.
    Uniform,
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
pub(crate) enum Input {
    /// `[tokens]`, i32; -1 for the token that the row sampled.
    TokenIds,
    /// `[tokens]`, u32.
    Positions,
    /// One sampling parameter of each row, `[rows]`.
    Sampling(SamplingInput),
}

/// A sampling parameter as the sampler reads it, neutral for rows that do not use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum SamplingInput {
    /// f32; 1 = off.
    RepetitionPenalty,
    /// f32; 0 = off.
    FrequencyPenalty,
    /// f32; 0 = off.
    PresencePenalty,
    /// f32; 1 = off.
    Temperature,
    /// i32; 0 = off.
    TopK,
    /// f32; 1 = off.
    TopP,
    /// f32; 0 = off.
    MinP,
    /// f32; 1 = off.
    TypicalP,
    /// u32: lower half of the seed.
    SeedLow,
    /// u32: upper half of the seed.
    SeedHigh,
    /// u32: tokens this row has generated before this step.
    NumGenerated,
    /// i32; 0 = off.
    TopNTokens,
    /// f32; 1 = the best token instead of a drawn one.
    IsGreedy,
}

/// Frequencies of a rotary embedding, Hugging Face's halves convention.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RotarySpec {
    /// Radians per position, `[rotated part of a head / 2]`.
    pub(crate) frequencies: Vec<f32>,
    /// Factor of cosines and sines.
    pub(crate) amplitude: f32,
}

/// Functions of one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unary {
    Negate,
    Abs,
    Exp,
}

/// Functions of two elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
}

/// Part of a row's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenScope {
    /// Prompt and completion.
    Context,
    /// Completion only.
    Generated,
}

impl Op {
    /// The name in messages and printed graphs.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Input(_) => "input",
            Self::Argument(_) => "argument",
            Self::Weight(_) => "weight",
            Self::Constant(_) => "constant",
            Self::CurrentTokens => "current_tokens",
            Self::Embedding => "embedding",
            Self::Linear => "linear",
            Self::RmsNorm { .. } => "rms_norm",
            Self::Rotary(_) => "rotary",
            Self::PagedAttention { .. } => "paged_attention",
            Self::SiluMul => "silu_mul",
            Self::Reshape => "reshape",
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::AddBias => "add_bias",
            Self::FirstColumns => "first_columns",
            Self::Unary(Unary::Negate) => "negate",
            Self::Unary(Unary::Abs) => "abs",
            Self::Unary(Unary::Exp) => "exp",
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
            Self::Uniform => "uniform",
            Self::InverseCdf => "inverse_cdf",
            Self::TopTokens => "top_tokens",
            Self::AppendToken => "append_token",
        }
    }
}

impl Input {
    /// Shape and type of this data.
    pub(crate) fn signature(self) -> (Shape, DType) {
        use super::Dim;
        match self {
            Self::TokenIds => (Shape::new([Dim::Tokens]), DType::I32),
            Self::Positions => (Shape::new([Dim::Tokens]), DType::U32),
            Self::Sampling(input) => (Shape::new([Dim::Rows]), input.dtype()),
        }
    }
}

impl SamplingInput {
    /// How many there are.
    pub(crate) const COUNT: usize = Self::IsGreedy as usize + 1;
    /// All of them.
    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self::RepetitionPenalty,
        Self::FrequencyPenalty,
        Self::PresencePenalty,
        Self::Temperature,
        Self::TopK,
        Self::TopP,
        Self::MinP,
        Self::TypicalP,
        Self::SeedLow,
        Self::SeedHigh,
        Self::NumGenerated,
        Self::TopNTokens,
        Self::IsGreedy,
    ];

    fn dtype(self) -> DType {
        match self {
            Self::RepetitionPenalty
            | Self::FrequencyPenalty
            | Self::PresencePenalty
            | Self::Temperature
            | Self::TopP
            | Self::MinP
            | Self::TypicalP
            | Self::IsGreedy => DType::F32,
            Self::TopK | Self::TopNTokens => DType::I32,
            Self::SeedLow | Self::SeedHigh | Self::NumGenerated => DType::U32,
        }
    }
}
