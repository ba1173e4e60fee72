//! `quantization_config` of config.json, which says how the matrices of a checkpoint are stored.
//!
//! Entry point: [`read`]. Keys that concern only activations, such as `activation_scheme`, are ignored, because they do
//! not change how matrices are stored. The names and types of a layer's tensors show whether the layer is quantized.
//!
//! | `quant_method` | made by |
//! |---|---|
//! | `fp8`, `fbgemm_fp8` | DeepSeek, Qwen; FBGEMM (Llama) |
//! | `gptq` | AutoGPTQ, GPTQModel, AutoRound |
//! | `awq` | AutoAWQ |
//! | `mxfp4` | OpenAI (gpt-oss) |
//! | `compressed-tensors` | llm-compressor: `float-quantized`, `int-quantized`, `naive-quantized`, `pack-quantized` |

use serde_json::Value;

use super::{Config, ModelError};
use crate::graph::Quantization;

const KEY: &str = "quantization_config";
const METHODS: &str = "fp8, fbgemm_fp8, gptq, awq, mxfp4 or compressed-tensors";

/// Reads `quantization_config`.
///
/// # Errors
/// When the method or one of its settings is malformed or not supported.
pub fn read(config: &Config) -> Result<Quantization, ModelError> {
    let Some(keys) = config.object(KEY)? else { return Ok(Quantization::None) };
    let config = config.nested(KEY, keys.clone());
    match config.text("quant_method")? {
        Some("fp8") => Ok(Quantization::Scaled { block: block(&config, "weight_block_size")? }),
        Some("fbgemm_fp8") => Ok(Quantization::Scaled { block: None }),
        Some("gptq") => gptq(&config),
        Some("awq") => awq(&config),
        Some("mxfp4") => Ok(Quantization::Mxfp4),
        Some("compressed-tensors") => compressed_tensors(&config),
        Some("bitsandbytes") => {
            let instead = format!("{METHODS}, or the original checkpoint without quantization,");
            Err(config.unsupported("quant_method", "bitsandbytes", &instead))
        }
        other => Err(config.unsupported("quant_method", other.unwrap_or("null"), METHODS)),
    }
}

fn gptq(config: &Config) -> Result<Quantization, ModelError> {
    let zero_offset = match config.text("checkpoint_format")? {
        None | Some("gptq") => 1,
        Some("gptq_v2") => 0,
        Some(other) => return Err(config.unsupported("checkpoint_format", other, "gptq or gptq_v2")),
    };
    Ok(Quantization::Gptq { num_bits: num_bits(config, "bits", &[4, 8])?, zero_offset })
}

fn awq(config: &Config) -> Result<Quantization, ModelError> {
    num_bits(config, "bits", &[4])?;
    match config.text("version")?.map(str::to_lowercase).as_deref() {
        None | Some("gemm") => Ok(Quantization::Awq),
        Some(other) => Err(config.unsupported("version", other, "gemm")),
    }
}

fn compressed_tensors(config: &Config) -> Result<Quantization, ModelError> {
    let format = config.text("format")?.unwrap_or("null");
    let weights = group_of_weights(config)?;
    match format {
        "float-quantized" | "int-quantized" | "naive-quantized" => {
            num_bits(&weights, "num_bits", &[8])?;
            weights.require_fixed(&[("symmetric", "true")])?;
            Ok(Quantization::Scaled { block: block(&weights, "block_structure")? })
        }
        "pack-quantized" => {
            weights.require_fixed(&[("symmetric", "true"), ("type", "\"int\"")])?;
            Ok(Quantization::Packed { num_bits: num_bits(&weights, "num_bits", &[4, 8])? })
        }
        other => {
            let known = "float-quantized, int-quantized, naive-quantized or pack-quantized";
            Err(config.unsupported("format", other, known))
        }
    }
}

/// Returns the object `weights` of the only group in `config_groups`.
fn group_of_weights(config: &Config) -> Result<Config, ModelError> {
    const GROUPS: &str = "config_groups";
    let groups = config.object(GROUPS)?.cloned().unwrap_or_default();
    let mut weights = groups.values().map(|group| group.get("weights").and_then(Value::as_object));
    match (weights.next(), weights.next()) {
        (Some(Some(weights)), None) => Ok(config.nested(GROUPS, weights.clone())),
        (first, _) => {
            let found = if first.is_none() { "empty" } else { "several groups, or one without weights" };
            Err(config.unsupported(GROUPS, found, "one group with weights"))
        }
    }
}

