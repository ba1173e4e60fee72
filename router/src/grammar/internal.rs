//! The first step of a build: `llguidance` reads the grammar and makes the expressions of its terminals, and their work
//! is checked. This step cannot be interrupted. The child process of a trial takes the same step before this process
//! does.
//!
//! Entry points: [`to_internal`], and [`to_internal_or_panic`] for the child; [`token_env`] and [`limits`], which they
//! need.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use super::error::one_line;
use super::{GrammarError, effort};

/// The maximum number of Earley items (positions inside rules) that the parser of a sequence may follow at once. It is
/// enough for an object with as many optional properties as `limits` allows.
const MAX_ITEMS_IN_ROW: usize = 6000;

/// The maximum number of symbols in a grammar, because `llguidance` numbers symbols with 16 bits.
const MAX_SYMBOLS: usize = 60_000;

/// The maximum number of states of the automata for a grammar's terminals.
const MAX_STATES: usize = 50_000;

/// The reason why a grammar is refused that makes `llguidance` panic.
pub(super) const BEYOND: &str = "it is beyond what this server can compile";

/// Converts a grammar to `llguidance`'s internal form, and checks the work of its terminals.
///
/// # Errors
/// When the grammar is invalid or takes too much work, or makes `llguidance` panic.
pub(super) fn to_internal(source: TopLevelGrammar, env: &TokEnv) -> Result<GrammarInit, GrammarError> {
    // The guard of `llguidance` keeps a panic out of the log.
    let internal = catch_unwind(AssertUnwindSafe(|| Ok(to_internal_or_panic(source, env))));
    internal.map_err(|error| GrammarError::Invalid(message(&error)))?
}

/// Does the same as [`to_internal`], but does not catch panics.
pub(super) fn to_internal_or_panic(source: TopLevelGrammar, env: &TokEnv) -> Result<GrammarInit, GrammarError> {
    let internal = GrammarInit::Serialized(source).to_internal(Some(env.clone()), limits());
    let (rules, terminals) = internal.map_err(|error| GrammarError::Invalid(message(&error)))?;
    effort::check(&terminals).map_err(GrammarError::Invalid)?;
    Ok(GrammarInit::Internal(rules, terminals))
}

/// Returns the limits of parsers.
pub(super) fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: MAX_ITEMS_IN_ROW,
        max_grammar_size: MAX_SYMBOLS,
        max_lexer_states: MAX_STATES,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Returns the vocabulary in `llguidance`'s form. `words` has at most `vocab_size` tokens, in the order of their ids;
/// the other tokens have no text.
///
/// # Errors
/// When `eos_token_ids` has no id below `vocab_size`.
pub(super) fn token_env(
    vocab_size: u32,
    eos_token_ids: &[u32],
    mut words: Vec<Vec<u8>>,
) -> Result<TokEnv, GrammarError> {
    let eos_token_ids: Vec<u32> = eos_token_ids.iter().copied().filter(|id| *id < vocab_size).collect();
    let Some(&eos) = eos_token_ids.first() else { return Err(GrammarError::NoEos) };
    words.resize(vocab_size as usize, Vec::new());
    let trie = TokTrie::from(&TokRxInfo::new(vocab_size, eos), &words).with_eos_tokens(&eos_token_ids);
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

/// Returns an error's message with its causes. The message of a panic is replaced, because it means nothing to a
/// client.
pub(super) fn message(error: &dyn std::fmt::Display) -> String {
    let text = format!("{error:#}");
    if text.contains("panic: ") {
        tracing::debug!("a grammar made llguidance panic: {}", one_line(&text));
        return BEYOND.to_owned();
    }
    one_line(&text)
}
