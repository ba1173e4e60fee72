//! Marks around what a model thinks before it answers.

/// Where thoughts begin and end.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::text) struct Thinking {
    pub(super) open: &'static str,
    /// One text.
    pub(super) close: &'static [&'static str],
}

/// A model has the first whose end is in its chat template.
const MARKS: [Thinking; 4] = [
    Thinking { open: "<think>", close: &["</think>"] },
    Thinking { open: "[THINK]", close: &["[/THINK]"] },
    Thinking { open: "<|START_THINKING|>", close: &["<|END_THINKING|>"] },
    Thinking { open: "<seed:think>", close: &["</seed:think>"] },
];

/// The marks that a template knows.
pub(in crate::text) fn thinking_of(template: &str) -> Option<&'static Thinking> {
    MARKS.iter().find(|marks| marks.close.iter().all(|close| template.contains(close)))
}
