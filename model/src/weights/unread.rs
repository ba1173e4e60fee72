//! The tensors of a checkpoint that a model does not read.
//!
//! Entry point: [`Checkpoint::unread`].

use std::collections::HashSet;

use super::Checkpoint;
use crate::graph::{Quantization, WeightSpec};

/// The ends of the names of tensors that together are one matrix, as quantized checkpoints store it.
const PARTS: [&str; 14] = [
    ".weight",
    ".qweight",
    ".qzeros",
    ".scales",
    ".g_idx",
    ".weight_packed",
    ".weight_scale",
    ".weight_scale_inv",
    ".weight_shape",
    ".weight_zero_point",
    ".weight_g_idx",
    ".input_scale",
    "_blocks",
    "_scales",
];
/// The ends of the names of tensors that no model reads, because their values are computed: frequencies of rotary
/// embeddings, and causal masks.
const COMPUTED: [&str; 5] =
    ["rotary_emb.inv_freq", "rope_freqs.weight", ".attn.bias", ".attention.bias", "masked_bias"];
/// The matrix of an output head, which a checkpoint may have beside the table to which it is tied.
const HEAD: &str = "lm_head";
/// The end of the name of a matrix that is not quantized.
const WHOLE: &str = ".weight";

impl Checkpoint {
    /// Returns the names of the tensors from which none of the weights `specs` is read, in order. Tensors whose values
    /// are computed, and copies of a tied head, are not among them.
    pub fn unread<'s>(&self, specs: impl IntoIterator<Item = &'s WeightSpec>) -> Vec<&str> {
        let mut read: HashSet<&str> = HashSet::new();
        for name in specs.into_iter().flat_map(WeightSpec::tensors) {
            // Checkpoints may lack the first part of all names.
            let bare = name.split_once('.').map(|(_, bare)| bare);
            for name in [Some(name.as_str()), bare].into_iter().flatten() {
                read.extend([name, self.matrix_of(name).unwrap_or(name)]);
            }
        }
        let is_read =
            |name: &str| read.contains(name) || self.matrix_of(name).is_some_and(|matrix| read.contains(matrix));
        let is_known =
            |name: &str| self.matrix_of(name) == Some(HEAD) || COMPUTED.iter().any(|end| name.ends_with(end));
        let names = self.tensors.keys().map(String::as_str);
        let mut unread: Vec<&str> = names.filter(|name| !is_read(name) && !is_known(name)).collect();
        unread.sort_unstable();
        unread
    }

    /// Returns the name of the matrix of which the tensor `name` is a part; `None` for other tensors. Scales and the
    /// like are parts only of a checkpoint that says how it is quantized.
    fn matrix_of<'n>(&self, name: &'n str) -> Option<&'n str> {
        let parts = if self.quantization == Quantization::None { &[WHOLE][..] } else { &PARTS };
        parts.iter().find_map(|part| name.strip_suffix(part))
    }
}
