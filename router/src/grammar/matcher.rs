//! A sequence on its way through a grammar.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, TokenParser};
use rustix::time::{ClockId, clock_gettime};

use super::held::{HeldBytes, HoldError, MatcherBytes};

/// What `llguidance` calls it that no token can follow.
const NOTHING_FOLLOWS: &str = "NoExtensionBias";

/// A mask that took more of a processor's time is slow; most take a tenth of it.
const SLOW_MASK: Duration = Duration::from_millis(1);

/// Bytes of a matcher beside the states of its terminals.
const BASE_BYTES: usize = 64 << 10;

/// Why there is no mask for the next token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MaskError {
    /// The text so far cannot be gone on with.
    #[error("the grammar allows no token here")]
    DeadEnd,
    /// It takes too long to find out.
    #[error("the grammar cannot be followed: it takes too long to find out which tokens may come next")]
    TooSlow,
    /// It takes too much memory to find out.
    #[error("the grammar cannot be followed: it takes too much memory to find out which tokens may come next")]
    TooLarge,
    /// Nobody could follow it, or not from here.
    #[error("the grammar cannot be followed: {0}")]
    Failed(String),
    /// The server's own fault.
    #[error("the grammar cannot be followed: a defect of this server")]
    Defect,
}

/// Where a sequence is in its grammar.
pub(crate) struct GrammarMatcher {
    parser: TokenParser,
    stop: CancellationHandle,
    vocab_size: usize,
    held: HeldBytes,
    is_slow: bool,
}

/// Ends the work on a mask from another thread.
#[derive(Debug, Clone)]
pub(crate) struct MaskStop(CancellationHandle);

impl MaskStop {
    /// The matcher is of no use then.
    pub(crate) fn stop(&self) {
        self.0.cancel();
    }
}

impl GrammarMatcher {
    /// At the beginning of a grammar.
    ///
    /// # Errors
    /// When it takes too much memory.
    pub(super) fn new(mut parser: TokenParser, vocab_size: usize, all: &MatcherBytes) -> Result<Self, MaskError> {
        if parser.is_fresh() {
            parser.start_without_prompt();
        }
        let (stop, held) = (parser.enable_cancellation(), all.hold(num_bytes(&parser))?);
        Ok(Self { parser, stop, vocab_size, held, is_slow: false })
    }

    /// Takes a token that was made, and answers which ones may follow it: bit i % 8 of byte i / 8 for token i.
    ///
    /// # Errors
    /// When none may, or the grammar is too hard to follow here. The matcher is of no use then.
    pub(crate) fn advance(&mut self, token_id: u32) -> Result<Vec<u8>, MaskError> {
        let before = processor_time();
        let mask = self.consume(token_id).and_then(|()| self.mask());
        self.is_slow = processor_time().saturating_sub(before) > SLOW_MASK;
        mask
    }

    /// Which tokens may come next. At the end of the grammar only those that end the sequence.
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

    /// Returns whether its last mask took long: no step is to wait for the next one.
    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// For who watches how long a mask takes.
    pub(crate) fn stop(&self) -> MaskStop {
        MaskStop(self.stop.clone())
    }

    /// The same place in the same grammar, for another sequence.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub(super) fn duplicate(&self, all: &MatcherBytes) -> Result<Self, HoldError> {
        let held = all.hold(self.num_bytes())?;
        let mut parser = self.parser.deep_clone();
        let stop = parser.enable_cancellation();
        Ok(Self { parser, stop, vocab_size: self.vocab_size, held, is_slow: self.is_slow })
    }

    /// A token that a mask allows and that does not end the sequence.
    pub(super) fn some_token(&self, mask: &[u8]) -> Option<u32> {
        let eos = self.parser.token_env.tok_trie().eos_tokens();
        let ids = (0..)
            .zip(mask)
            .flat_map(|(place, byte)| (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| place * 8 + bit));
        ids.into_iter().find(|id| !eos.contains(id))
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

    /// Does some of the work, and counts the memory. A panic costs the request whose grammar met it.
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
            message => MaskError::Failed(super::build::one_line(&message)),
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

/// The bytes of a parser: `llguidance` counts the tables of its terminals, without the room that hash tables keep free and
/// without the set of terminals that each state has.
fn num_bytes(parser: &TokenParser) -> usize {
    let stats = parser.parser.lexer_stats();
    BASE_BYTES + 2 * stats.num_bytes + stats.num_states * stats.num_regexps.div_ceil(8)
}

/// The time that this thread has had of a processor.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
