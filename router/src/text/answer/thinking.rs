//! The marks around a model's thoughts before its answer.

/// The marks that begin and end a thought.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::text) struct Thinking {
    pub(super) open: &'static str,
    /// The closing mark, as a list with one item.
    pub(super) close: &'static [&'static str],
    /// The marks that begin and end content, which are left out; empty if content has none.
    pub(super) content: &'static [&'static str],
}

impl Thinking {
    /// All marks.
    pub(super) fn marks(&'static self) -> impl Iterator<Item = &'static str> {
        [self.open].into_iter().chain(self.close.iter().chain(self.content).copied())
    }
}

/// The known marks. A model uses the first entry whose closing mark and marks of content are in its chat
/// template.
const MARKS: [Thinking; 7] = [
    // Hunyuan-A13B.
    Thinking { open: "<think>", close: &["</think>"], content: &["<answer>", "</answer>"] },
    // ERNIE 4.5 Thinking.
    Thinking { open: "<think>", close: &["</think>"], content: &["<response>", "</response>"] },
    Thinking { open: "<think>", close: &["</think>"], content: &[] },
    Thinking { open: "[THINK]", close: &["[/THINK]"], content: &[] },
    Thinking { open: "<|START_THINKING|>", close: &["<|END_THINKING|>"], content: &[] },
    Thinking { open: "<seed:think>", close: &["</seed:think>"], content: &[] },
    Thinking { open: "<|inner_prefix|>", close: &["<|inner_suffix|>"], content: &[] },
];

/// Returns the first marks of which the template contains the closing mark and those of content.
pub(in crate::text) fn thinking_of(template: &str) -> Option<&'static Thinking> {
    MARKS.iter().find(|marks| marks.close.iter().chain(marks.content).all(|mark| template.contains(mark)))
}
