//! The header of a GGUF file: the model's metadata, and the offsets of its tensors. The tensors themselves are not
//! read.
//!
//! Entry point: [`Gguf::open`]. Follows the specification of the format, versions 2 and 3 (`ggml-org/ggml`,
//! docs/gguf.md). A length for which the file is too short is an error and is never allocated. Of the lists in the
//! metadata, only those in [`LISTS`] and short lists of numbers are kept. `split` describes models in several files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::{ModelFilesError, split};

const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
/// The number of the type of texts.
const TEXT: u32 = 8;
/// The number of the type of lists.
const LIST: u32 = 9;
/// The maximum depth of nested lists. The format has no use for deeper ones.
const MAX_DEPTH: usize = 4;
const MAX_DIMS: u32 = 4;
/// The long lists that are kept; all of them belong to tokenizers.
const LISTS: [&str; 4] =
    ["tokenizer.ggml.merges", "tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.tokens"];
/// The maximum length of a list that is kept: many times the size of large vocabularies. Without a limit, a small file
/// could fill the memory, because an item takes 32 bytes of memory but may take a single byte of the file.
const MAX_LIST_LEN: usize = 1 << 22;
/// The maximum length of other lists of numbers that are kept, with a value for each layer. Longer lists are skipped.
const MAX_NUMBERS: usize = 1 << 12;

/// The header of a model's GGUF files.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    /// The path of the file, or of the first file if the model is split.
    pub path: PathBuf,
    /// The metadata of the first file.
    metadata: BTreeMap<String, Value>,
    /// The tensors of all files.
    pub tensors: Vec<TensorInfo>,
    /// The files of the model, in order.
    pub files: Vec<DataFile>,
}

/// A file with tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The offset of the tensor data in the file, in bytes.
    pub data_start: u64,
}

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An integer of any of the signed and unsigned types.
    Integer(i128),
    /// A float of 32 or 64 bits.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// Text in UTF-8, as the format demands. Invalid bytes are replaced.
    Text(String),
    /// A list of values of one type. Empty if the list is one of those that are skipped.
    List(Vec<Value>),
}

/// A tensor's name, shape, type and offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// The shape, with the fastest dimension last. The file has the opposite order.
    pub shape: Vec<usize>,
    /// The number of the tensor's `ggml_type`.
    pub kind: u32,
    /// The offset of the tensor's first byte from [`DataFile::data_start`], in bytes.
    pub offset: u64,
    /// The index of the tensor's file in [`Gguf::files`].
    pub file: usize,
}

/// True if the file can be read and begins as a GGUF file does.
pub(crate) fn has_magic(path: &Path) -> bool {
    let mut magic = [0; MAGIC.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == MAGIC
}

impl Gguf {
    /// Reads the header of a file, and those of the other files of the model if it is split.
    ///
    /// # Errors
    /// [`ModelFilesError::Read`] when a file cannot be read, [`ModelFilesError::Gguf`] when a header is invalid, or the
    /// file is not the first of its model, or another file of the model is missing or does not belong to it.
    pub fn open(path: &Path) -> Result<Self, ModelFilesError> {
        split::complete(Self::one(path)?)
    }

    /// Reads the header of one file.
    pub(crate) fn one(path: &Path) -> Result<Self, ModelFilesError> {
        let failed = |source| ModelFilesError::Read { path: path.to_path_buf(), source };
        let file = File::open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let mut head = Head { bytes: BufReader::new(file), position: 0, len };
        head.gguf(path).map_err(|problem| match problem {
            Problem::Io(source) => failed(source),
            Problem::Format(problem) => ModelFilesError::Gguf { path: path.to_path_buf(), problem },
        })
    }

    /// Returns the value of `key` in the metadata.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// The value of `key` if it is text.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::Text(text) => Some(text),
            Value::Integer(_) | Value::Float(_) | Value::Bool(_) | Value::List(_) => None,
        }
    }

    /// The value of `key` if it is an integer that is not negative.
    pub fn count(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::Integer(number) => u64::try_from(*number).ok(),
            Value::Float(_) | Value::Bool(_) | Value::Text(_) | Value::List(_) => None,
        }
    }

    /// The value of `key` if it is an integer or a float.
    pub fn number(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            Value::Integer(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            Value::Bool(_) | Value::Text(_) | Value::List(_) => None,
        }
    }

    /// The value of `key` if it is a boolean.
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(flag) => Some(*flag),
            Value::Integer(_) | Value::Float(_) | Value::Text(_) | Value::List(_) => None,
        }
    }

    /// The value of `key` if it is a list.
    pub fn list(&self, key: &str) -> Option<&[Value]> {
        match self.get(key)? {
            Value::List(values) => Some(values),
            Value::Integer(_) | Value::Float(_) | Value::Bool(_) | Value::Text(_) => None,
        }
    }
}

