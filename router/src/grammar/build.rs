//! From a grammar to its beginning, in steps: between two of them is asked whether anybody still waits for it.
//!
//! Door: [`GrammarBuilder`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::ParserFactory;
use llguidance::api::{GrammarInit, ParserLimits};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use super::compiler::{Compiled, CompiledGrammar};
use super::held::MatcherBytes;
use super::matcher::{GrammarMatcher, MaskStop};
use super::{Grammar, GrammarError, effort};
use crate::text::{TokenBytes, Tokenizer};

/// Most places in rules where a sequence may be at once: an object of a thousand optional properties has four thousand.
const MAX_ITEMS_IN_ROW: usize = 6000;

/// Most symbols: `llguidance` numbers them with 16 bits.
const MAX_SYMBOLS: usize = 60_000;

/// Most states of the terminals. Each takes a kilobyte or two.
const MAX_STATES: usize = 50_000;

/// Makes grammars of one model ready.
pub(super) struct GrammarBuilder {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    eos_token_ids: Vec<u32>,
    /// Made when the first grammar comes: it takes a moment with a large vocabulary.
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
    bytes: MatcherBytes,
}

/// Stops a build: at once where it looks for the first tokens, elsewhere before its next step.
#[derive(Debug, Default)]
pub(super) struct BuildStop {
    is_stopped: AtomicBool,
    mask: Mutex<Option<MaskStop>>,
}

impl BuildStop {
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        if let Some(mask) = &*self.mask.lock().unwrap_or_else(PoisonError::into_inner) {
            mask.stop();
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// # Errors
    /// When it is to stop; nobody reads the error.
    fn check(&self) -> Result<(), GrammarError> {
        if self.is_stopped() { Err(GrammarError::Busy) } else { Ok(()) }
    }

    /// Names what is worked on now.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(super) fn set_mask(&self, mask: Option<MaskStop>) -> Result<(), GrammarError> {
        *self.mask.lock().unwrap_or_else(PoisonError::into_inner) = mask;
        self.check()
    }
}

impl GrammarBuilder {
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        vocab_size: u32,
        eos_token_ids: Vec<u32>,
        matcher_bytes: usize,
    ) -> Self {
        let (factory, bytes) = (OnceLock::new(), MatcherBytes::new(matcher_bytes));
        Self { tokenizer, vocab_size: vocab_size as usize, eos_token_ids, factory, bytes }
    }

    /// Makes a grammar ready to be followed.
    ///
    /// # Errors
    /// When it is wrong, too large, or allows nothing at all.
    pub(super) fn build(&self, grammar: &Grammar, stop: &BuildStop) -> Compiled {
        let source = grammar.source()?;
        let factory = self.factory.get_or_init(|| self.factory()).as_ref().map_err(Clone::clone)?;
        stop.check()?;
        let invalid = |error: &dyn std::fmt::Display| GrammarError::Invalid(message(error));
        let (env, limits) = (Some(factory.tok_env().clone()), factory.limits().clone());
        let (rules, terminals) =
            GrammarInit::Serialized(source).to_internal(env, limits).map_err(|error| invalid(&error))?;
        stop.check()?;
        effort::check(&terminals).map_err(GrammarError::Invalid)?;
        stop.check()?;
        let parser = factory.create_parser_from_init_default(GrammarInit::Internal(rules, terminals));
        let parser = parser.map_err(|error| invalid(&error))?;
        let mut matcher = GrammarMatcher::new(parser, self.vocab_size, &MatcherBytes::new(usize::MAX))
            .map_err(|error| invalid(&error))?;
        stop.set_mask(Some(matcher.stop()))?;
        let first_mask = matcher.mask().map_err(|error| invalid(&error))?;
        // What sequences begin with is not to be stopped any more.
        stop.set_mask(None)?;
        let compiled = CompiledGrammar::new(matcher, first_mask, self.bytes.clone());
        compiled.try_out(stop)?;
        Ok(compiled)
    }

    /// The part that all grammars of the model share: its vocabulary.
    fn factory(&self) -> Result<ParserFactory, GrammarError> {
        let eos_token_ids: Vec<u32> =
            self.eos_token_ids.iter().copied().filter(|id| (*id as usize) < self.vocab_size).collect();
        let Some(&eos) = eos_token_ids.first() else { return Err(GrammarError::NoEos) };
        let vocab_size = u32::try_from(self.vocab_size).map_err(|_| defect())?;
        let tokens = self.tokenizer.token_bytes().into_iter().zip(0..);
        let mut words: Vec<Vec<u8>> = tokens.map(|(token, id)| word(token, eos_token_ids.contains(&id))).collect();
        // The model may have more ids than the tokenizer, or fewer.
        words.resize(self.vocab_size, Vec::new());
        let trie = TokTrie::from(&TokRxInfo::new(vocab_size, eos), &words).with_eos_tokens(&eos_token_ids);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| GrammarError::Invalid(message(&error)))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            max_items_in_row: MAX_ITEMS_IN_ROW,
            max_grammar_size: MAX_SYMBOLS,
            max_lexer_states: MAX_STATES,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(factory)
    }
}

impl std::fmt::Debug for GrammarBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarBuilder").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

/// A token as `llguidance` wants it: markup stands behind a byte that no text has, and so does what ends a sequence.
fn word(token: TokenBytes, is_eos: bool) -> Vec<u8> {
    let marked = |markup: &[u8]| [&[TokTrie::SPECIAL_TOKEN_MARKER], markup].concat();
    match token {
        TokenBytes::Text(bytes) if is_eos => marked(&bytes),
        TokenBytes::Text(bytes) => bytes,
        TokenBytes::Special(markup) => marked(markup.as_bytes()),
        TokenBytes::Unused => Vec::new(),
    }
}

/// An error with its reasons; the last words of a panic are nobody's reason.
fn message(error: &dyn std::fmt::Display) -> String {
    let text = format!("{error:#}");
    if text.contains("panic: ") {
        tracing::debug!("a grammar made llguidance panic: {}", one_line(&text));
        return "it is beyond what this server can compile".to_owned();
    }
    one_line(&text)
}

/// A text in one line that is not too long for a client, without what `llguidance` adds for its own developers.
pub(super) fn one_line(text: &str) -> String {
    let notes = ["<backtrace>", "<non-verbose/>", "<state>"].into_iter().filter_map(|note| text.find(note));
    let text = &text[..notes.min().unwrap_or(text.len())];
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(400).collect()
}

pub(super) fn defect() -> GrammarError {
    GrammarError::Invalid("compiling it met a defect of this server".to_owned())
}
