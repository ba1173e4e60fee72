//! The forms of grammars, and their conversion for `llguidance`.

use std::fmt::Write as _;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use super::error::GrammarError;
use super::{closed, schema};

/// The constraint that a text must satisfy.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid under a schema. Its objects have only the members that the schema names, unless the schema
    /// itself allows other members.
    JsonSchema(Value),
    /// The whole text matches a regular expression, in the syntax of the crate `regex`.
    Regex(String),
    /// A context-free grammar in the Lark syntax of `llguidance`.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A Lark grammar of this server, in which [`ANSWER`] stands for the client's grammar.
    Within { lark: String, answer: Box<Self> },
}

/// The name of the client's grammar inside a grammar of this server.
pub(super) const ANSWER: &str = "hilo-answer";

impl Grammar {
    /// Returns the grammar `lark`, in which [`ANSWER`] stands for this grammar.
    pub(super) fn within(self, lark: String) -> Self {
        Self::Within { lark, answer: Box::new(self) }
    }

    /// Converts the grammar to `llguidance`'s form.
    ///
    /// # Errors
    /// When a schema is too large, or a choice lacks texts or has an empty one.
    pub(super) fn source(&self) -> Result<TopLevelGrammar, GrammarError> {
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

/// Returns a Lark grammar that allows exactly one of these texts. The texts form one terminal, because separate rules
/// would all be tried at every token. They are written as JSON strings, which are also Lark strings.
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
