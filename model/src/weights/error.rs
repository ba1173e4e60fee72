//! The errors of reading a checkpoint.

use model_files::ModelFilesError;
use numbers::FloatType;
use safetensors::SafeTensorError;

use super::{INDEX_FILE, SINGLE_FILE, StoredType};

/// The error of a checkpoint that cannot be read. The message names the file or the tensor that is at fault.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error(
        "{location} has neither {SINGLE_FILE} nor {INDEX_FILE}; pass a checkpoint in safetensors, or the path of a \
         GGUF file"
    )]
    NoCheckpoint { location: String },
    #[error(
        "{location} has only {file}, a Python pickle, which can run any code when it is read; convert it: in Python, \
         AutoModelForCausalLM.from_pretrained(path).save_pretrained(new_path) writes safetensors"
    )]
    Pickle { location: String, file: &'static str },
    #[error(transparent)]
    Files(#[from] ModelFilesError),
    #[error("{INDEX_FILE} {problem}")]
    Index { problem: String },
    #[error("{file} cannot be mapped into memory: {source}")]
    Map { file: String, source: std::io::Error },
    #[error("{file} is not a complete safetensors file: {source}")]
    Header { file: String, source: SafeTensorError },
    #[error("{file} is a pointer of Git LFS, not the file that it stands for; fetch the file with `git lfs pull`")]
    Pointer { file: String },
    #[error("{files} has no tensor {tensor}")]
    MissingTensor { files: String, tensor: String },
    #[error("tensor {tensor} is both in {} and in {}", files[0], files[1])]
    Twice { tensor: String, files: [String; 2] },
    #[error("tensor {tensor} of {file} has shape {found:?}, but the configuration of the model requires {expected:?}")]
    Shape { tensor: String, file: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor {tensor} of {file} is {found}; only F32, F16 and BF16 are supported")]
    DType { tensor: String, file: String, found: StoredType },
    #[error("tensor {tensor} of {file} is {found}, but quantization_config requires {expected}")]
    QuantizedType { tensor: String, file: String, found: StoredType, expected: &'static str },
    #[error(
        "tensor {tensor} of {file} has GGML type {kind} and shape {shape:?}; supported are F32 (0), F16 (1), BF16 (30), Q4_0 (2), Q4_1 (3), Q5_0 (6), Q5_1 (7), Q8_0 (8), Q2_K to Q6_K (10 to 14), IQ4_NL (20), IQ4_XS (23) and MXFP4 (39), in rows of whole blocks"
    )]
    Block { tensor: String, file: String, kind: String, shape: Vec<usize> },
    #[error("{file} ends before its tensor {tensor} does; it is not complete")]
    Truncated { tensor: String, file: String },
    #[error("tensor {tensor} of {file} names group {group}, but there are only {num_groups} groups, counted from 0")]
    Group { tensor: String, file: String, group: i64, num_groups: usize },
    #[error("tensor {tensor} is {dtype} and {first}; tensors that form one weight must have one type")]
    MixedTypes { tensor: String, dtype: FloatType, first: String },
    #[error("tensor {tensor} is quantized, which is not supported for a model whose matrices are stored [in, out]")]
    EncodedColumns { tensor: String },
    #[error(
        "tensor {tensor} of {file} belongs neither to the text model nor to a part that is left out by name ({parts})"
    )]
    UnknownPart { tensor: String, file: String, parts: String },
    #[error("tensor {tensor} of {file} has a value that is infinite or not a number")]
    NotFinite { tensor: String, file: String },
}
