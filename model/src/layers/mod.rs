//! Building blocks of models. A layer knows the shapes of its weights and adds its operations to a graph.
//!
//! Entry points: [`Embedding`], [`Linear`], [`Norm`], [`HeadsNorm`], [`SelfAttention`], [`LatentAttention`], [`Mlp`],
//! [`Experts`], [`LayerInputs`], [`Head`], [`RotaryScaling`], and [`WeightScope`], which names weights. The layers
//! decide which dimension of each weight the ranks split, so no model file has sharding code. [`check_heads`] says
//! which numbers of ranks can share the heads of attention. A layer names no device.

mod attention;
mod embedding;
mod experts;
mod head;
mod heads;
mod latent_attention;
mod layer_inputs;
mod linear;
mod mlp;
mod norm;
mod rotary;
mod scope;

pub(crate) use attention::{AttentionForm, AttentionLayer, AttentionScopes, QueryKeyNorm, SelfAttention};
pub(crate) use embedding::Embedding;
pub(crate) use experts::{ChoiceBias, ExpertNames, Experts, ExpertsSize, RouterForm, RouterScales};
pub(crate) use head::Head;
pub(crate) use heads::{HeadsError, check_heads};
pub(crate) use latent_attention::{LatentAttention, LatentForm};
pub(crate) use layer_inputs::{LayerInput, LayerInputs, LayerInputsForm};
pub(crate) use linear::{Linear, LinearSize};
pub(crate) use mlp::{Mlp, MlpSize};
pub(crate) use norm::{HeadsNorm, Norm, NormForm, NormKind};
pub(crate) use rotary::{RotaryScaling, Yarn};
pub(crate) use scope::WeightScope;
