//! A sequence on its way through a grammar.

use std::panic::{AssertUnwindSafe, catch_unwind};

use llguidance::Matcher;

/// What `llguidance` calls it that no token can follow.
const NOTHING_FOLLOWS: &str = "NoExtensionBias";

/// Why there is no mask for the next token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MaskError {
    /// The text so far cannot be gone on with.
    #[error("the grammar allows no token here")]
    DeadEnd,
    /// It takes too long to find out, or a defect.
    #[error("the grammar cannot be followed: {0}")]
    Failed(String),
}

/// Where a sequence is in its grammar.
pub(crate) struct GrammarMatcher {
    matcher: Matcher,
    vocab_size: usize,
}

impl GrammarMatcher {
    pub(super) fn new(matcher: Matcher, vocab_size: usize) -> Self {
        Self { matcher, vocab_size }
    }

    /// Takes a token that was made, and answers which ones may follow it: bit i % 8 of byte i / 8 for token i.
    ///
    /// # Errors
    /// When none may, or the grammar is too hard to follow here. The matcher is of no use then.
    pub(crate) fn advance(&mut self, token_id: u32) -> Result<Vec<u8>, MaskError> {
        guarded(|| self.matcher.consume_token(token_id)).and_then(|()| self.mask())
    }

    /// Which tokens may come next. At the end of the grammar only those that end the sequence.
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    pub(super) fn mask(&mut self) -> Result<Vec<u8>, MaskError> {
        let mask = guarded(|| self.matcher.compute_mask_or_eos())?;
        if mask.is_zero() {
            return Err(MaskError::DeadEnd);
        }
        let mut bytes = vec![0; self.vocab_size.div_ceil(8)];
        let words = mask.as_slice().iter().flat_map(|word| word.to_le_bytes());
        bytes.iter_mut().zip(words).for_each(|(byte, word)| *byte = word);
        Ok(bytes)
    }

    /// The same place in the same grammar, for another sequence.
    pub(super) fn duplicate(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), vocab_size: self.vocab_size }
    }
}

impl std::fmt::Debug for GrammarMatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarMatcher").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

/// A panic costs the request whose grammar met it.
fn guarded<T, E: std::fmt::Display>(work: impl FnOnce() -> Result<T, E>) -> Result<T, MaskError> {
    let result = catch_unwind(AssertUnwindSafe(work)).map_err(|_| MaskError::Failed("a defect".to_owned()))?;
    result.map_err(|error| match error.to_string() {
        message if message.contains(NOTHING_FOLLOWS) => MaskError::DeadEnd,
        message => MaskError::Failed(super::compiler::one_line(&message)),
    })
}