fn num_bits(config: &Config, key: &str, supported: &[usize]) -> Result<usize, ModelError> {
    let num_bits = config.size(key)?;
    if supported.contains(&num_bits) {
        return Ok(num_bits);
    }
    let supported: Vec<String> = supported.iter().map(usize::to_string).collect();
    Err(config.unsupported(key, num_bits, &supported.join(" or ")))
}

/// Returns the numbers of rows and columns of a block, which has one scale; `None` if config.json does not give them.
fn block(config: &Config, key: &str) -> Result<Option<[usize; 2]>, ModelError> {
    if !config.has(key) {
        return Ok(None);
    }
    let sizes = config.numbers(key)?;
    match sizes.as_slice() {
        [rows, columns] if *rows >= 1.0 && *columns >= 1.0 => Ok(Some([*rows as usize, *columns as usize])),
        _ => Err(config.invalid(key, format!("{sizes:?}"), "two positive integers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantization(json: &str) -> Result<Quantization, String> {
        let config = Config::parse(format!(r#"{{"quantization_config": {json}}}"#).as_bytes()).unwrap();
        read(&config).map_err(|error| error.to_string())
    }

    #[test]
    fn supported_quantizations_are_read() {
        let cases = [
            ("null", Quantization::None),
            (
                r#"{"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 64]}"#,
                Quantization::Scaled { block: Some([128, 64]) },
            ),
            (r#"{"quant_method": "fbgemm_fp8"}"#, Quantization::Scaled { block: None }),
            (r#"{"quant_method": "gptq", "bits": 8}"#, Quantization::Gptq { num_bits: 8, zero_offset: 1 }),
            (
                r#"{"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}"#,
                Quantization::Gptq { num_bits: 4, zero_offset: 0 },
            ),
            (r#"{"quant_method": "awq", "bits": 4, "version": "GEMM"}"#, Quantization::Awq),
            (r#"{"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}"#, Quantization::Mxfp4),
            (
                r#"{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "symmetric": true}}}}"#,
                Quantization::Packed { num_bits: 4 },
            ),
            (
                r#"{"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "symmetric": true}}}}"#,
                Quantization::Scaled { block: None },
            ),
        ];
        for (json, expected) in cases {
            assert_eq!(quantization(json), Ok(expected), "{json}");
        }
    }

    #[test]
    fn unsupported_quantizations_are_named() {
        let group = |weights: &str| {
            format!(
                r#"{{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {{"group_0": {{"weights": {weights}}}}}}}"#
            )
        };
        let cases = [
            (r#"{"quant_method": "bitsandbytes", "load_in_4bit": true}"#.to_owned(), "quant_method is bitsandbytes; only fp8, fbgemm_fp8, gptq, awq, mxfp4 or compressed-tensors, or the original checkpoint without quantization, is supported"),
            (r#"{"quant_method": "aqlm"}"#.to_owned(), "quantization_config.quant_method is aqlm"),
            ("{}".to_owned(), "quantization_config.quant_method is null"),
            (r#"{"quant_method": "gptq", "bits": 3}"#.to_owned(), "quantization_config.bits is 3; only 4 or 8"),
            (r#"{"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}"#.to_owned(), "checkpoint_format is marlin"),
            (r#"{"quant_method": "awq", "bits": 4, "version": "gemv"}"#.to_owned(), "version is gemv; only gemm"),
            (group(r#"{"num_bits": 4, "symmetric": false}"#), "quantization_config.config_groups.symmetric is false; only true"),
            (group(r#"{"num_bits": 2}"#), "num_bits is 2; only 4 or 8"),
            (r#"{"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": {"a": {"weights": {}}}}"#.to_owned(), "format is marlin-24"),
            (r#"{"quant_method": "compressed-tensors", "format": "pack-quantized"}"#.to_owned(), "config_groups is empty"),
            (r#"{"quant_method": "fp8", "weight_block_size": [128]}"#.to_owned(), "weight_block_size is [128.0], expected two positive integers"),
        ];
        for (json, expected) in cases {
            let message = quantization(&json).unwrap_err();
            assert!(message.contains(expected), "{json}: {message}");
        }
    }
}
