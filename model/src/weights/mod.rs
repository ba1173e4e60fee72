//! The tensors of a checkpoint: safetensors or GGUF files on disk, mapped into memory, or bytes of the executable.
//!
//! Entry points: [`Checkpoint::open`], for a composite model [`Checkpoint::into_text`], then [`Checkpoint::read`] for
//! each [`WeightSpec`] of a graph and each rank. An error names the file or the tensor that is at fault. Errors
//! include: a file is cut short; a tensor is missing, is in two files, has another shape or type than the model
//! expects, or contains an infinity or a NaN. A part is borrowed from the file if the weight is a whole tensor of
//! floats and the part is a range of its rows without padding; otherwise the part is copied. Only tensors that are not
//! stored as floats are converted here; the backend converts the rest.

mod encoding;
mod error;
mod gguf;
mod index;
mod mmap;
mod pages;
mod part;
mod quantized;
mod tensor;
mod towers;
mod unread;

use std::collections::HashMap;
use std::fmt;

use model_files::{DataFile, FileLocation, Gguf, ModelFiles};
use numbers::{FloatType, floats};
use safetensors::{Dtype, SafeTensors};

use crate::Fingerprint;
use crate::graph::{Quantization, Source, WeightSpec};
use encoding::{Blocks, Encoded, Mxfp4, Mxfp4Pages};
pub use error::WeightsError;
pub use gguf::{GgufType, RopeFactors, rope_factors};
use mmap::MappedFile;
use pages::{FileBytes, Pages};
pub use part::TensorPart;
use tensor::StoredTensor;
pub use towers::LeftOut;

/// The number and the length in bytes of the samples by which weight files are compared. The first sample is the start
/// of a file, which has the names and shapes of its first tensors.
const NUM_SAMPLES: usize = 64;
const SAMPLE_BYTES: usize = 256;

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";
/// The first bytes of a Git LFS pointer, which stands for a large file that was not fetched.
const LFS_POINTER: &[u8] = b"version https://git-lfs";
/// Checkpoint files in Python's pickle format, which are never read, and the index of such files.
const PICKLES: [&str; 3] = ["pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth"];

/// The open weight files of one model, safetensors or GGUF.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<WeightsFile>,
    tensors: HashMap<String, TensorPlace>,
    quantization: Quantization,
    left_out: Vec<LeftOut>,
    /// In a composite, prefixes of names in the text model and in the files.
    renamed: Vec<[&'static str; 2]>,
}

#[derive(Debug)]
struct WeightsFile {
    name: String,
    bytes: FileBytes,
}

/// The type in which a tensor is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StoredType {
    /// Elements, one after another.
    Plain(Dtype),
    /// Blocks of elements, as in GGUF files; a block may contain a single element. `added` is added to each decoded
    /// element.
    Blocks { kind: GgufType, added: f32 },
    /// Blocks of 32 numbers in MXFP4, each after its scale, as in GGUF files.
    Mxfp4,
}

#[derive(Debug)]
struct TensorPlace {
    file: usize,
    stored: StoredType,
    shape: Vec<usize>,
    range: std::ops::Range<usize>,
}

impl Checkpoint {
    /// Opens the GGUF file if the model has one, else `model.safetensors`, else the files that
    /// `model.safetensors.index.json` lists, and reads the headers.
    ///
    /// # Errors
    /// When the model has none of these files, a listed file is missing, a file cannot be read, is malformed or cut
    /// short, two files have the same tensor, or a tensor of a GGUF file has an unsupported type or shape.
    pub fn open(model_files: &ModelFiles, quantization: Quantization) -> Result<Self, WeightsError> {
        if let Some(gguf) = model_files.gguf()? {
            return Self::of_gguf(&gguf);
        }
        let names = match (model_files.locate(SINGLE_FILE), model_files.read_optional(INDEX_FILE)?) {
            (Some(_), _) => vec![SINGLE_FILE.to_owned()],
            (None, Some(index)) => index::file_names(&index)?,
            (None, None) => return Err(none_found(model_files)),
        };
        let mut checkpoint = Self::new(Vec::new(), HashMap::new(), quantization);
        for name in names {
            let missing =
                || WeightsError::Index { problem: format!("lists {name}, which {model_files} does not have") };
            let location = model_files.locate(&name).ok_or_else(missing)?;
            checkpoint.add_file(WeightsFile::open(name, location)?)?;
        }
        Ok(checkpoint)
    }

