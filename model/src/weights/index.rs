//! `model.safetensors.index.json`: the list of files of a large checkpoint.
//!
//! Entry point: [`file_names`]. Only the names of the files are read, because the files themselves list their tensors.

use std::collections::BTreeSet;

use serde_json::Value;

use super::WeightsError;

/// Returns the names of the files in `weight_map`, each once.
///
/// # Errors
/// When the index is not JSON, has no `weight_map`, or gives for a tensor anything but a plain file name.
pub(super) fn file_names(json: &[u8]) -> Result<Vec<String>, WeightsError> {
    let problem = |problem: String| WeightsError::Index { problem };
    let index: Value = serde_json::from_slice(json).map_err(|error| problem(format!("is not JSON: {error}")))?;
    let weight_map = index.get("weight_map").and_then(Value::as_object);
    let weight_map = weight_map.ok_or_else(|| problem("has no object weight_map".to_owned()))?;
    let mut names = BTreeSet::new();
    for (tensor, file) in weight_map {
        let file = file.as_str().filter(|file| !file.contains(['/', '\\']) && *file != "..");
        names.insert(file.ok_or_else(|| problem(format!("gives no plain file name for tensor {tensor}")))?.to_owned());
    }
    Ok(names.into_iter().collect())
}