enum Problem {
    Io(std::io::Error),
    Format(String),
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Self::Format("it ends before its header does".to_owned()),
            _ => Self::Io(error),
        }
    }
}

/// A reader of the header, from start to end.
struct Head {
    bytes: BufReader<File>,
    position: u64,
    len: u64,
}

impl Head {
    fn gguf(&mut self, path: &Path) -> Result<Gguf, Problem> {
        if self.array()? != MAGIC {
            return Err(Problem::Format("it does not begin with GGUF".to_owned()));
        }
        let version = self.u32()?;
        if !matches!(version, 2 | 3) {
            return Err(Problem::Format(format!("its version is {version}; only 2 and 3 are supported")));
        }
        // A tensor takes more than 16 bytes of the header, a value more than 8.
        let (num_tensors, num_values) = (self.count(16)?, self.count(8)?);
        let mut metadata = BTreeMap::new();
        for _ in 0..num_values {
            let (key, kind) = (self.text()?, self.u32()?);
            let value = match kind {
                LIST => self.list(&key)?,
                _ => self.value(kind)?,
            };
            metadata.insert(key, value);
        }
        let tensors = (0..num_tensors).map(|_| self.tensor()).collect::<Result<_, _>>()?;
        let mut gguf = Gguf { path: path.to_path_buf(), metadata, tensors, files: Vec::new() };
        let alignment = gguf.count("general.alignment").unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment.is_power_of_two() {
            return Err(Problem::Format(format!("general.alignment is {alignment}, expected a power of two")));
        }
        let data_start = self.position.next_multiple_of(alignment);
        gguf.files.push(DataFile { path: path.to_path_buf(), data_start });
        Ok(gguf)
    }

    fn tensor(&mut self) -> Result<TensorInfo, Problem> {
        let (name, num_dims) = (self.text()?, self.u32()?);
        if num_dims > MAX_DIMS {
            return Err(Problem::Format(format!(
                "tensor {name} has {num_dims} dimensions; at most {MAX_DIMS} are supported"
            )));
        }
        let mut shape = Vec::new();
        for _ in 0..num_dims {
            let size = self.u64()?;
            let size = usize::try_from(size).ok().filter(|size| *size as u64 <= self.len.saturating_mul(8));
            shape.push(size.ok_or_else(|| Problem::Format(format!("tensor {name} is larger than the file")))?);
        }
        shape.reverse();
        Ok(TensorInfo { name, shape, kind: self.u32()?, offset: self.u64()?, file: 0 })
    }

    /// Reads the list `key` of the metadata, or skips it if it is neither one of [`LISTS`] nor a short list of numbers.
    fn list(&mut self, key: &str) -> Result<Value, Problem> {
        let (kind, len) = (self.u32()?, self.count(1)?);
        let has_numbers = !matches!(kind, TEXT | LIST) && len <= MAX_NUMBERS;
        if !LISTS.contains(&key) && !has_numbers {
            self.skip(kind, len, 1)?;
            return Ok(Value::List(Vec::new()));
        }
        if len > MAX_LIST_LEN {
            return Err(Problem::Format(format!("{key} has {len} items; at most {MAX_LIST_LEN} are supported")));
        }
        Ok(Value::List((0..len).map(|_| self.value(kind)).collect::<Result<_, _>>()?))
    }

