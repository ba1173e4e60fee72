//! The tensors of a checkpoint: safetensors files on disk, mapped into memory, or bytes of the executable.
//!
//! Doors: [`Checkpoint::open`], then [`Checkpoint::part`] for each [`WeightSpec`] of a graph and each rank. A file that is cut
//! short, a tensor that is missing or has another shape or type than the model asks for is an error that names the file and
//! the tensor. It converts nothing, and copies only what does not lie in one piece; the rest is the backend's affair.

mod index;
mod mmap;
mod part;

use std::collections::HashMap;

use model_files::{FileLocation, ModelFiles, ModelFilesError};
use safetensors::{Dtype, SafeTensorError, SafeTensors};

use crate::graph::{DType, WeightSpec};
use mmap::MappedFile;
use part::FileBytes;
pub(crate) use part::TensorPart;

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

/// Why a checkpoint cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WeightsError {
    #[error("{location} has neither {SINGLE_FILE} nor {INDEX_FILE}; only safetensors checkpoints are supported")]
    NoCheckpoint { location: String },
    #[error(transparent)]
    Files(#[from] ModelFilesError),
    #[error("{INDEX_FILE} {problem}")]
    Index { problem: String },
    #[error("map {file}: {source}")]
    Map { file: String, source: std::io::Error },
    #[error("{file} is not a complete safetensors file: {source}")]
    Header { file: String, source: SafeTensorError },
    #[error("{files} has no tensor {tensor}")]
    MissingTensor { files: String, tensor: String },
    #[error("tensor {tensor} of {file} has shape {found:?}, config.json asks for {expected:?}")]
    Shape { tensor: String, file: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor {tensor} of {file} is {found:?}, supported are F32, F16 and BF16")]
    DType { tensor: String, file: String, found: Dtype },
    #[error("tensor {tensor} of {file} is {dtype}, which {first} is not; tensors used as one must have one type")]
    MixedTypes { tensor: String, file: String, dtype: DType, first: String },
}

/// The safetensors files of one model, open.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    files: Vec<WeightsFile>,
    tensors: HashMap<String, TensorPlace>,
}

#[derive(Debug)]
struct WeightsFile {
    name: String,
    bytes: FileBytes,
}

#[derive(Debug)]
struct TensorPlace {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    range: std::ops::Range<usize>,
}

impl Checkpoint {
    /// Opens `model.safetensors`, or the files that `model.safetensors.index.json` lists, and reads their headers.
    ///
    /// # Errors
    /// When there is neither, a listed file is missing, or a file is malformed or cut short.
    pub(crate) fn open(model_files: &ModelFiles) -> Result<Self, WeightsError> {
        let names = match model_files.locate(SINGLE_FILE) {
            Some(_) => vec![SINGLE_FILE.to_owned()],
            None => index::file_names(
                &model_files
                    .read_optional(INDEX_FILE)?
                    .ok_or_else(|| WeightsError::NoCheckpoint { location: model_files.to_string() })?,
            )?,
        };
        let mut checkpoint = Self { files: Vec::new(), tensors: HashMap::new() };
        for name in names {
            let location = model_files
                .locate(&name)
                .ok_or_else(|| WeightsError::Index { problem: format!("lists {name}, which {model_files} has not") })?;
            checkpoint.add_file(WeightsFile::open(name, location)?)?;
        }
        Ok(checkpoint)
    }

    /// What `rank` has of the tensor that `spec` names.
    ///
    /// # Errors
    /// When it is missing, or has another shape, or is not of a float type.
    pub(crate) fn part(&self, spec: &WeightSpec, rank: usize) -> Result<TensorPart<'_>, WeightsError> {
        let mut tensors = Vec::with_capacity(spec.tensors().len());
        let mut stored_type = None;
        for tensor in spec.tensors() {
            let place = self.place(tensor)?;
            let file = &self.files[place.file];
            let expected = spec.stored_shape();
            if place.shape != expected {
                let (tensor, file, found) = (tensor.clone(), file.name.clone(), place.shape.clone());
                return Err(WeightsError::Shape { tensor, file, found, expected });
            }
            let dtype = self.float_type(tensor, place)?;
            if *stored_type.get_or_insert(dtype) != dtype {
                let (tensor, file) = (tensor.clone(), file.name.clone());
                return Err(WeightsError::MixedTypes { tensor, file, dtype, first: spec.tensors()[0].clone() });
            }
            tensors.push((&file.bytes, place.range.clone()));
        }
        Ok(TensorPart::new(tensors, stored_type.unwrap_or(spec.dtype), spec, rank))
    }

    /// Type of the first tensor by name: what the checkpoint is in when config.json does not say.
    pub(crate) fn dtype(&self) -> Result<DType, WeightsError> {
        let first = self.tensors.iter().min_by_key(|(name, _)| name.as_str());
        first.map_or(Ok(DType::F32), |(name, place)| self.float_type(name, place))
    }

    fn add_file(&mut self, file: WeightsFile) -> Result<(), WeightsError> {
        let (header_len, header) = SafeTensors::read_metadata(file.bytes.bytes())
            .map_err(|source| WeightsError::Header { file: file.name.clone(), source })?;
        let data_start = size_of::<u64>() + header_len;
        for (name, info) in header.tensors() {
            let (start, end) = info.data_offsets;
            let place = TensorPlace {
                file: self.files.len(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                range: data_start + start..data_start + end,
            };
            self.tensors.insert(name, place);
        }
        self.files.push(file);
        Ok(())
    }

    /// A tensor; also without the name of the model that is inside of the one with a head, as checkpoints of the former have
    /// it.
    fn place(&self, tensor: &str) -> Result<&TensorPlace, WeightsError> {
        let bare = || tensor.split_once('.').and_then(|(_, bare)| self.tensors.get(bare));
        self.tensors.get(tensor).or_else(bare).ok_or_else(|| {
            let files: Vec<&str> = self.files.iter().map(|file| file.name.as_str()).collect();
            WeightsError::MissingTensor { files: files.join(", "), tensor: tensor.to_owned() }
        })
    }

    fn float_type(&self, tensor: &str, place: &TensorPlace) -> Result<DType, WeightsError> {
        match place.dtype {
            Dtype::F32 => Ok(DType::F32),
            Dtype::F16 => Ok(DType::F16),
            Dtype::BF16 => Ok(DType::Bf16),
            found => {
                Err(WeightsError::DType { tensor: tensor.to_owned(), file: self.files[place.file].name.clone(), found })
            }
        }
    }
}

impl WeightsFile {
    fn open(name: String, location: FileLocation) -> Result<Self, WeightsError> {
        let bytes = match location {
            FileLocation::Embedded(bytes) => FileBytes::Embedded(bytes),
            FileLocation::Path(path) => match MappedFile::open(&path) {
                Ok(file) => FileBytes::Mapped(file),
                Err(source) => {
                    return Err(WeightsError::Map { file: path.display().to_string(), source });
                }
            },
        };
        Ok(Self { name, bytes })
    }
}

#[cfg(test)]
mod tests;
