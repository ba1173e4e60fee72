//! The state of a sequence in its grammar.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, TokenParser};
use rustix::time::{ClockId, clock_gettime};

use super::held::{HeldBytes, HoldError, MatcherBytes};

/// The name in `llguidance`'s errors for a state that allows no token.
const NOTHING_FOLLOWS: &str = "NoExtensionBias";

/// The processor time above which a mask counts as slow. Most masks take less.
const SLOW_MASK: Duration = Duration::from_millis(1);

/// The estimated bytes of a matcher without the states of its terminals.
const BASE_BYTES: usize = 64 << 10;

/// The reason why there is no mask for the next token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MaskError {
    /// The text so far cannot be continued.
    #[error("the grammar allows no next token")]
    DeadEnd,
    /// The mask takes too long to compute.
    #[error("the grammar is too expensive: the allowed tokens could not be computed in time")]
    TooSlow,
    /// The mask takes too much memory to compute.
    #[error("the grammar is too expensive: computing the allowed tokens needs too much memory")]
    TooLarge,
    /// `llguidance` failed with this message, for example because the token was not allowed.
    #[error("the grammar cannot be followed: {0}")]
    Failed(String),
    /// A defect of the server.
    #[error("the grammar cannot be followed: a defect of this server")]
    Defect,
}

/// The state of a sequence in its grammar.
pub(crate) struct GrammarMatcher {
    parser: TokenParser,
    stop: CancellationHandle,
    vocab_size: usize,
    held: HeldBytes,
    is_slow: bool,
}

/// Stops the computation of a mask from another thread.
#[derive(Debug, Clone)]
pub(crate) struct MaskStop(CancellationHandle);

impl MaskStop {
    /// Stops the computation. The matcher is unusable afterwards.
    pub(crate) fn stop(&self) {
        self.0.cancel();
    }
}

impl GrammarMatcher {
    /// Creates a matcher at the beginning of a grammar.
    ///
    /// # Errors
    /// When the matcher takes too much memory.
    pub(super) fn new(mut parser: TokenParser, vocab_size: usize, all: &MatcherBytes) -> Result<Self, MaskError> {
        if parser.is_fresh() {
            parser.start_without_prompt();
        }
        let (stop, held) = (parser.enable_cancellation(), all.hold(num_bytes(&parser))?);
        Ok(Self { parser, stop, vocab_size, held, is_slow: false })
    }

    /// Takes a token of the sequence and returns the mask of the next one: bit `i % 8` of byte `i / 8` is set if token
    /// `i` is allowed.
    ///
    /// # Errors
    /// When no token is allowed, or the grammar is too hard to follow here. The matcher is unusable then.
    pub(crate) fn advance(&mut self, token_id: u32) -> Result<Vec<u8>, MaskError> {
        let before = processor_time();
        let mask = self.consume(token_id).and_then(|()| self.mask());
        self.is_slow = processor_time().saturating_sub(before) > SLOW_MASK;
        mask
    }

    /// Returns the mask of the next token. At the end of the grammar only end-of-sequence tokens are allowed.
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    pub(super) fn mask(&mut self) -> Result<Vec<u8>, MaskError> {
        let mask = self.guarded(|parser| match parser.stop_reason() {
            StopReason::NotStopped => parser.compute_mask(),
            _ => Ok(parser.token_env.tok_trie().eos_token_set()),
        })?;
        if mask.is_zero() {
            return Err(MaskError::DeadEnd);
        }
        Ok(self.bytes_of(&mask))
    }

    /// True if the last mask took longer than [`SLOW_MASK`], so no step of the model should wait for the next mask.
    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// Returns a handle for stopping a mask that takes too long.
    pub(crate) fn stop(&self) -> MaskStop {
        MaskStop(self.stop.clone())
    }

    /// Returns a copy of the matcher in the same state, for another sequence.
    ///
    /// # Errors
    /// When the copy would exceed the memory limits in `all`.
    pub(super) fn duplicate(&self, all: &MatcherBytes) -> Result<Self, HoldError> {
        let held = all.hold(self.num_bytes())?;
        let mut parser = self.parser.deep_clone();
        let stop = parser.enable_cancellation();
        Ok(Self { parser, stop, vocab_size: self.vocab_size, held, is_slow: self.is_slow })
    }

    /// Returns the tokens that a mask allows and that do not end the sequence.
    pub(super) fn tokens<'a>(&'a self, mask: &'a [u8]) -> impl Iterator<Item = u32> + 'a {
        let eos = self.parser.token_env.tok_trie().eos_tokens();
        let ids = (0..)
            .zip(mask)
            .flat_map(|(place, byte)| (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| place * 8 + bit));
        ids.filter(|id| !eos.contains(id))
    }

    /// Returns the number of bytes of a token's text.
    pub(super) fn num_bytes_of(&self, token_id: u32) -> usize {
        self.parser.token_env.tok_trie().token(token_id).len()
    }

    pub(super) fn num_bytes(&self) -> usize {
        self.held.num_bytes()
    }

    fn consume(&mut self, token_id: u32) -> Result<(), MaskError> {
        self.guarded(|parser| {
            parser.consume_token(token_id)?;
            parser.check_stop().map(drop)
        })
    }

    fn bytes_of(&self, mask: &SimpleVob) -> Vec<u8> {
        let mut bytes = vec![0; self.vocab_size.div_ceil(8)];
        let words = mask.as_slice().iter().flat_map(|word| word.to_le_bytes());
        bytes.iter_mut().zip(words).for_each(|(byte, word)| *byte = word);
        bytes
    }

    /// Runs `work` on the parser, and counts the memory that the parser takes afterwards. A panic becomes an error of
    /// this request only.
    fn guarded<T, E: std::fmt::Display>(
        &mut self,
        work: impl FnOnce(&mut TokenParser) -> Result<T, E>,
    ) -> Result<T, MaskError> {
        let parser = &mut self.parser;
        let result = catch_unwind(AssertUnwindSafe(|| work(parser))).map_err(|_| MaskError::Defect)?;
        if self.stop.is_cancelled() {
            return Err(MaskError::TooSlow);
        }
        self.held.set(num_bytes(&self.parser))?;
        result.map_err(|error| match error.to_string() {
            message if message.contains(NOTHING_FOLLOWS) => MaskError::DeadEnd,
            message => MaskError::Failed(super::error::one_line(&message)),
        })
    }
}

impl std::fmt::Debug for GrammarMatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarMatcher").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

impl From<HoldError> for MaskError {
    fn from(_: HoldError) -> Self {
        Self::TooLarge
    }
}

/// Estimates the bytes of a parser. `llguidance` counts the tables of its terminals, but neither the free space in hash
/// tables, for which the count is doubled, nor the set of terminals of each state, which is added.
fn num_bytes(parser: &TokenParser) -> usize {
    let stats = parser.parser.lexer_stats();
    BASE_BYTES + 2 * stats.num_bytes + stats.num_states * stats.num_regexps.div_ceil(8)
}

/// The processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
