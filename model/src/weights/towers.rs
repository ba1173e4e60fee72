//! The text model in the checkpoint of a composite model: its tensors get the names that they have in a checkpoint of
//! the text model alone, and the tensors of other parts are left out by name.
//!
//! Entry points: [`Checkpoint::into_text`], [`Checkpoint::left_out`].

use std::collections::{BTreeMap, HashMap};

use super::{Checkpoint, WeightsError};

/// Pairs of a prefix in a composite and the prefix of the same tensors in a text model. The first prefix that a name
/// has counts.
const TEXT_PREFIXES: [(&str, &str); 8] = [
    ("language_model.lm_head.", HEAD),
    // Kimi K2.5, as transformers 5.23 saves it.
    ("language_model.model.blocks.", "model.layers."),
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    // Composites of transformers before 4.52 whose text model has the names of a text model alone.
    ("model.embed_tokens.", "model.embed_tokens."),
    ("model.layers.", "model.layers."),
    ("model.norm.", "model.norm."),
    (HEAD, HEAD),
];
const HEAD: &str = "lm_head.";
/// The prefix of all tensors but the head in composites that transformers 4.52 and later have saved.
const INNER: &str = "model.";

/// A part of a checkpoint that is not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The first part of the names of its tensors.
    pub part: &'static str,
    pub num_tensors: usize,
    pub num_bytes: usize,
}

impl Checkpoint {
    /// Keeps only the tensors of the text model. Those of the parts `towers` are left out.
    ///
    /// # Errors
    /// When a tensor is neither of the text model nor of one of `towers`, or two tensors get one name.
    pub fn into_text(mut self, towers: &[&'static str]) -> Result<Self, WeightsError> {
        let mut stored: Vec<_> = std::mem::take(&mut self.tensors).into_iter().collect();
        stored.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut tensors = HashMap::with_capacity(stored.len());
        let mut left_out: BTreeMap<&str, LeftOut> = BTreeMap::new();
        for (name, place) in stored {
            if let Some((text_name, prefixes)) = text_name(&name) {
                if !self.renamed.contains(&prefixes) {
                    self.renamed.push(prefixes);
                }
                let file = self.file_name(&place);
                if let Some(other) = tensors.insert(text_name.clone(), place) {
                    return Err(WeightsError::Twice { tensor: text_name, files: [self.file_name(&other), file] });
                }
                continue;
            }
            let part = towers.iter().find(|part| is_of(&name, part)).ok_or_else(|| WeightsError::UnknownPart {
                tensor: name.clone(),
                file: self.file_name(&place),
                parts: towers.join(", "),
            })?;
            let of_part = left_out.entry(part).or_insert(LeftOut { part, num_tensors: 0, num_bytes: 0 });
            of_part.num_tensors += 1;
            of_part.num_bytes += place.range.len();
        }
        self.tensors = tensors;
        self.left_out = left_out.into_values().collect();
        Ok(self)
    }

    /// Returns the parts that [`into_text`](Self::into_text) left out.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Returns the name that a tensor of the text model has in the files.
    pub(super) fn stored_name(&self, tensor: &str) -> String {
        let renamed =
            self.renamed.iter().find_map(|[text, stored]| Some(format!("{stored}{}", tensor.strip_prefix(text)?)));
        renamed.unwrap_or_else(|| tensor.to_owned())
    }

    /// True if the checkpoint has the matrix of an output head, stored in any way.
    pub fn has_head(&self) -> bool {
        self.tensors.keys().any(|name| name.starts_with(HEAD))
    }
}

/// Returns the name that a composite's tensor has in a checkpoint of the text model alone, and the prefixes of both
/// names, that in the text model first; `None` if the tensor is not part of the text model.
fn text_name(name: &str) -> Option<(String, [&'static str; 2])> {
    TEXT_PREFIXES
        .iter()
        .find_map(|(prefix, text)| Some((format!("{text}{}", name.strip_prefix(prefix)?), [*text, *prefix])))
}

/// True if the tensor `name` belongs to the part `part` of a composite.
fn is_of(name: &str, part: &str) -> bool {
    let name = name.strip_prefix(INNER).unwrap_or(name);
    name.strip_prefix(part).is_some_and(|rest| rest.starts_with('.'))
}
