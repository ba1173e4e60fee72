//! Code World Model (CWM).
//!
//! Paper: FAIR CodeGen team, 2025 (arXiv 2510.02387). Follows `transformers/models/cwm/modeling_cwm.py`. Differences
//! from Llama: by default the first of every four layers has no window, and the others have one; the default rotary
//! scaling is that of Llama 3.

use numbers::FloatType;
use serde_json::json;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["layer_types", "mlp_bias", "sliding_window"])?;
    let config = &config.or_default("rope_theta", 1_000_000.0).or_default("rms_norm_eps", 1e-5);
    let config = if config.rotary()?.is_some() {
        config
    } else {
        &config.with_rotary(json!({"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}))
    };
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.set_windows(&config.or_default("sliding_window", 8192), |layer| layer % 4 != 0)?;
    decoder.build()
}
