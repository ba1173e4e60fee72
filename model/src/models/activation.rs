//! Activation functions by their names in config.json.
//!
//! Entry point: [`activation`].

use super::{Config, ModelError};
use crate::graph::Activation;

/// Returns the activation function that `hidden_act`, or one of the key's other names, specifies; SiLU if config.json
/// has none of them.
///
/// # Errors
/// When the function is unknown.
pub(super) fn activation(config: &Config) -> Result<Activation, ModelError> {
    const KEYS: [&str; 4] = ["hidden_activation", "hidden_act", "activation_function", "activation"];
    for key in KEYS {
        let Some(name) = config.text(key)? else { continue };
        return match name {
            "silu" | "swish" => Ok(Activation::Silu),
            "gelu" => Ok(Activation::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
            "relu" => Ok(Activation::Relu),
            "relu2" => Ok(Activation::SquaredRelu),
            other => {
                let known = "silu, gelu, gelu_new, gelu_pytorch_tanh, relu or relu2";
                Err(config.invalid(key, format!("\"{other}\""), known))
            }
        };
    }
    Ok(Activation::Silu)
}
