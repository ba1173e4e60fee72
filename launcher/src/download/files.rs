//! Selects the files of a model to download, from the names of the model's files and the list in the weights' index.
//! Nothing here reads a file or uses the network.

use std::collections::BTreeSet;

use model_files::HubModel;
use serde_json::Value;

use super::error::HubError;
use super::gguf::{self, Undecided};

/// The files, other than the weights and their index, that the router and the shards read, each with true if it is
/// required.
const SMALL_FILES: [(&str, bool); 9] = [
    ("config.json", true),
    ("tokenizer.json", true),
    ("generation_config.json", false),
    ("tokenizer_config.json", false),
    ("special_tokens_map.json", false),
    ("chat_template.json", false),
    ("chat_template.jinja", false),
    ("additional_chat_templates/tool_use.jinja", false),
    ("processor_config.json", false),
];
const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";
const GGUF: &str = ".gguf";
/// Endings of files that usually contain Python pickles.
const PICKLES: [&str; 4] = [".bin", ".pt", ".pth", ".ckpt"];
/// The number of names that an error gives as examples.
const MAX_EXAMPLES: usize = 3;

/// The files of a model to download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selection {
    /// The names of the small files. They are downloaded before the weights, so a model that has its weights is
    /// complete.
    pub(crate) small: Vec<String>,
    pub(crate) weights: Weights,
}

