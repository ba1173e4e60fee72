//! Writes safetensors files as transformers wrote them, from the list of their tensors.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::numbers::{Float, Tensor};
use crate::store::{derived, sha256};
use crate::{LIST, read};

/// The weights of a checkpoint: a `tensors.json`.
#[derive(Deserialize)]
pub(crate) struct Weights {
    pub(crate) seed: String,
    /// The names of files that are the same in other folders, with these folders.
    #[serde(default)]
    copies: BTreeMap<String, String>,
    files: BTreeMap<String, File>,
}

#[derive(Deserialize)]
struct File {
    sha256: String,
    /// The tensors in the order of the file.
    tensors: Vec<Tensor>,
}

impl Weights {
    /// Reads the list in a folder of the repository.
    pub(crate) fn read(folder: &Path) -> Self {
        Self::parse(&read(&folder.join(LIST)), folder)
    }

    fn parse(list: &str, folder: &Path) -> Self {
        serde_json::from_str(list).unwrap_or_else(|error| panic!("{}/{LIST}: {error}", folder.display()))
    }

    pub(crate) fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.files.values().flat_map(|file| &file.tensors).find(|tensor| tensor.0 == name)
    }
}

/// Returns the name of a type in a header.
fn type_name(float: Float) -> &'static str {
    match float {
        Float::F32 => "F32",
        Float::F16 => "F16",
        Float::Bf16 => "BF16",
    }
}

impl File {
    /// Returns the bytes of the file.
    ///
    /// # Panics
    ///
    /// When a tensor or the whole file differs from what transformers wrote.
    fn bytes(&self, seed: &str, name: &str) -> Vec<u8> {
        let (mut data, mut header) = (Vec::new(), Map::new());
        header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
        for tensor in &self.tensors {
            let (start, numbers) = (data.len(), tensor.numbers(seed));
            let Tensor(tensor, float, shape, .., sum) = tensor;
            let bytes = float.bytes_of(&numbers).unwrap_or_else(|error| panic!("{name}: tensor {tensor}: {error}"));
            assert!(sha256(&bytes).starts_with(sum.as_str()), "{name}: tensor {tensor} has not the recorded numbers");
            data.extend(bytes);
            let entry = json!({"dtype": type_name(*float), "shape": shape, "data_offsets": [start, data.len()]});
            header.insert(tensor.clone(), entry);
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
        let found = sha256(&file);
        assert!(found == self.sha256, "{name}: SHA-256 {found} of the derived file is not {}", self.sha256);
        file
    }
}

/// Returns the files of a checkpoint without its list, by name.
fn other_files(tracked: &Path, weights: &Weights) -> BTreeMap<String, PathBuf> {
    let entries = fs::read_dir(tracked).unwrap_or_else(|error| panic!("{}: {error}", tracked.display()));
    let entry = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.expect("a readable folder");
        (entry.file_name().into_string().expect("names are text"), entry.path())
    };
    let copies = weights.copies.iter().map(|(file, folder)| (file.clone(), crate::tracked(folder).join(file)));
    let mut files: BTreeMap<String, PathBuf> = entries.map(entry).chain(copies).collect();
    files.retain(|file, _| file != LIST && !weights.files.contains_key(file));
    files
}

/// Copies the folder `tracked` to the target directory, with the weights of its list instead of the list. Returns the
/// copy.
pub(crate) fn derive(tracked: &Path, name: &str) -> PathBuf {
    let list = read(&tracked.join(LIST));
    let weights = Weights::parse(&list, tracked);
    let read = |(file, path): (String, PathBuf)| {
        (file, fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    };
    let others: Vec<(String, Vec<u8>)> = other_files(tracked, &weights).into_iter().map(read).collect();
    let mut sources = list.into_bytes();
    others.iter().for_each(|(file, bytes)| sources.extend([file.as_bytes(), bytes].concat()));
    let last = Path::new(name).file_name().and_then(|last| last.to_str()).expect("a folder has a name");
    derived(&sources, last, |folder| {
        let write = |file: &str, bytes: &[u8]| {
            let path = folder.join(file);
            fs::write(&path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        };
        fs::create_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        others.iter().for_each(|(file, bytes)| write(file, bytes));
        for (file, tensors) in &weights.files {
            write(file, &tensors.bytes(&weights.seed, &format!("{name}/{file}")));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracked;

    /// The folder whose weights also are in the repository, as transformers wrote them.
    const WHOLE: &str = "tiny-llama-bf16";

    fn weights() -> (Weights, File) {
        let mut weights = Weights::read(&tracked(WHOLE));
        let file = weights.files.remove("model.safetensors").unwrap();
        (weights, file)
    }

    fn message(change: impl FnOnce(&mut File)) -> String {
        let (weights, mut file) = weights();
        change(&mut file);
        let panic = std::panic::catch_unwind(|| file.bytes(&weights.seed, WHOLE)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    }

    #[test]
    fn the_derived_file_is_the_one_that_transformers_wrote() {
        let (weights, file) = weights();
        let written = fs::read(tracked(WHOLE).join("model.safetensors")).unwrap();
        assert!(file.bytes(&weights.seed, WHOLE) == written);
    }

    #[test]
    fn a_changed_tensor_is_named() {
        let renamed = message(|file| file.tensors[3].0.push('x'));
        assert!(renamed.contains("tensor model.layers.0.mlp.down_proj.weightx has not the recorded"), "{renamed}");
        let scaled = message(|file| file.tensors[3].4 *= 2.0);
        assert!(scaled.contains("tensor model.layers.0.mlp.down_proj.weight has not the recorded"), "{scaled}");
    }

    #[test]
    fn another_order_or_shape_is_another_file() {
        let swapped = message(|file| file.tensors.swap(0, 1));
        assert!(swapped.contains("of the derived file is not"), "{swapped}");
        let reshaped = message(|file| file.tensors[0].2.reverse());
        assert!(reshaped.contains("of the derived file is not"), "{reshaped}");
    }
}
