//! The marks around a model's thoughts before its answer.

/// The marks that begin and end a thought.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::text) struct Thinking {
    pub(super) open: &'static str,
    /// The closing mark, as a list with one item.
    pub(super) close: &'static [&'static str],
}

/// The known marks. A model uses the first entry whose closing mark is in its chat template.
const MARKS: [Thinking; 5] = [
    Thinking { open: "<think>", close: &["</think>"] },
    Thinking { open: "[THINK]", close: &["[/THINK]"] },
    Thinking { open: "<|START_THINKING|>", close: &["<|END_THINKING|>"] },
    Thinking { open: "<seed:think>", close: &["</seed:think>"] },
    Thinking { open: "<|inner_prefix|>", close: &["<|inner_suffix|>"] },
];

/// Returns the first marks of which the template contains the closing mark.
pub(in crate::text) fn thinking_of(template: &str) -> Option<&'static Thinking> {
    MARKS.iter().find(|marks| marks.close.iter().all(|close| template.contains(close)))
}
