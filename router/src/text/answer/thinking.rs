//! The marks around a model's thoughts before its answer.

/// The marks that begin and end a thought.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::text) struct Thinking {
    pub(super) open: &'static str,
    /// The text after the opening mark that is no part of the thought; empty if there is none.
    pub(super) label: &'static str,
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

    /// True if `prompt` ends with the opening mark, with or without the text after it.
    pub(super) fn is_begun_by(&self, prompt: &str) -> bool {
        let prompt = prompt.trim_end();
        prompt.strip_suffix(self.label.trim_end()).unwrap_or(prompt).ends_with(self.open) || prompt.ends_with(self.open)
    }
}

/// The marks `<think>`, without marks around content.
const THINK: Thinking = Thinking { open: "<think>", label: "", close: &["</think>"], content: &[] };

/// The known marks. A model uses the first entry whose closing mark and marks of content are in its chat template, or
/// else in a conversation that the template renders.
const MARKS: [Thinking; 10] = [
    // Hunyuan-A13B.
    Thinking { content: &["<answer>", "</answer>"], ..THINK },
    // ERNIE 4.5 Thinking.
    Thinking { content: &["<response>", "</response>"], ..THINK },
    THINK,
    // Published models of Hunyuan 3.
    Thinking { open: "<think:opensource>", close: &["</think:opensource>"], ..THINK },
    Thinking { open: "<longcat_think>", close: &["</longcat_think>"], ..THINK },
    Thinking { open: "[THINK]", close: &["[/THINK]"], ..THINK },
    Thinking { open: "<|START_THINKING|>", close: &["<|END_THINKING|>"], ..THINK },
    // Gemma 4 (ai.google.dev/gemma/docs/core/prompt-formatting-gemma4).
    Thinking { open: "<|channel>", label: "thought\n", close: &["<channel|>"], ..THINK },
    Thinking { open: "<seed:think>", close: &["</seed:think>"], ..THINK },
    Thinking { open: "<|inner_prefix|>", close: &["<|inner_suffix|>"], ..THINK },
];

/// Returns the first marks of which the template contains the closing mark and those of content.
pub(in crate::text) fn thinking_of(template: &str) -> Option<&'static Thinking> {
    MARKS.iter().find(|marks| marks.close.iter().chain(marks.content).all(|mark| template.contains(mark)))
}
