//! GGUF files that candle reads too.
//!
//! When candle multiplies blocks, it rounds activations to 8 bits. So it gets files whose blocks are replaced by the
//! same numbers in float32, as this server loads them.

use std::fs::File;
use std::io::Cursor;

use candle_core::Device;
use candle_core::quantized::gguf_file::{self, Content, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_transformers::models;

use super::Expected::{self, Agrees, Differs, Refuses};
use super::{Forward, compare, complaint};
use crate::engine::tests::fixture;

/// Loads what is in the bytes of a GGUF file.
type Load = fn(&mut Cursor<Vec<u8>>) -> candle_core::Result<Forward>;

/// Defines a function that loads the weights of `module`.
macro_rules! loads {
    ($module:ident) => {
        fn $module(file: &mut Cursor<Vec<u8>>) -> candle_core::Result<Forward> {
            let content = Content::read(file)?;
            let mut model = models::$module::ModelWeights::from_gguf(content, file, &Device::Cpu)?;
            Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
        }
    };
}

loads!(quantized_llama);
loads!(quantized_qwen2);
loads!(quantized_qwen3);
loads!(quantized_gemma3);

/// Modules of candle with the folders in `integration-tests/fixtures`.
pub(super) const ROWS: [(&str, Load, &str, Expected); 7] = [
    ("quantized_llama", quantized_llama, "gguf/llama-k", Differs),
    ("quantized_llama", quantized_llama, "gguf/llama-q4", Agrees),
    ("quantized_llama", quantized_llama, "gguf/llama-q8", Agrees),
    ("quantized_qwen2", quantized_qwen2, "gguf/qwen2-q4-1", Agrees),
    ("quantized_qwen3", quantized_qwen3, "gguf/qwen3-f16", Agrees),
    ("quantized_gemma3", quantized_gemma3, "gguf/gemma3-q8", Differs),
    ("quantized_gemma3", quantized_gemma3, "gguf/gemma2-bf16", Refuses("attn_q_norm")),
];

/// Returns a GGUF file in which every tensor is float32.
fn in_whole_floats(mut file: File) -> candle_core::Result<Vec<u8>> {
    let content = Content::read(&mut file)?;
    let mut tensors = Vec::new();
    for name in content.tensor_infos.keys() {
        let tensor = content.tensor(&mut file, name, &Device::Cpu)?.dequantize(&Device::Cpu)?;
        tensors.push((name.as_str(), QTensor::quantize(&tensor, GgmlDType::F32)?));
    }
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    // Without this key, which only candle knows, it computes parts of Qwen 3 in float16.
    let float32 = ("general.dtype", &Value::U32(0));
    let metadata =
        content.metadata.iter().map(|(key, value)| (key.as_str(), value)).chain([float32]).collect::<Vec<_>>();
    let mut bytes = Cursor::new(Vec::new());
    gguf_file::write(&mut bytes, &metadata, &tensors)?;
    Ok(bytes.into_inner())
}

#[test]
fn candle_agrees_as_recorded() {
    let mut complaints = Vec::new();
    for (module, load, name, expected) in ROWS {
        let path = fixture(name).join("model.gguf");
        let bytes = in_whole_floats(File::open(&path).unwrap()).unwrap();
        let result = compare(&path, name, || load(&mut Cursor::new(bytes.clone())));
        complaints.extend(complaint(expected, &result).map(|text| format!("{module} of {name}: {text}")));
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}
