//! A compiled grammar, which any number of sequences can follow.

use std::sync::Arc;

use super::GrammarError;
use super::held::MatcherBytes;
use super::matcher::{GrammarMatcher, MaskError};
use super::stop::BuildStop;

/// The maximum number of tokens that are tried before an ordinary grammar is accepted.
const NUM_TRIED: usize = 8;

/// The maximum number of tokens of each text that is tried before a grammar is accepted that needed a trial. The states
/// of nested counts grow with the text.
const NUM_TRIED_OF_RISKY: usize = 64;

/// The seed of texts with random tokens. It is fixed, so that a grammar is always treated alike.
const SEED: u64 = 7;

/// The outcome of compiling a grammar.
pub(super) type Compiled = Result<CompiledGrammar, GrammarError>;

/// The tokens that a mask allows.
type Tokens<'a> = Box<dyn Iterator<Item = u32> + 'a>;

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

    /// Follows the grammar for some tokens, so that a grammar that cannot be followed is refused before a shard reads
    /// the prompt. A grammar that needed a trial (`is_risky`) is followed along a text of long tokens and one of random
    /// tokens.
    ///
    /// # Errors
    /// When the grammar is too large or too slow to follow. A dead end is not an error here, because the sequence will
    /// report it.
    pub(super) fn try_out(&self, is_risky: bool, stop: &BuildStop) -> Result<(), GrammarError> {
        if !is_risky {
            return self.follow(NUM_TRIED, |_, mut tokens| tokens.next(), stop);
        }
        let longest = |matcher: &GrammarMatcher, tokens: Tokens<'_>| tokens.max_by_key(|id| matcher.num_bytes_of(*id));
        self.follow(NUM_TRIED_OF_RISKY, longest, stop)?;
        let mut random = fastrand::Rng::with_seed(SEED);
        self.follow(NUM_TRIED_OF_RISKY, |_, tokens| random.choice(tokens.collect::<Vec<_>>()), stop)
    }

    /// Follows the grammar for at most `num_tokens` tokens, each chosen among those that are allowed.
    fn follow(
        &self,
        num_tokens: usize,
        mut choose: impl FnMut(&GrammarMatcher, Tokens<'_>) -> Option<u32>,
        stop: &BuildStop,
    ) -> Result<(), GrammarError> {
        let duplicate = self.matcher.duplicate(&MatcherBytes::new(usize::MAX));
        let invalid = |error: MaskError| GrammarError::Invalid(error.to_string());
        let mut matcher = duplicate.map_err(|error| invalid(error.into()))?;
        stop.set_mask(Some(matcher.stop()))?;
        let mut mask = Vec::clone(&self.first_mask);
        for _ in 0..num_tokens {
            stop.check()?;
            let Some(token_id) = choose(&matcher, Box::new(matcher.tokens(&mask))) else { break };
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
