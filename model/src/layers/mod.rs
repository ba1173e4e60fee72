//! Building blocks of models: each knows the names and shapes of its weights and adds its operations to a graph.
//!
//! Entry points: [`Embedding`], [`Linear`], [`Norm`], [`SelfAttention`], [`GatedMlp`], [`PlainMlp`], [`Experts`],
//! [`Head`], [`RotaryScaling`], and [`WeightScope`], which names weights. Each layer decides whether its ranks split
//! outputs or inputs ([`Linear::column`], [`Linear::row`]), so no model file has sharding code. [`check_heads`] says
//! which numbers of ranks are possible. A layer names no device and no architecture.

mod attention;
mod embedding;
mod experts;
mod head;
mod heads;
mod linear;
mod mlp;
mod norm;
mod rotary;
mod scope;

pub(crate) use attention::{AttentionForm, AttentionLayer, AttentionScopes, QueryKeyNorm, SelfAttention};
pub(crate) use embedding::Embedding;
pub(crate) use experts::{Experts, ExpertsSize};
pub(crate) use head::Head;
pub(crate) use heads::{HeadsError, check_heads};
pub(crate) use linear::{Linear, LinearSize};
pub(crate) use mlp::{GatedMlp, MlpSize, PlainMlp};
pub(crate) use norm::{HeadsNorm, Norm, NormForm, NormKind};
pub(crate) use rotary::{RotaryScaling, Yarn};
pub(crate) use scope::WeightScope;
