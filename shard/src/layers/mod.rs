//! Building blocks of models: each knows the names and shapes of its weights and adds its operations to a graph.
//!
//! Doors: [`Embedding`], [`Linear`], [`RmsNorm`], [`SelfAttention`], [`GatedMlp`], [`RotaryScaling`], and [`WeightScope`],
//! which names weights. Whether a layer's ranks split outputs or inputs is said by the layer ([`Linear::column`],
//! [`Linear::row`]), so that no model file has sharding code; which numbers of ranks are possible by [`check_heads`]. A layer names no device and no architecture.

mod attention;
mod embedding;
mod heads;
mod linear;
mod mlp;
mod norm;
mod rotary;
mod scope;

pub(crate) use attention::{AttentionSize, SelfAttention};
pub(crate) use embedding::Embedding;
pub(crate) use heads::{HeadsError, check_heads};
pub(crate) use linear::{Linear, LinearSize};
pub(crate) use mlp::GatedMlp;
pub(crate) use norm::RmsNorm;
pub(crate) use rotary::RotaryScaling;
pub(crate) use scope::WeightScope;
