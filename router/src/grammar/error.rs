//! The reasons why a grammar is refused.

/// The reason why a text cannot follow a grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GrammarError {
    /// The grammar is invalid or too large.
    #[error("{0}")]
    Invalid(String),
    /// Too many other grammars are being compiled.
    #[error("too many grammars are being compiled")]
    Busy,
    /// The model has no token that ends the text.
    #[error("the model has no end-of-sequence token, so a text that follows a grammar could not end")]
    NoEos,
}
