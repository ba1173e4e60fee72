//! A compiled grammar, which any number of sequences can follow.

use std::sync::Arc;

use super::GrammarError;
use super::held::MatcherBytes;
use super::matcher::{GrammarMatcher, MaskError};
use super::stop::BuildStop;

/// The maximum number of tokens that are tried before a grammar is accepted.
const NUM_TRIED: usize = 8;

/// The outcome of compiling a grammar.
pub(super) type Compiled = Result<CompiledGrammar, GrammarError>;

/// A compiled grammar, which sequences can follow.
#[derive(Clone)]
pub(crate) struct CompiledGrammar {
    /// The matcher at the beginning of a text. A sequence gets a copy.
    matcher: Arc<GrammarMatcher>,
    first_mask: Arc<Vec<u8>>,
    bytes: MatcherBytes,
}

impl CompiledGrammar {
    pub(super) fn new(matcher: GrammarMatcher, first_mask: Vec<u8>, bytes: MatcherBytes) -> Self {
        Self { matcher: Arc::new(matcher), first_mask: Arc::new(first_mask), bytes }
    }

    /// Returns the matcher and the first mask for a new sequence.
    ///
    /// # Errors
    /// When other sequences hold all the memory for matchers.
    pub(crate) fn begin(&self) -> Result<(GrammarMatcher, Vec<u8>), GrammarError> {
        let matcher = self.matcher.duplicate(&self.bytes).map_err(|_| GrammarError::Busy)?;
        Ok((matcher, Vec::clone(&self.first_mask)))
    }

    /// Follows the grammar for at most [`NUM_TRIED`] tokens, so that a grammar that cannot be followed is refused
    /// before a shard reads the prompt.
    ///
    /// # Errors
    /// When the grammar is too large or too slow to follow. A dead end is not an error here, because the sequence will
    /// report it.
    pub(super) fn try_out(&self, stop: &BuildStop) -> Result<(), GrammarError> {
        let duplicate = self.matcher.duplicate(&MatcherBytes::new(usize::MAX));
        let invalid = |error: MaskError| GrammarError::Invalid(error.to_string());
        let mut matcher = duplicate.map_err(|error| invalid(error.into()))?;
        stop.set_mask(Some(matcher.stop()))?;
        let mut mask = Vec::clone(&self.first_mask);
        for _ in 0..NUM_TRIED {
            let Some(token_id) = matcher.some_token(&mask) else { break };
            match matcher.advance(token_id) {
                Ok(next) => mask = next,
                Err(MaskError::DeadEnd) => break,
                Err(error) => return Err(invalid(error)),
            }
        }
        Ok(())
    }

    pub(super) fn num_bytes(&self) -> usize {
        self.matcher.num_bytes() + self.first_mask.len()
    }
}

impl std::fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompiledGrammar").finish_non_exhaustive()
    }
}

impl PartialEq for CompiledGrammar {
    /// True if both are clones of one compiled grammar.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.matcher, &other.matcher)
    }
}
