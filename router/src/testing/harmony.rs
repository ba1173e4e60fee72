//! The demo model's tokenizer with gpt-oss's special tokens instead of its own.

use model_files::ModelFiles;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::VOCAB_SIZE;

/// The special tokens of the demo model and those that replace them. The token that ends a sequence is `<|return|>`.
const NAMES: [(&str, &str); 6] = [
    ("<|bos|>", "<|constrain|>"),
    ("<|eos|>", "<|return|>"),
    ("<|pad|>", "<|end|>"),
    ("<|system|>", "<|start|>"),
    ("<|user|>", "<|channel|>"),
    ("<|assistant|>", "<|message|>"),
];

/// Returns a folder with the tokenizer. `<|call|>` is outside of the shard's vocabulary.
pub(crate) fn harmony_files() -> TempDir {
    let mut file: Value = serde_json::from_slice(&ModelFiles::Demo.read("tokenizer.json").unwrap()).unwrap();
    let tokens = file["added_tokens"].as_array_mut().unwrap();
    let mut call = tokens[0].clone();
    for (old, new) in NAMES {
        tokens.iter_mut().find(|token| token["content"] == old).unwrap()["content"] = json!(new);
    }
    (call["content"], call["id"]) = (json!("<|call|>"), json!(VOCAB_SIZE));
    tokens.push(call);
    let vocabulary = file["model"]["vocab"].as_object_mut().unwrap();
    for (old, new) in NAMES {
        let id = vocabulary.remove(old);
        vocabulary.extend(id.map(|id| (new.to_owned(), id)));
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
    folder
}
