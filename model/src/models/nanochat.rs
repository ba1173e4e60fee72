//! nanochat.
//!
//! Described in github.com/karpathy/nanochat, 2025. Follows `transformers/models/nanochat/modeling_nanochat.py`.
//! Differences from Llama: norms have no weights; there is one more norm after the embedding; each head of the queries
//! and keys is normalised after its rotation, and rotates the other way round; the feed-forward network has no gate,
//! and its activation is the squared ReLU; a soft cap bounds logits, by default at 15.

use std::sync::Arc;

use numbers::FloatType;

use super::decoder::{Decoder, MlpForm};
use super::{Config, Model, ModelError, neutral};
use crate::graph::RotarySpec;
use crate::layers::{NormForm, QueryKeyNorm, WeightScope};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "final_logit_softcapping"])?;
    let config = &config.or_default("hidden_act", "relu2");
    let norm = NormForm { has_weight: false, ..NormForm::rms(config.epsilon_or("rms_norm_eps", 1e-6)?) };
    let root = WeightScope::root(dtype, num_ranks);
    let mut decoder = Decoder::new(config, root, norm, config.size("intermediate_size")?)?;
    decoder.embedding_norm = Some("norm");
    decoder.attention.norm = QueryKeyNorm::Head(norm);
    decoder.attention.has_norm_last = true;
    decoder.mlp_form = MlpForm::Plain { up: "fc1", down: "fc2" };
    let reversed = |spec: &Arc<RotarySpec>| {
        let frequencies = spec.frequencies.iter().map(|frequency| -frequency).collect();
        Arc::new(RotarySpec { frequencies, ..RotarySpec::clone(spec) })
    };
    let rotary = decoder.layers[0].rotary.as_ref().map(reversed);
    decoder.layers.iter_mut().for_each(|layer| layer.rotary.clone_from(&rotary));
    decoder.logits_soft_cap = config.number("final_logit_softcapping")?.map(|cap| cap as f32);
    decoder.build()
}