    /// Opens the GGUF files of a model.
    ///
    /// # Errors
    /// When a file cannot be mapped, is cut short, or has a tensor of an unsupported type or shape; when two files have
    /// the same tensor.
    pub fn of_gguf(gguf: &Gguf) -> Result<Self, WeightsError> {
        let open = |file: &DataFile| {
            let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            WeightsFile::open(name, FileLocation::Path(file.path.clone()))
        };
        let mut files: Vec<WeightsFile> = gguf.files.iter().map(open).collect::<Result<_, _>>()?;
        let lens: Vec<(&str, usize)> =
            files.iter().map(|file| (file.name.as_str(), file.bytes.bytes().len())).collect();
        let mut tensors = HashMap::with_capacity(gguf.tensors.len());
        for (name, place) in gguf::places(gguf, &lens)? {
            let file = place.file;
            if let Some(other) = tensors.insert(name.clone(), place) {
                let files = [other.file, file].map(|file| lens[file].0.to_owned());
                return Err(WeightsError::Twice { tensor: name, files });
            }
        }
        let values = gguf::values(gguf, files.len());
        if !values.is_empty() {
            let bytes = values.iter().flat_map(|(_, value, _)| value.to_le_bytes()).collect();
            files.push(WeightsFile { name: files[0].name.clone(), bytes: FileBytes::Owned(bytes) });
            tensors.extend(values.into_iter().map(|(name, _, place)| (name, place)));
        }
        Ok(Self::new(files, tensors, Quantization::None))
    }

    fn new(files: Vec<WeightsFile>, tensors: HashMap<String, TensorPlace>, quantization: Quantization) -> Self {
        Self { files, tensors, quantization, left_out: Vec::new(), renamed: Vec::new() }
    }

    /// Returns a hash of the names and sizes of the files and of samples of their bytes. Two hosts with different
    /// weights almost certainly have different hashes, although only a few pages are read.
    pub fn sampled(&self) -> Fingerprint {
        self.files.iter().fold(Fingerprint::default(), |hash, file| {
            let bytes = file.bytes.bytes();
            let hash = hash.bytes(file.name.as_bytes()).number(bytes.len() as u64);
            let starts = (0..NUM_SAMPLES).map(|sample| bytes.len() / NUM_SAMPLES * sample);
            let ranges = starts.map(|start| start..(start + SAMPLE_BYTES).min(bytes.len()));
            ranges.fold(hash, |hash, range| hash.bytes(Pages { file: &file.bytes, range }.bytes()))
        })
    }

    /// Calls `take` with the part that `rank` has of the weight `spec`, and returns its result.
    ///
    /// # Errors
    /// When a tensor of the weight is missing, has another shape, or is stored in an unsupported way; when `take`
    /// fails; and, checked after `take`, when a value that `take` read is infinite or NaN.
    pub fn read<T, E: From<WeightsError>>(
        &self,
        spec: &WeightSpec,
        rank: usize,
        take: impl FnOnce(&TensorPart<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let part = self.part(spec, rank)?;
        let taken = take(&part)?;
        match part.not_finite() {
            None => Ok(taken),
            Some(index) => {
                let tensor = spec.tensors()[index].clone();
                // A weight that is stored as integers has no tensor of that name, so all files are named.
                let file = self.find(&tensor).map_or_else(|| self.file_names(), |place| self.file_name(place));
                Err(WeightsError::NotFinite { tensor: self.stored_name(&tensor), file }.into())
            }
        }
    }

    fn part(&self, spec: &WeightSpec, rank: usize) -> Result<TensorPart<'_>, WeightsError> {
        let mut tensors: Vec<StoredTensor<'_>> = Vec::with_capacity(spec.tensors().len());
        for tensor in spec.tensors() {
            let stored = self.tensor(tensor, &spec.stored_shape())?;
            if let (StoredTensor::Encoded(_), Source::Transposed { .. }) = (&stored, &spec.source) {
                return Err(WeightsError::EncodedColumns { tensor: tensor.clone() });
            }
            if let Some(first) = tensors.first().filter(|first| first.dtype() != stored.dtype()) {
                let (first, dtype) = (format!("{} is {}", spec.tensors()[0], first.dtype()), stored.dtype());
                return Err(WeightsError::MixedTypes { tensor: tensor.clone(), dtype, first });
            }
            tensors.push(stored);
        }
        Ok(TensorPart::new(tensors, spec, rank))
    }

