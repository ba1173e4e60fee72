//! Structured output: masks of allowed tokens, which make a text follow a JSON schema, a regular expression or a
//! grammar.
//!
//! A [`Grammar`] is a client's constraint, independent of the API. [`GrammarCompiler`] compiles it; each sequence then
//! has a [`GrammarMatcher`], which takes the sequence's tokens and returns the mask of the next one. Compiling and
//! masking may be slow and never run on an async thread. Grammars that could take any amount of time or memory are
//! first compiled in a child process (`trial`). The crate `llguidance` parses the grammars; its types stay inside this
//! folder.

mod build;
mod calls;
mod closed;
mod compiled;
mod compiler;
mod constraint;
mod effort;
mod error;
mod held;
mod internal;
mod intersections;
mod kept;
mod key;
mod keywords;
mod limits;
mod matcher;
mod risk;
mod schema;
mod stop;
mod terminals;
#[cfg(test)]
mod tests;
mod trial;

use std::time::Duration;

pub(crate) use calls::{after_thought, calls, calls_or};
pub(crate) use compiled::CompiledGrammar;
pub(crate) use compiler::GrammarCompiler;
pub(crate) use constraint::Grammar;
pub(crate) use error::GrammarError;
pub(crate) use matcher::{GrammarMatcher, MaskError, MaskStop};
pub use trial::{GrammarTrialArgs, try_grammar_as_process};

/// The time in which most grammars are compiled. The priority of a build that takes longer is lowered further.
const PROMPT_TIME: Duration = Duration::from_millis(50);

/// The niceness of a thread that compiles for longer than [`PROMPT_TIME`], so that it hardly delays other threads.
const LATE_NICENESS: i32 = 15;
