//! The door to the checkpoints in `integration-tests/fixtures`, for tests of all crates.
//!
//! Most of these checkpoints have no weights in the repository. Their numbers come from a counter ([`philox`]), so a
//! list of tensors is enough: `tensors.json` beside a configuration, or `NAME.json` for `NAME.gguf`. [`folder`] and
//! [`file()`] write the weights below cargo's target directory at first use, and return their path there. The lists
//! have the SHA-256 of the files that transformers and llama.cpp's converter wrote, and a derived file must have it.
//!
//! `integration-tests/fixtures/weights.py` is the other half: it makes the same numbers and writes the lists.

mod gguf;
mod numbers;
mod philox;
mod safetensors;
mod store;

use std::path::{Path, PathBuf};

/// The list of the tensors of a derived checkpoint, in its folder.
const LIST: &str = "tensors.json";

/// Returns the path of a file or folder of `integration-tests/fixtures` as it is in the repository.
#[must_use]
pub fn tracked(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

/// Returns the folder of a checkpoint such as `families/llama-yarn`, with its weights.
///
/// # Panics
///
/// When there is no such folder, or when the derived weights are not those that were recorded.
#[must_use]
pub fn folder(name: &str) -> PathBuf {
    let tracked = tracked(name);
    assert!(tracked.is_dir(), "{name} is not a folder of integration-tests/fixtures");
    if tracked.join(LIST).exists() { safetensors::derive(&tracked, name) } else { tracked }
}

/// Returns a file such as `gguf-families/gemma.gguf`.
///
/// # Panics
///
/// When there is neither such a file nor a list of its tensors, or when the derived file is not the recorded one.
#[must_use]
pub fn file(name: &str) -> PathBuf {
    let tracked = tracked(name);
    if tracked.exists() { tracked } else { gguf::derive(&tracked.with_extension("json"), name) }
}

/// Returns the names in a folder of checkpoints, such as `families` or `gguf-families`, sorted. Names of GGUF files end
/// in `.gguf`, even if the repository has only a list.
///
/// # Panics
///
/// When there is no such folder.
#[must_use]
pub fn names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(tracked(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.expect("a readable folder").file_name().into_string().expect("names are text");
        name.strip_suffix(".json").map_or(name.clone(), |stem| format!("{stem}.gguf"))
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

/// Returns the text of a file in the repository.
fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
