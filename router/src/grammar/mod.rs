//! Structured output: masks of allowed tokens, which make a text follow a JSON schema, a regular expression or a
//! grammar.
//!
//! A [`Grammar`] is a client's constraint, independent of the API. [`GrammarCompiler`] compiles it; each sequence then
//! has a [`GrammarMatcher`], which takes the sequence's tokens and returns the mask of the next one. Compiling and
//! masking may be slow and never run on an async thread. The crate `llguidance` parses the grammars; its types stay
//! inside this folder.

mod build;
mod calls;
mod closed;
mod compiled;
mod compiler;
mod constraint;
mod effort;
mod error;
mod held;
mod kept;
mod key;
mod limits;
mod matcher;
mod schema;
mod stop;
mod terminals;
#[cfg(test)]
mod tests;

pub(crate) use calls::{after_thought, calls, calls_or};
pub(crate) use compiled::CompiledGrammar;
pub(crate) use compiler::GrammarCompiler;
pub(crate) use constraint::Grammar;
pub(crate) use error::GrammarError;
pub(crate) use matcher::{GrammarMatcher, MaskError, MaskStop};
