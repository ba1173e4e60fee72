//! Writes GGUF files as llama.cpp's converter wrote them. A recipe has the metadata, and says for each tensor which
//! elements of the checkpoint's tensors it has.
//!
//! `make_gguf_families.py` finds the recipes: it converts the checkpoint once more with the number of each element as
//! its value, and reads in the result where each element is.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::numbers::Float;
use crate::safetensors::Weights;
use crate::store::{derived, sha256};
use crate::{LIST, read, tracked};

const MAGIC: &[u8] = b"GGUF";
const VERSION: u32 = 3;
/// The start of each tensor is a multiple of this number of bytes.
const ALIGNMENT: usize = 32;

/// The list of a GGUF file: a `NAME.json`.
#[derive(Deserialize)]
struct Recipe {
    sha256: String,
    /// The folder of the checkpoint, such as `families/gemma`.
    from: String,
    /// Keys with their types and values.
    metadata: Vec<(String, String, Value)>,
    /// Names, types, shapes and sources, in the order of the file.
    tensors: Vec<(String, Float, Vec<usize>, Source)>,
}

/// The source of a tensor's numbers.
#[derive(Deserialize)]
#[serde(untagged)]
enum Source {
    /// All elements of this tensor, in their order.
    Whole(String),
    /// Elements of tensors, one part after another. `plus` is added to each.
    Parts {
        #[serde(default)]
        plus: f64,
        parts: Vec<Part>,
    },
    /// Numbers that the converter computes from the configuration.
    Numbers { numbers: Vec<f64> },
}

/// Elements of one tensor of the checkpoint.
#[derive(Deserialize)]
#[serde(untagged)]
enum Part {
    Whole(String),
    /// A tensor, its first element, and loops: each has a count and a step, and the last is the innermost.
    Steps(String, usize, Vec<(usize, usize)>),
}

/// Returns the element numbers that loops visit.
fn visited(first: usize, loops: &[(usize, usize)]) -> Vec<usize> {
    loops.iter().fold(vec![first], |starts, (count, step)| {
        starts.iter().flat_map(|start| (0..*count).map(move |index| start + index * step)).collect()
    })
}

impl Source {
    fn numbers(&self, weights: &Weights) -> Vec<f64> {
        let whole = |name: &String| {
            let tensor = weights.tensor(name).unwrap_or_else(|| panic!("the checkpoint has no tensor {name}"));
            tensor.numbers(&weights.seed)
        };
        let part = |part: &Part| match part {
            Part::Whole(name) => whole(name),
            Part::Steps(name, first, loops) => {
                let numbers = whole(name);
                visited(*first, loops).into_iter().map(|element| numbers[element]).collect()
            }
        };
        match self {
            Self::Whole(name) => whole(name),
            Self::Parts { plus, parts } => parts.iter().flat_map(part).map(|number| number + plus).collect(),
            Self::Numbers { numbers } => numbers.clone(),
        }
    }
}

/// The types of metadata with their numbers in the format.
const KINDS: [(&str, u32); 13] = [
    ("u8", 0),
    ("i8", 1),
    ("u16", 2),
    ("i16", 3),
    ("u32", 4),
    ("i32", 5),
    ("f32", 6),
    ("bool", 7),
    ("str", 8),
    ("list", 9),
    ("u64", 10),
    ("i64", 11),
    ("f64", 12),
];
const LIST_KIND: u32 = 9;

fn kind_number(kind: &str) -> u32 {
    KINDS.iter().find(|(name, _)| *name == kind).unwrap_or_else(|| panic!("{kind} is not a type of metadata")).1
}

fn append_text(text: &str, bytes: &mut Vec<u8>) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// Appends a value of metadata. The type of a list's elements is in brackets.
fn append_value(kind: &str, value: &Value, bytes: &mut Vec<u8>) {
    if let Some(element) = kind.strip_prefix('[').and_then(|kind| kind.strip_suffix(']')) {
        let values = value.as_array().expect("a list of values");
        bytes.extend(kind_number(element).to_le_bytes());
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| append_value(element, value, bytes));
        return;
    }
    let whole = || value.as_i64().unwrap_or_else(|| panic!("{value} is not a {kind}")).to_le_bytes();
    let float = || value.as_f64().unwrap_or_else(|| panic!("{value} is not a {kind}"));
    match kind {
        "str" => append_text(value.as_str().expect("a text"), bytes),
        "bool" => bytes.push(value.as_bool().expect("true or false").into()),
        "f32" => bytes.extend((float() as f32).to_le_bytes()),
        "f64" => bytes.extend(float().to_le_bytes()),
        // The low bytes are the number in fewer bits, also if it is negative.
        "u8" | "i8" => bytes.extend(&whole()[..1]),
        "u16" | "i16" => bytes.extend(&whole()[..2]),
        "u32" | "i32" => bytes.extend(&whole()[..4]),
        "u64" | "i64" => bytes.extend(whole()),
        other => panic!("{other} is not a type of metadata"),
    }
}

