//! The errors of grammars, and their form as one line.

/// The reason why a text cannot follow a grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GrammarError {
    /// The grammar is invalid, too large or too slow.
    #[error("{0}")]
    Invalid(String),
    /// Too many other grammars are being compiled, or other sequences hold all the memory for matchers.
    #[error("too many grammars are being compiled")]
    Busy,
    /// The child process that must try the grammar cannot work, for this reason.
    #[error(
        "its intersections, complements or repeated groups must first be compiled in a process of their own, and this \
         server cannot use one now ({0}); leave them out, or ask the server's operator"
    )]
    NoTrial(String),
    /// The model has no token that ends the text.
    #[error("the model has no end-of-sequence token, so a text that follows a grammar could not end")]
    NoEos,
}

/// Returns a text as one line of at most 400 characters, without the notes that `llguidance` adds for its own
/// developers.
pub(super) fn one_line(text: &str) -> String {
    let notes = ["<backtrace>", "<non-verbose/>", "<state>"].into_iter().filter_map(|note| text.find(note));
    let text = &text[..notes.min().unwrap_or(text.len())];
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(400).collect()
}