    /// Returns the tensor `name`, which must have this shape.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<StoredTensor<'_>, WeightsError> {
        if let Some(matrix) = quantized::find(self, name, shape)? {
            return Ok(StoredTensor::Encoded(matrix));
        }
        let place = self.place(name)?;
        if place.stored == StoredType::Mxfp4 {
            self.check_shape(name, place, shape)?;
            let num_columns = shape.last().copied().unwrap_or(1);
            let pages = Mxfp4Pages::Together(self.pages(place));
            return Ok(StoredTensor::Encoded(Encoded::Mxfp4(Mxfp4 { num_columns, pages })));
        }
        if let (StoredType::Blocks { kind, added }, None) = (place.stored, place.stored.float()) {
            self.check_shape(name, place, shape)?;
            // A vector is read as a matrix with one column.
            let num_columns = if shape.len() < 2 { 1 } else { shape[shape.len() - 1] };
            return Ok(StoredTensor::Encoded(Encoded::Blocks(Blocks {
                num_columns,
                bytes: self.pages(place),
                kind,
                added,
            })));
        }
        let dtype = self.float_type(name, place)?;
        self.check_shape(name, place, shape)?;
        Ok(StoredTensor::Floats { dtype, pages: self.pages(place) })
    }

    /// Returns the type of the tensor of floats whose name sorts first, or f32 if there is none. It serves as the
    /// checkpoint's type if config.json has no type.
    pub fn dtype(&self) -> FloatType {
        let floats = self.tensors.iter().filter_map(|(name, place)| Some((name, place.stored.float()?)));
        floats.min_by_key(|(name, _)| name.as_str()).map_or(FloatType::F32, |(_, dtype)| dtype)
    }

    fn add_file(&mut self, file: WeightsFile) -> Result<(), WeightsError> {
        let bytes = file.bytes.bytes();
        if bytes.starts_with(LFS_POINTER) {
            return Err(WeightsError::Pointer { file: file.name });
        }
        let (header_len, header) = SafeTensors::read_metadata(bytes)
            .map_err(|source| WeightsError::Header { file: file.name.clone(), source })?;
        let data_start = size_of::<u64>() + header_len;
        for (name, info) in header.tensors() {
            let (start, end) = info.data_offsets;
            let place = TensorPlace {
                file: self.files.len(),
                stored: StoredType::Plain(info.dtype),
                shape: info.shape.clone(),
                range: data_start + start..data_start + end,
            };
            if let Some(other) = self.tensors.get(&name) {
                let files = [self.file_name(other), file.name.clone()];
                return Err(WeightsError::Twice { tensor: name, files });
            }
            self.tensors.insert(name, place);
        }
        self.files.push(file);
        Ok(())
    }

    /// Finds a tensor. If the name is not in the checkpoint, tries it without its first part, such as `model.`, because
    /// that part is missing in checkpoints of models without an output head.
    fn find(&self, tensor: &str) -> Option<&TensorPlace> {
        let bare = || tensor.split_once('.').and_then(|(_, bare)| self.tensors.get(bare));
        self.tensors.get(tensor).or_else(bare)
    }

    fn place(&self, tensor: &str) -> Result<&TensorPlace, WeightsError> {
        self.find(tensor)
            .ok_or_else(|| WeightsError::MissingTensor { files: self.file_names(), tensor: self.stored_name(tensor) })
    }

    fn file_names(&self) -> String {
        let files: Vec<&str> = self.files.iter().map(|file| file.name.as_str()).collect();
        files.join(", ")
    }

    /// Returns all elements of a tensor of floats.
    fn all_floats(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        let place = self.place(name)?;
        let stored = self.float_type(name, place)?;
        let mut floats = Vec::new();
        floats::read(self.pages(place).bytes(), stored, &mut floats);
        Ok(floats)
    }

    fn check_shape(&self, tensor: &str, place: &TensorPlace, expected: &[usize]) -> Result<(), WeightsError> {
        // The converter leaves out dimensions of size 1.
        let without_ones = |shape: &[usize]| shape.iter().copied().filter(|size| *size != 1).collect::<Vec<_>>();
        let is_gguf = !matches!(place.stored, StoredType::Plain(_));
        if place.shape == expected || (is_gguf && without_ones(&place.shape) == without_ones(expected)) {
            return Ok(());
        }
        let (tensor, file, found) = (self.stored_name(tensor), self.file_name(place), place.shape.clone());
        Err(WeightsError::Shape { tensor, file, found, expected: expected.to_vec() })
    }

    fn pages(&self, place: &TensorPlace) -> Pages<'_> {
        Pages { file: &self.files[place.file].bytes, range: place.range.clone() }
    }

    fn file_name(&self, place: &TensorPlace) -> String {
        self.files.get(place.file).map(|file| file.name.clone()).unwrap_or_default()
    }

    fn float_type(&self, tensor: &str, place: &TensorPlace) -> Result<FloatType, WeightsError> {
        place.stored.float().ok_or_else(|| {
            let (tensor, file, found) = (self.stored_name(tensor), self.file_name(place), place.stored);
            WeightsError::DType { tensor, file, found }
        })
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

fn none_found(model_files: &ModelFiles) -> WeightsError {
    let location = model_files.to_string();
    match PICKLES.into_iter().find(|file| model_files.locate(file).is_some()) {
        Some(file) => WeightsError::Pickle { location, file },
        None => WeightsError::NoCheckpoint { location },
    }
}

impl StoredType {
    /// Returns the type if it is a float type whose elements are used as they are.
    fn float(self) -> Option<FloatType> {
        match self {
            Self::Plain(Dtype::F32) => Some(FloatType::F32),
            Self::Plain(Dtype::F16) => Some(FloatType::F16),
            Self::Plain(Dtype::BF16) => Some(FloatType::Bf16),
            Self::Blocks { kind: GgufType::Floats(dtype), added: 0.0 } => Some(dtype),
            Self::Plain(_) | Self::Blocks { .. } | Self::Mxfp4 => None,
        }
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(dtype) => write!(f, "{dtype:?}"),
            Self::Blocks { kind, .. } => write!(f, "{kind}"),
            Self::Mxfp4 => write!(f, "MXFP4"),
        }
    }
}

#[cfg(test)]
mod tests;
