//! Models in several GGUF files, `model-00001-of-00003.gguf` and so on, as llama.cpp splits them.
//!
//! Entry points: [`complete`], which adds the tensors of the other files to the header of the first, and [`Part`], the
//! number of a file among the files of its model. The first file has the metadata of the model. In each file, the keys
//! `split.count`, `split.no` (from 0) and `split.tensors.count` describe the whole model.

use std::path::Path;

use crate::{Gguf, ModelFilesError};

const COUNT: &str = "split.count";
const INDEX: &str = "split.no";
const NUM_TENSORS: &str = "split.tensors.count";
/// The number of digits of the numbers in names.
const DIGITS: usize = 5;

/// The place of a file among the files of a model, as its name says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The part of the name that all files of the model share.
    pub prefix: String,
    /// The number of the file, from 1.
    pub number: usize,
    /// The number of files.
    pub count: usize,
}

impl Part {
    /// Returns the place of a file with this name or path; `None` if it is not one of several.
    pub fn of(name: &str) -> Option<Self> {
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let parse = |digits: &str| digits.parse().ok().filter(|number| *number > 0 && digits.len() == DIGITS);
        let (number, count) = (parse(number)?, parse(count)?);
        (number <= count).then(|| Self { prefix: prefix.to_owned(), number, count })
    }

    /// Returns the name of file `number` of the same model.
    pub fn name(&self, number: usize) -> String {
        format!("{}-{number:0DIGITS$}-of-{:0DIGITS$}.gguf", self.prefix, self.count)
    }
}

/// Adds the tensors of the other files of a split model to the header of its first file. Returns the header of a model
/// in one file unchanged.
///
/// # Errors
/// When the file is not the first, has another name than such files have, or another file is missing, cannot be read
/// or does not belong to the model.
pub(crate) fn complete(mut first: Gguf) -> Result<Gguf, ModelFilesError> {
    let count = first.count(COUNT).unwrap_or(1);
    if count <= 1 {
        return Ok(first);
    }
    let wrong = |path: &Path, problem: String| ModelFilesError::Gguf { path: path.to_path_buf(), problem };
    let name = first.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let named = Part::of(&name).filter(|part| part.count as u64 == count);
    let Some(part) = named else {
        let problem = format!("{COUNT} is {count}, but it is not named like model-00001-of-{count:0DIGITS$}.gguf");
        return Err(wrong(&first.path, problem));
    };
    let index = first.count(INDEX);
    if part.number != 1 || index != Some(0) {
        let index = index.map_or_else(|| "missing".to_owned(), |index| index.to_string());
        let problem = format!("{INDEX} is {index}; pass the first of its {count} files, {}", part.name(1));
        return Err(wrong(&first.path, problem));
    }
    for number in 2..=part.count {
        let path = first.path.with_file_name(part.name(number));
        if !path.is_file() {
            return Err(wrong(&path, format!("it is file {number} of {count} and is missing")));
        }
        let next = Gguf::one(&path)?;
        let found = [next.count(INDEX), next.count(COUNT)];
        if found != [Some(number as u64 - 1), Some(count)] {
            let [found, found_count] = found.map(|value| value.map_or_else(|| "missing".to_owned(), |v| v.to_string()));
            let expected = number - 1;
            let problem = format!("{INDEX} is {found} and {COUNT} is {found_count}, expected {expected} and {count}");
            return Err(wrong(&path, problem));
        }
        let file = first.files.len();
        first.files.extend(next.files);
        first.tensors.extend(next.tensors.into_iter().map(|tensor| crate::TensorInfo { file, ..tensor }));
    }
    let (found, expected) = (first.tensors.len() as u64, first.count(NUM_TENSORS));
    match expected.filter(|expected| *expected != found) {
        None => Ok(first),
        Some(expected) => {
            let problem = format!("{NUM_TENSORS} is {expected}, but its {count} files have {found} tensors");
            Err(wrong(&first.path, problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which_file_it_is() {
        let part = Part::of("a/b-Q4_K_M-00002-of-00003.gguf").unwrap();
        assert_eq!(part, Part { prefix: "a/b-Q4_K_M".to_owned(), number: 2, count: 3 });
        assert_eq!(part.name(3), "a/b-Q4_K_M-00003-of-00003.gguf");
        for other in ["b.gguf", "b-2-of-3.gguf", "b-00004-of-00003.gguf", "b-00000-of-00003.gguf", "b-00001-of-00003"] {
            assert_eq!(Part::of(other), None, "{other}");
        }
    }
}
