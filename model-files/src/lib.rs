//! The files of one model: a local directory in Hugging Face layout, a GGUF file, or the demo model in the executable.
//!
//! This crate finds files, and reads their bytes and the header of a GGUF file. Other crates interpret the contents.
//! This crate never uses the network.

mod gguf;
mod hub_id;
mod split;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

pub use gguf::{DataFile, Gguf, TensorInfo, Value as GgufValue};
pub use hub_id::HubModel;
pub use split::Part;

/// The model id of the embedded demo model.
pub const DEMO_MODEL_ID: &str = "demo";

const CONFIG_FILE: &str = "config.json";
const DEMO_FILES: [(&str, &[u8]); 5] = [
    ("config.json", include_bytes!("../../demo/config.json")),
    ("generation_config.json", include_bytes!("../../demo/generation_config.json")),
    ("model.safetensors", include_bytes!("../../demo/model.safetensors")),
    ("tokenizer.json", include_bytes!("../../demo/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../demo/tokenizer_config.json")),
];

/// The reason why a model, or one of its files, cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ModelFilesError {
    /// The id is not `demo`, names no directory and no file, and is not like an id on the Hub.
    #[error(
        "model id {0:?} is not a directory; use \"{DEMO_MODEL_ID}\", the path of a directory with a model in it or of a GGUF file, or \
         organisation/name of a model on the Hugging Face Hub"
    )]
    NoSuchDirectory(String),
    /// The id is the path of a file that is not a GGUF file, or looks like the name of a file that does not exist.
    #[error(
        "model id {id:?} is {what}; pass the directory with its config.json and tokenizer.json, or the path of a GGUF file"
    )]
    File {
        /// The model id.
        id: String,
        /// A description of the file.
        what: &'static str,
    },
    /// The id is like `organisation/name`, and no such directory exists.
    #[error(
        "model id {0:?} is not a local directory; if it is a model on the Hugging Face Hub, \
         `text-generation-launcher download-weights {0}` downloads it and names the directory to pass"
    )]
    HubId(String),
    /// The model lacks this file.
    #[error("{location} has no {name}")]
    Missing { location: String, name: String },
    /// The file is not a GGUF file that can be read.
    #[error("{path} is not a GGUF file that can be read: {problem}")]
    Gguf { path: PathBuf, problem: String },
    /// The directory has several models in GGUF files and no config.json.
    #[error("{location} has several GGUF files: {names}; pass the path of one")]
    SeveralGguf { location: String, names: String },
    /// The file exists but cannot be read.
    #[error("{path} cannot be read")]
    Read { path: PathBuf, source: std::io::Error },
}

/// Endings of files with weights. An id with such an ending is never taken for a model on the Hub.
const FILE_ENDINGS: [&str; 6] = ["safetensors", "gguf", "bin", "pt", "pth", "ckpt"];

/// The place of the files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelFiles {
    /// The demo model, embedded in the executable.
    Demo,
    /// A directory in Hugging Face layout.
    Directory(PathBuf),
    /// A GGUF file. Other files in the same directory, such as a tokenizer, belong to the model too.
    Gguf(PathBuf),
}

/// The place of one file of a model: in memory, or a path that can be mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileLocation {
    /// Bytes in the executable.
    Embedded(&'static [u8]),
    /// A file that exists.
    Path(PathBuf),
}

impl ModelFiles {
    /// Finds the files of `model_id`: `demo`, or the path of a directory or of a GGUF file. A path takes precedence
    /// over an id on the Hub.
    ///
    /// # Errors
    /// When `model_id` is none of these, or a directory with several GGUF files and no config.json. The message says
    /// what is allowed.
    pub fn open(model_id: &str) -> Result<Self, ModelFilesError> {
        if model_id == DEMO_MODEL_ID {
            return Ok(Self::Demo);
        }
        let path = Path::new(model_id);
        if path.is_dir() {
            return Self::of_directory(path);
        }
        if path.is_file() && (is_gguf(path) || gguf::has_magic(path)) {
            return Ok(Self::Gguf(path.to_path_buf()));
        }
        if let Some(what) = file(model_id) {
            return Err(ModelFilesError::File { id: model_id.into(), what });
        }
        Err(match HubModel::parse(model_id) {
            Some(_) => ModelFilesError::HubId(model_id.into()),
            None => ModelFilesError::NoSuchDirectory(model_id.into()),
        })
    }

    /// Returns the files of a directory. A directory that has no config.json and exactly one model in GGUF files stands
    /// for that model. Files with towers for images do not count.
    fn of_directory(path: &Path) -> Result<Self, ModelFilesError> {
        let whole = Self::Directory(path.to_path_buf());
        if path.join(CONFIG_FILE).is_file() {
            return Ok(whole);
        }
        let Ok(entries) = std::fs::read_dir(path) else { return Ok(whole) };
        let paths = entries.flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> = paths.filter(|path| is_gguf(path) && is_first_of_model(path)).collect();
        files.sort();
        match files.as_slice() {
            [] => Ok(whole),
            [file] => Ok(Self::Gguf(file.clone())),
            several => {
                let names = several.iter().filter_map(|file| file.file_name()).map(|name| name.to_string_lossy());
                let names = names.collect::<Vec<_>>().join(", ");
                Err(ModelFilesError::SeveralGguf { location: path.display().to_string(), names })
            }
        }
    }