/// The files that contain the weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Weights {
    /// The weights are in one file of this name.
    Single(&'static str),
    /// The weights are in the files that the index of this name lists. The index is one of the small files.
    Indexed(&'static str),
    /// A model in one GGUF file or several, which also contain its configuration and its tokenizer.
    Gguf(Vec<String>),
}

/// Selects among the files of a model: GGUF files if a quantization is asked for or there are no others, else
/// safetensors.
///
/// # Errors
/// When a required file is missing. If the weights are missing, the message names the formats that the model has.
pub(crate) fn select(model: &HubModel<'_>, names: &[String]) -> Result<Selection, HubError> {
    let HubModel { name: model, quantization } = *model;
    if quantization.is_some() {
        return Ok(Selection { small: Vec::new(), weights: Weights::Gguf(gguf_files(model, names, quantization)?) });
    }
    let has = |name: &str| names.iter().any(|other| other == name);
    let weights = match (has(SINGLE_FILE), has(INDEX_FILE)) {
        // A single file takes precedence over an index, as in transformers and in the shard.
        (true, _) => Weights::Single(SINGLE_FILE),
        (false, true) => Weights::Indexed(INDEX_FILE),
        (false, false) if names.iter().any(|name| name.ends_with(GGUF)) => {
            Weights::Gguf(gguf_files(model, names, None)?)
        }
        (false, false) => return Err(no_weights(model, names)),
    };
    if matches!(weights, Weights::Gguf(_)) {
        return Ok(Selection { small: Vec::new(), weights });
    }
    if let Some((name, _)) = SMALL_FILES.iter().find(|(name, is_needed)| *is_needed && !has(name)) {
        return Err(HubError::Lacks { model: model.to_owned(), name });
    }
    let index = (weights == Weights::Indexed(INDEX_FILE)).then_some(INDEX_FILE);
    let small = SMALL_FILES.iter().map(|(name, _)| *name).filter(|name| has(name)).chain(index);
    Ok(Selection { small: small.map(str::to_owned).collect(), weights })
}

/// Returns the names of the files that an index lists, sorted and each once.
///
/// # Errors
/// [`HubError::Index`] when the index is invalid, or lists anything but plain names of safetensors files.
pub(crate) fn shards(index: &[u8]) -> Result<Vec<String>, HubError> {
    let failed = |problem: String| HubError::Index { problem };
    let index: Value = serde_json::from_slice(index).map_err(|error| failed(error.to_string()))?;
    let map = index["weight_map"].as_object().ok_or_else(|| failed("it has no weight_map".into()))?;
    let names: BTreeSet<&str> = map.values().map(|name| name.as_str().unwrap_or_default()).collect();
    if let Some(name) = names.iter().find(|name| !is_plain(name)) {
        return Err(failed(format!("it lists {name:?}, which is not the name of a safetensors file")));
    }
    Ok(names.into_iter().map(str::to_owned).collect())
}

/// Returns the names of the required files that a folder lacks, and the name of an invalid index. `read` returns the
/// contents of a file in the folder, and `has` is true if the folder has a file.
pub(crate) fn missing(read: impl Fn(&str) -> Option<Vec<u8>>, has: impl Fn(&str) -> bool) -> Vec<String> {
    let needed = SMALL_FILES.iter().filter(|(_, is_needed)| *is_needed).map(|(name, _)| (*name).to_owned());
    let weights = match read(INDEX_FILE) {
        Some(index) if !has(SINGLE_FILE) => shards(&index).unwrap_or_else(|_| vec![INDEX_FILE.to_owned()]),
        _ => vec![SINGLE_FILE.to_owned()],
    };
    let is_bad_index = |name: &String| name == INDEX_FILE;
    needed.chain(weights).filter(|name| is_bad_index(name) || !has(name)).collect()
}

fn no_weights(model: &str, names: &[String]) -> HubError {
    let model = model.to_owned();
    let is_pickle = |name: &&String| PICKLES.iter().any(|ending| name.ends_with(ending));
    let found: Vec<&str> = names.iter().filter(is_pickle).take(MAX_EXAMPLES).map(String::as_str).collect();
    if found.is_empty() {
        HubError::NoWeights { model }
    } else {
        HubError::OnlyPickles { model, found: found.join(", ") }
    }
}

fn gguf_files(model: &str, names: &[String], quantization: Option<&str>) -> Result<Vec<String>, HubError> {
    gguf::choose(names, quantization).map_err(|undecided| {
        let (model, quantization) = (model.to_owned(), quantization.unwrap_or("any quantization").to_owned());
        match undecided {
            Undecided::None(found) => HubError::NoGguf { model, quantization, found: found.join(", ") },
            Undecided::Several(found) => HubError::SeveralGguf { model, found: found.join(", ") },
            Undecided::Missing(missing) => HubError::GgufPart { model, missing: missing.join(", ") },
        }
    })
}

/// True if the name is that of a safetensors file in the index's own folder, without a leading dot and without
/// characters that have a meaning in a URL.
fn is_plain(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.starts_with('.') && !name.contains(['/', '\\', '?', '#', '%'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(names: &[&str]) -> Result<Selection, String> {
        selected_as(names, None)
    }

    fn selected_as(names: &[&str], quantization: Option<&str>) -> Result<Selection, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let model = HubModel { name: "a/b", quantization };
        select(&model, &names).map_err(|error| error.to_string())
    }

    #[test]
    fn only_what_is_read_is_chosen() {
        let single = selected(&[
            ".gitattributes",
            "README.md",
            "config.json",
            "model.safetensors",
            "onnx/model.onnx",
            "original/consolidated.00.pth",
            "pytorch_model.bin",
            "tokenizer.json",
            "tokenizer_config.json",
            "model.safetensors.index.json",
        ]);
        let small = ["config.json", "tokenizer.json", "tokenizer_config.json"].map(str::to_owned).to_vec();
        assert_eq!(single, Ok(Selection { small, weights: Weights::Single("model.safetensors") }));
        let sharded = selected(&[
            "chat_template.jinja",
            "config.json",
            "model-1.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
        ])
        .unwrap();
        assert_eq!(sharded.small.last().unwrap(), "model.safetensors.index.json");
        assert_eq!(sharded.weights, Weights::Indexed("model.safetensors.index.json"));
    }

    #[test]
    fn an_unreadable_model_is_refused_with_the_reason() {
        let cases: [(&[&str], &str); 6] = [
            (&["m-Q5_K_M.gguf", "m-Q8_0.gguf"], "several GGUF files: m-Q5_K_M.gguf, m-Q8_0.gguf; add"),
            (&["config.json", "pytorch_model-1.bin", "tokenizer.json"], "only as pickles (pytorch_model-1.bin)"),
            (
                &["config.json", "consolidated.safetensors"],
                "has no model.safetensors and no model.safetensors.index.json",
            ),
            (&[], "has no model.safetensors"),
            (&["model.safetensors", "tokenizer.json"], "has no config.json"),
            (&["model.safetensors", "config.json", "tokenizer.model"], "has no tokenizer.json; make one"),
        ];
        for (names, expected) in cases {
            let error = selected(names).unwrap_err();
            assert!(error.starts_with("model \"a/b\" has ") && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn gguf_files_are_chosen_if_asked_for_or_alone() {
        let both = ["config.json", "m-Q8_0.gguf", "m-Q4_0.gguf", "model.safetensors", "tokenizer.json"];
        let files = |weights: &[&str]| {
            let weights = Weights::Gguf(weights.iter().map(|name| (*name).to_owned()).collect());
            Ok(Selection { small: Vec::new(), weights })
        };
        assert_eq!(selected(&both).unwrap().weights, Weights::Single(SINGLE_FILE));
        assert_eq!(selected_as(&both, Some("q8_0")), files(&["m-Q8_0.gguf"]));
        assert_eq!(selected(&["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf"]), files(&["m-Q4_K_M.gguf"]));
        let error = selected_as(&both, Some("Q2_K")).unwrap_err();
        insta::assert_snapshot!(error, @"model \"a/b\" has no GGUF file of Q2_K; it has m-Q4_0.gguf, m-Q8_0.gguf");
        let error = selected_as(&both[..1], Some("Q2_K")).unwrap_err();
        insta::assert_snapshot!(error, @"model \"a/b\" has no GGUF file of Q2_K; it has no GGUF files at all");
        let error = selected(&["m-00001-of-00002.gguf"]).unwrap_err();
        insta::assert_snapshot!(error, @"model \"a/b\" lacks files of a split model: m-00002-of-00002.gguf");
    }

    #[test]
    fn an_index_lists_each_file_once() {
        let index = br#"{"weight_map": {"b": "m-2.safetensors", "a": "m-1.safetensors", "c": "m-2.safetensors"}}"#;
        assert_eq!(shards(index).unwrap(), ["m-1.safetensors", "m-2.safetensors"]);
    }

    #[test]
    fn an_index_cannot_name_other_places() {
        for name in ["../x.safetensors", "/etc/x.safetensors", ".x.safetensors", "x.bin", "", "a?b.safetensors"] {
            let index = serde_json::json!({"weight_map": {"a": name}}).to_string();
            let error = shards(index.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(&format!("lists {name:?}")), "{error}");
        }
        for index in ["{", "[]", "{}", r#"{"weight_map": {"a": 1}}"#] {
            assert!(shards(index.as_bytes()).is_err(), "{index}");
        }
    }

    #[test]
    fn files_that_a_folder_lacks_are_named() {
        let lacks = |files: &[(&str, &str)]| {
            let read =
                |name: &str| files.iter().find(|(file, _)| *file == name).map(|(_, text)| text.as_bytes().to_vec());
            missing(read, |name| read(name).is_some())
        };
        assert_eq!(lacks(&[]), ["config.json", "tokenizer.json", "model.safetensors"]);
        let index = r#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}"#;
        let sharded = [("config.json", ""), ("tokenizer.json", ""), ("model.safetensors.index.json", index)];
        assert_eq!(lacks(&sharded), ["m-1.safetensors", "m-2.safetensors"]);
        assert_eq!(lacks(&[sharded[0], sharded[1], (SINGLE_FILE, "")]), Vec::<String>::new());
        assert_eq!(lacks(&[sharded[0], sharded[1], (INDEX_FILE, "{")]), [INDEX_FILE]);
    }
}
