//! Structured output: which tokens may come next, so that a text follows a JSON schema, a regular expression or a grammar.
//!
//! A [`Grammar`] is what a client asks for, in our words. [`GrammarCompiler`] turns it into a [`GrammarMatcher`], one for each
//! sequence, which takes the tokens as they are made and answers with the mask of the next one. Compiling and masking take
//! their time and never happen on an async thread. The grammars themselves are understood by the crate `llguidance`; nothing
//! of it is seen outside this room.

mod build;
mod calls;
mod closed;
mod compiler;
mod effort;
mod held;
mod kept;
mod key;
mod limits;
mod matcher;
mod schema;
mod terminals;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

pub(crate) use calls::{after_thought, calls, calls_or};
pub(crate) use compiler::{CompiledGrammar, GrammarCompiler};
pub(crate) use matcher::{GrammarMatcher, MaskError, MaskStop};

/// What a text must look like.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid under a schema, whose objects have no other members than it names.
    JsonSchema(Value),
    /// All of it matches a regular expression, in the syntax of the crate `regex`.
    Regex(String),
    /// A context-free grammar in the Lark syntax of `llguidance`.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A Lark grammar of ours, in which [`ANSWER`] is one that a client asked for.
    Within { lark: String, answer: Box<Self> },
}

/// The name of a client's grammar within one of ours.
const ANSWER: &str = "hilo-answer";

/// Why a text cannot be made to follow a grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GrammarError {
    /// The grammar is wrong, or too large.
    #[error("{0}")]
    Invalid(String),
    /// Others are being compiled.
    #[error("too many grammars are being compiled")]
    Busy,
    /// Nothing would end the text.
    #[error("the model has no end-of-sequence token, which would end a text that follows a grammar")]
    NoEos,
}

impl Grammar {
    /// The grammar as a part of another.
    fn within(self, lark: String) -> Self {
        Self::Within { lark, answer: Box::new(self) }
    }

    /// Says it to `llguidance`, within limits.
    fn source(&self) -> Result<TopLevelGrammar, GrammarError> {
        Ok(match self {
            Self::JsonObject => TopLevelGrammar::from_json_schema(schema::prepare(json!({ "type": "object" }))),
            Self::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema::prepare(closed::close(schema)?)),
            Self::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Self::Lark(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
            Self::Choice(choices) => TopLevelGrammar::from_lark(choice(choices)?),
            Self::Within { lark, answer } => {
                let mut source = TopLevelGrammar::from_lark(lark.clone());
                let answer = answer.source()?.grammars;
                source.grammars.extend(
                    answer.into_iter().map(|grammar| GrammarWithLexer { name: Some(ANSWER.to_owned()), ..grammar }),
                );
                source
            }
        })
    }
}

/// A grammar of some texts, as one terminal: as many rules would be tried at every token. JSON's strings are Lark's.
fn choice(choices: &[String]) -> Result<String, GrammarError> {
    if choices.is_empty() || choices.iter().any(String::is_empty) {
        return Err(GrammarError::Invalid("a choice must have at least one text, and none may be empty".to_owned()));
    }
    let mut grammar = String::from("start: TEXT\nTEXT: ");
    for (index, text) in choices.iter().enumerate() {
        let separator = if index == 0 { "" } else { " | " };
        let _ = write!(grammar, "{separator}{}", Value::from(text.as_str()));
    }
    Ok(grammar)
}