/// Returns the number of a type in the format, and the bytes of an element.
fn float_type(float: Float) -> (u32, usize) {
    match float {
        Float::F32 => (0, 4),
        Float::F16 => (1, 2),
        Float::Bf16 => (30, 2),
    }
}

impl Recipe {
    /// Returns everything before the data.
    fn header(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.metadata {
            append_text(key, &mut bytes);
            let number = if kind.starts_with('[') { LIST_KIND } else { kind_number(kind) };
            bytes.extend(number.to_le_bytes());
            append_value(kind, value, &mut bytes);
        }
        let mut offset = 0;
        for (name, float, shape, _) in &self.tensors {
            append_text(name, &mut bytes);
            bytes.extend((shape.len() as u32).to_le_bytes());
            // The format has the innermost dimension first.
            shape.iter().rev().for_each(|size| bytes.extend((*size as u64).to_le_bytes()));
            let (number, size) = float_type(*float);
            bytes.extend(number.to_le_bytes());
            bytes.extend((offset as u64).to_le_bytes());
            offset += (shape.iter().product::<usize>() * size).next_multiple_of(ALIGNMENT);
        }
        bytes
    }

    /// Returns the bytes of the file.
    ///
    /// # Panics
    ///
    /// When the file differs from the one that the converter wrote.
    fn bytes(&self, weights: &Weights, name: &str) -> Vec<u8> {
        let mut bytes = self.header();
        for (tensor, float, shape, source) in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
            let numbers = source.numbers(weights);
            assert!(
                numbers.len() == shape.iter().product::<usize>(),
                "{name}: tensor {tensor} has {} numbers",
                numbers.len()
            );
            let data = float.bytes_of(&numbers).unwrap_or_else(|error| panic!("{name}: tensor {tensor}: {error}"));
            bytes.extend(data);
        }
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        let found = sha256(&bytes);
        assert!(found == self.sha256, "{name}: SHA-256 {found} of the derived file is not {}", self.sha256);
        bytes
    }
}

/// Writes the file of a recipe below the target directory and returns its path.
pub(crate) fn derive(recipe: &Path, name: &str) -> PathBuf {
    assert!(recipe.exists(), "integration-tests/fixtures has neither {name} nor a list of its tensors");
    let text = read(recipe);
    let recipe: Recipe = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", recipe.display()));
    let folder = tracked(&recipe.from);
    let last = Path::new(name).file_name().and_then(|last| last.to_str()).expect("a file has a name");
    derived((text + &read(&folder.join(LIST))).as_bytes(), last, |path| {
        let bytes = recipe.bytes(&Weights::read(&folder), name);
        fs::write(path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queries have another order of rows, and norms have one added.
    fn message(name: &str, change: impl FnOnce(&mut Recipe)) -> String {
        let mut recipe: Recipe = serde_json::from_str(&read(&tracked(&format!("gguf-families/{name}.json")))).unwrap();
        change(&mut recipe);
        let weights = Weights::read(&tracked(&recipe.from));
        let panic = std::panic::catch_unwind(|| recipe.bytes(&weights, name)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    }

    #[test]
    fn loops_visit_a_transposed_matrix() {
        assert_eq!(visited(1, &[(3, 1), (2, 4)]), [1, 5, 2, 6, 3, 7]);
    }

    #[test]
    fn a_wrong_name_order_or_number_is_another_file() {
        let renamed = message("gemma", |recipe| recipe.tensors[1].0 = "blk.0.attn_norms.weight".to_owned());
        assert!(renamed.contains("of the derived file is not"), "{renamed}");
        let without_one = message("gemma", |recipe| {
            let is_norm = |source: &Source| matches!(source, Source::Parts { plus: 1.0, .. });
            let norm = recipe.tensors.iter_mut().find(|tensor| is_norm(&tensor.3)).unwrap();
            let Source::Parts { plus, .. } = &mut norm.3 else { unreachable!("it is a norm") };
            *plus = 0.0;
        });
        assert!(without_one.contains("of the derived file is not"), "{without_one}");
        let unordered = message("granite", |recipe| {
            let is_ordered = |source: &Source| matches!(source, Source::Parts { .. });
            let query = recipe.tensors.iter_mut().find(|tensor| is_ordered(&tensor.3)).unwrap();
            let Source::Parts { parts, .. } = &mut query.3 else { unreachable!("it has parts") };
            let [Part::Steps(name, ..)] = &parts[..] else { panic!("queries are one tensor") };
            query.3 = Source::Whole(name.clone());
        });
        assert!(unordered.contains("of the derived file is not"), "{unordered}");
    }

    #[test]
    fn other_metadata_is_another_file() {
        let changed = message("gemma", |recipe| recipe.metadata[0].2 = Value::from("gemmb"));
        assert!(changed.contains("of the derived file is not"), "{changed}");
    }
}