    /// Skips `len` values of the type `kind` in a list at depth `depth`.
    fn skip(&mut self, kind: u32, len: usize, depth: usize) -> Result<(), Problem> {
        let value_bytes = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            8 => {
                for _ in 0..len {
                    let num_bytes = self.count(1)?;
                    self.skip_bytes(num_bytes as u64)?;
                }
                return Ok(());
            }
            LIST if depth < MAX_DEPTH => {
                for _ in 0..len {
                    let (kind, len) = (self.u32()?, self.count(1)?);
                    self.skip(kind, len, depth + 1)?;
                }
                return Ok(());
            }
            other => return Err(unknown_type(other)),
        };
        self.skip_bytes((len as u64).saturating_mul(value_bytes))
    }

    fn skip_bytes(&mut self, num_bytes: u64) -> Result<(), Problem> {
        let num_read = io::copy(&mut self.bytes.by_ref().take(num_bytes), &mut io::sink())?;
        self.position += num_read;
        if num_read < num_bytes { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) } else { Ok(()) }
    }

    fn value(&mut self, kind: u32) -> Result<Value, Problem> {
        Ok(match kind {
            0 => Value::Integer(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Integer(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Integer(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Integer(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Integer(self.u32()?.into()),
            5 => Value::Integer(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.array::<1>()? != [0]),
            8 => Value::Text(self.text()?),
            10 => Value::Integer(self.u64()?.into()),
            11 => Value::Integer(i64::from_le_bytes(self.array()?).into()),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(unknown_type(other)),
        })
    }

    fn text(&mut self) -> Result<String, Problem> {
        let mut bytes = vec![0; self.count(1)?];
        self.fill(&mut bytes)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// Reads a count of items that take at least `least_bytes` each, and checks that the rest of the file has room for
    /// them.
    fn count(&mut self, least_bytes: u64) -> Result<usize, Problem> {
        let count = self.u64()?;
        let has_room = count.checked_mul(least_bytes).is_some_and(|bytes| bytes <= self.len - self.position);
        let count = usize::try_from(count).ok().filter(|_| has_room);
        count.ok_or_else(|| Problem::Format("a count in its header is larger than the rest of the file".to_owned()))
    }

    fn u32(&mut self) -> Result<u32, Problem> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Problem> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Problem> {
        self.bytes.read_exact(bytes)?;
        self.position += bytes.len() as u64;
        Ok(())
    }
}

fn unknown_type(kind: u32) -> Problem {
    Problem::Format(format!(
        "a metadata value has type {kind}; supported are 0 to 12, with lists (9) nested at most {MAX_DEPTH} deep and not in tokenizer lists"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    /// Returns a file with these metadata values and one tensor.
    fn file(values: &[(&str, u32, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], &3_u32.to_le_bytes(), &1_u64.to_le_bytes()].concat();
        bytes.extend((values.len() as u64).to_le_bytes());
        for (key, kind, value) in values {
            bytes.extend([text(key), kind.to_le_bytes().to_vec(), value.clone()].concat());
        }
        bytes.extend([text("output.weight"), 2_u32.to_le_bytes().to_vec()].concat());
        bytes.extend([3_u64, 2].map(u64::to_le_bytes).concat());
        bytes.extend([&0_u32.to_le_bytes()[..], &64_u64.to_le_bytes()].concat());
        bytes
    }

    fn open(bytes: &[u8]) -> Result<Gguf, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.gguf");
        std::fs::write(&path, bytes).unwrap();
        Gguf::open(&path).map_err(|error| error.to_string())
    }

    fn values() -> Vec<(&'static str, u32, Vec<u8>)> {
        let list = [&8_u32.to_le_bytes()[..], &2_u64.to_le_bytes(), &text("a"), &text("b")].concat();
        vec![
            ("name", 8, text("x")),
            ("count", 4, 7_u32.to_le_bytes().to_vec()),
            ("below", 5, (-7_i32).to_le_bytes().to_vec()),
            ("rate", 6, 0.5_f32.to_le_bytes().to_vec()),
            ("is", 7, vec![1]),
            ("tokenizer.ggml.tokens", 9, list),
        ]
    }

    #[test]
    fn values_and_tensors_are_read() {
        let bytes = file(&values());
        let gguf = open(&[bytes.clone(), vec![0; 256]].concat()).unwrap();
        assert_eq!((gguf.text("name"), gguf.count("count"), gguf.number("rate")), (Some("x"), Some(7), Some(0.5)));
        assert_eq!((gguf.count("below"), gguf.number("below"), gguf.flag("is")), (None, Some(-7.0), Some(true)));
        assert_eq!(
            gguf.list("tokenizer.ggml.tokens").unwrap(),
            [Value::Text("a".to_owned()), Value::Text("b".to_owned())]
        );
        assert_eq!((gguf.text("count"), gguf.get("nothing")), (None, None));
        let tensor = TensorInfo { name: "output.weight".to_owned(), shape: vec![2, 3], kind: 0, offset: 64, file: 0 };
        assert_eq!(gguf.tensors, [tensor]);
        assert_eq!(gguf.files[0].data_start, (bytes.len() as u64).next_multiple_of(32));
    }

    #[test]
    fn long_lists_are_not_kept_except_those_of_tokenizers() {
        let list = |kind: u32, len: u64, items: Vec<u8>| [&kind.to_le_bytes()[..], &len.to_le_bytes(), &items].concat();
        let inner = [list(8, 2, [text("a"), text("")].concat()), list(12, 1, vec![0; 8])].concat();
        let mut values = values();
        values.extend([
            ("bytes", 9, list(0, 5 << 20, vec![1; 5 << 20])),
            ("shorts", 9, list(2, 3, vec![0; 6])),
            ("texts", 9, list(8, 1, text("a"))),
            ("lists", 9, list(9, 2, inner)),
        ]);
        let gguf = open(&[file(&values), vec![0; 256]].concat()).unwrap();
        assert_eq!(gguf.list("shorts"), Some([const { Value::Integer(0) }; 3].as_slice()));
        for key in ["bytes", "texts", "lists"] {
            assert_eq!(gguf.list(key), Some([].as_slice()), "{key}");
        }
        assert_eq!((gguf.list("tokenizer.ggml.tokens").unwrap().len(), gguf.tensors.len()), (2, 1));
    }

    #[test]
    fn a_file_cut_anywhere_is_an_error() {
        let bytes = file(&values());
        for len in 0..bytes.len() {
            let message = open(&bytes[..len]).unwrap_err();
            assert!(message.contains("model.gguf"), "{len}: {message}");
        }
    }

    #[test]
    fn faults_of_a_header_are_named() {
        let check = |bytes: &[u8], expected: &str| {
            let message = open(bytes).unwrap_err();
            assert!(message.contains(expected), "{message}");
        };
        check(b"PK\x03\x04 and so on", "does not begin with GGUF");
        check(&[&MAGIC[..], &1_u32.to_le_bytes()].concat(), "its version is 1; only 2 and 3 are supported");
        let endless = u64::MAX.to_le_bytes().to_vec();
        check(&file(&[("name", 8, endless.clone())]), "larger than the rest of the file");
        check(&file(&[("list", 9, [&0_u32.to_le_bytes()[..], &endless].concat())]), "larger than the rest of the file");
        let key = "tokenizer.ggml.scores";
        check(&file(&[(key, 9, [&0_u32.to_le_bytes()[..], &endless].concat())]), "larger than the rest of the file");
        check(&file(&[("other", 99, Vec::new())]), "a metadata value has type 99");
        let list = |kind: u32, len: u64| [&kind.to_le_bytes()[..], &len.to_le_bytes()].concat();
        check(&file(&[("other", 9, list(99, 1))]), "a metadata value has type 99");
        check(&file(&[(key, 9, list(9, 1))]), "a metadata value has type 9");
        let many = [list(0, 5 << 20), vec![0; 5 << 20]].concat();
        check(&file(&[(key, 9, many)]), "tokenizer.ggml.scores has 5242880 items; at most 4194304 are supported");
        let deep = [list(9, 1), list(9, 1), list(9, 1), list(9, 1), list(9, 1), list(0, 1), vec![7]].concat();
        check(&file(&[("deep", 9, deep)]), "a metadata value has type 9");
        check(&file(&[("general.alignment", 4, 33_u32.to_le_bytes().to_vec())]), "general.alignment is 33");
    }
}
