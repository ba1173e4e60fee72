//! Rotary parameters in config.json: `rope_theta` and `rope_scaling`, or `rope_parameters`, which holds both.
//!
//! Transformers 5 writes the second spelling. A scaling that is not known is an error, never ignored.

use serde_json::{Map, Value};

use super::{Config, ModelError};
use crate::graph::RotarySpec;
use crate::layers::RotaryScaling;

const DEFAULT_THETA: f64 = 10_000.0;
const KNOWN_TYPES: &str = "default, linear or llama3";

/// The rotary embedding that `config` describes, for heads of `head_dim`.
///
/// # Errors
/// Names the key and its value when the scaling is not known, lacks a number, or heads cannot be halved.
pub(super) fn read(config: &Config, head_dim: usize) -> Result<RotarySpec, ModelError> {
    if !head_dim.is_multiple_of(2) {
        return Err(ModelError::value("head_dim", head_dim, "an even number"));
    }
    let (key, parameters) = match (config.object("rope_parameters")?, config.object("rope_scaling")?) {
        (Some(parameters), _) => ("rope_parameters", parameters.clone()),
        (None, Some(scaling)) => ("rope_scaling", scaling.clone()),
        (None, None) => ("rope_scaling", Map::new()),
    };
    let parameters = Config::nested(key, parameters);
    let theta = match parameters.number("rope_theta")? {
        Some(theta) => theta,
        None => config.number_or("rope_theta", DEFAULT_THETA)?,
    };
    if theta <= 0.0 {
        return Err(ModelError::value("rope_theta", theta, "a positive number"));
    }
    let original = |parameters: &Config| match parameters.number("original_max_position_embeddings")? {
        Some(original) => Ok(original),
        None => config.required_number("max_position_embeddings"),
    };
    let scaling = match scaling_type(&parameters)?.as_str() {
        "default" => RotaryScaling::Default,
        "linear" => RotaryScaling::Linear { factor: parameters.required_number("factor")? },
        "llama3" => RotaryScaling::Llama3 {
            factor: parameters.required_number("factor")?,
            low_freq_factor: parameters.required_number("low_freq_factor")?,
            high_freq_factor: parameters.required_number("high_freq_factor")?,
            original_max_position_embeddings: original(&parameters)?,
        },
        other => {
            return Err(ModelError::value(&format!("{key}.rope_type"), Value::from(other), KNOWN_TYPES));
        }
    };
    Ok(scaling.spec(theta, head_dim))
}

fn scaling_type(parameters: &Config) -> Result<String, ModelError> {
    let named = match parameters.text("rope_type")? {
        Some(name) => Some(name),
        None => parameters.text("type")?,
    };
    match named {
        Some(name) => Ok(name.to_owned()),
        // Old checkpoints leave out the type only where there is nothing to scale.
        None if parameters.number("factor")?.is_none() => Ok("default".to_owned()),
        None => Err(ModelError::MissingKey { key: "rope_scaling.rope_type".to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(json: &str) -> Result<RotarySpec, String> {
        read(&Config::parse(json.as_bytes()).unwrap(), 8).map_err(|error| error.to_string())
    }

    #[test]
    fn both_spellings_agree() {
        let plain = RotaryScaling::Default.spec(500.0, 8);
        assert_eq!(read_text(r#"{"rope_theta": 500.0, "rope_scaling": null}"#), Ok(plain.clone()));
        assert_eq!(read_text(r#"{"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}"#), Ok(plain));
        let scaled = RotaryScaling::Linear { factor: 2.0 }.spec(10_000.0, 8);
        assert_eq!(read_text(r#"{"rope_scaling": {"type": "linear", "factor": 2}}"#), Ok(scaled));
    }

    #[test]
    fn llama3_reads_its_four_numbers() {
        let numbers = r#""factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0"#;
        let scaling = RotaryScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 32.0,
        };
        let json = format!(
            r#"{{"rope_scaling": {{"rope_type": "llama3", {numbers}, "original_max_position_embeddings": 32}}}}"#
        );
        assert_eq!(read_text(&json), Ok(scaling.spec(10_000.0, 8)));
        let error = read_text(r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}"#).unwrap_err();
        assert_eq!(error, "config.json has no rope_scaling.low_freq_factor");
    }

    #[test]
    fn an_unknown_scaling_is_refused() {
        let error = read_text(r#"{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}"#).unwrap_err();
        assert_eq!(error, r#"config.json: rope_scaling.rope_type is "yarn", expected default, linear or llama3"#);
    }
}
