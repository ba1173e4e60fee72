//! Mistral and Ministral.
//!
//! Paper: Jiang et al., 2023 (arXiv 2310.06825). Follows `transformers/models/mistral/modeling_mistral.py` and
//! `ministral/modeling_ministral.py`. Differences from Llama: queries attend only to the last `sliding_window` keys, in
//! the layers that `layer_types` marks as sliding (Ministral), or in all layers if that key is missing (Mistral); there
//! are no biases. Without `layer_types`, no layer has a window if `sliding_window` is null.

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["layer_types", "sliding_window"])?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    let has_window = config.has("sliding_window");
    decoder.set_windows(config, |_| has_window)?;
    decoder.build()
}