    /// Reads the header of the model's GGUF file; returns `None` if the model is not a GGUF file.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn gguf(&self) -> Result<Option<Gguf>, ModelFilesError> {
        match self {
            Self::Demo | Self::Directory(_) => Ok(None),
            Self::Gguf(path) => Gguf::open(path).map(Some),
        }
    }

    /// True if `model_id` is like `organisation/name` or `organisation/name:Q4_K_M` on the Hugging Face Hub, and no
    /// directory has that path.
    pub fn is_hub_id(model_id: &str) -> bool {
        matches!(Self::open(model_id), Err(ModelFilesError::HubId(_)))
    }

    /// Returns the place of the file `name`; `None` if the model has no such file.
    pub fn locate(&self, name: &str) -> Option<FileLocation> {
        match self {
            Self::Demo => {
                let (_, bytes) = DEMO_FILES.iter().find(|(file, _)| *file == name)?;
                Some(FileLocation::Embedded(bytes))
            }
            Self::Directory(directory) => {
                let path = directory.join(name);
                path.is_file().then_some(FileLocation::Path(path))
            }
            Self::Gguf(file) => {
                let path = file.with_file_name(name);
                path.is_file().then_some(FileLocation::Path(path))
            }
        }
    }

    /// Reads a file that the model may lack.
    ///
    /// # Errors
    /// [`ModelFilesError::Read`] when the file exists and cannot be read.
    pub fn read_optional(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, ModelFilesError> {
        match self.locate(name) {
            None => Ok(None),
            Some(FileLocation::Embedded(bytes)) => Ok(Some(Cow::Borrowed(bytes))),
            Some(FileLocation::Path(path)) => match std::fs::read(&path) {
                Ok(bytes) => Ok(Some(Cow::Owned(bytes))),
                Err(source) => Err(ModelFilesError::Read { path, source }),
            },
        }
    }

    /// Reads a file that the model must have.
    ///
    /// # Errors
    /// [`ModelFilesError::Missing`] with the model's place and the name, [`ModelFilesError::Read`] with the path.
    pub fn read(&self, name: &str) -> Result<Cow<'static, [u8]>, ModelFilesError> {
        self.read_optional(name)?
            .ok_or_else(|| ModelFilesError::Missing { location: self.to_string(), name: name.into() })
    }
}

/// The start of the names of GGUF files with towers for images.
const TOWERS: &str = "mmproj";

/// True if the GGUF file is a model, or the first file of one, and not a tower for images.
fn is_first_of_model(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    !name.starts_with(TOWERS) && Part::of(&name).is_none_or(|part| part.number == 1)
}

/// True if the name is that of a GGUF file.
fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

impl std::fmt::Display for ModelFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Demo => f.write_str("the embedded demo model"),
            Self::Directory(path) | Self::Gguf(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Returns the kind of file that an id names, as text for an error; `None` if the id names no file.
fn file(model_id: &str) -> Option<&'static str> {
    let path = Path::new(model_id);
    let is_name = path.extension().is_some_and(|ending| FILE_ENDINGS.iter().any(|known| ending == *known));
    match path.is_file() {
        true => Some("a file, but not a GGUF file"),
        false => is_name.then_some("the name of a file that does not exist"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_model_is_complete() {
        let files = ModelFiles::open("demo").unwrap();
        for (name, bytes) in DEMO_FILES {
            assert_eq!(files.locate(name), Some(FileLocation::Embedded(bytes)), "{name}");
            assert!(!bytes.is_empty(), "{name}");
        }
        assert_eq!(files.locate("pytorch_model.bin"), None);
    }

    #[test]
    fn a_directory_is_read_from_disk() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("config.json"), "{}").unwrap();
        let files = ModelFiles::open(directory.path().to_str().unwrap()).unwrap();
        assert_eq!(files.read("config.json").unwrap(), b"{}".as_slice());
        assert!(files.read_optional("generation_config.json").unwrap().is_none());
        let message = files.read("tokenizer.json").unwrap_err().to_string();
        assert!(message.ends_with("has no tokenizer.json"), "{message}");
    }

    #[test]
    fn files_are_not_looked_for_on_the_hub() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("y.safetensors");
        std::fs::write(&path, "").unwrap();
        for (id, what) in [
            (path.to_str().unwrap(), "a file, but not a GGUF file"),
            ("m/y.safetensors", "the name of a file that does not exist"),
            ("models/x.Q4_0.gguf", "the name of a file that does not exist"),
            ("a/pytorch_model.bin", "the name of a file that does not exist"),
        ] {
            let error = ModelFiles::open(id).unwrap_err().to_string();
            assert!(error.starts_with(&format!("model id {id:?} is {what}; pass the directory")), "{error}");
            assert!(!ModelFiles::is_hub_id(id), "{id}");
        }
        let blob = directory.path().join("0a1b");
        std::fs::write(&blob, "GGUF and more").unwrap();
        assert_eq!(ModelFiles::open(blob.to_str().unwrap()).unwrap(), ModelFiles::Gguf(blob));
        assert!(ModelFiles::is_hub_id("org/Llama-3-GGUF") && ModelFiles::is_hub_id("org/v1.5:Q8_0"));
    }

    #[test]
    fn other_ids_say_what_is_allowed() {
        assert!(matches!(ModelFiles::open("HuggingFaceTB/SmolLM2-135M"), Err(ModelFilesError::HubId(_))));
        assert!(ModelFiles::is_hub_id("Qwen/Qwen2.5-0.5B_x"));
        assert!(!ModelFiles::is_hub_id("demo"));
        for id in ["", "nothing-here", "./a/b", "../b", "~/b", "a/..", "a/b?c", "/no/such/directory", "a/b/c", "a/"] {
            assert!(matches!(ModelFiles::open(id), Err(ModelFilesError::NoSuchDirectory(_))), "{id}");
        }
    }
}
