//! Compiles a grammar in steps, and checks between the steps if anybody still waits for the grammar.
//!
//! Entry point: [`GrammarBuilder`].

use std::sync::{Arc, OnceLock};

use llguidance::ParserFactory;
use llguidance::api::{GrammarInit, ParserLimits};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use super::compiled::{Compiled, CompiledGrammar};
use super::error::one_line;
use super::held::MatcherBytes;
use super::matcher::GrammarMatcher;
use super::stop::BuildStop;
use super::{Grammar, GrammarError, effort};
use crate::text::{TokenBytes, Tokenizer};

/// The maximum number of Earley items (positions inside rules) that the parser of a sequence may follow at once. It is
/// enough for an object with as many optional properties as `limits` allows.
const MAX_ITEMS_IN_ROW: usize = 6000;

/// The maximum number of symbols in a grammar, because `llguidance` numbers symbols with 16 bits.
const MAX_SYMBOLS: usize = 60_000;

/// The maximum number of states of the automata for a grammar's terminals.
const MAX_STATES: usize = 50_000;

/// Compiles the grammars of one model.
pub(super) struct GrammarBuilder {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    eos_token_ids: Vec<u32>,
    /// Created for the first grammar and not at the start, because this takes a moment with a large vocabulary.
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
    bytes: MatcherBytes,
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

    /// Compiles a grammar.
    ///
    /// # Errors
    /// When the grammar is invalid, too large, or allows no text at all, when the model has no end-of-sequence token,
    /// or when `stop` was used.
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
        // Sequences start with copies of this matcher, so nothing may stop it any more.
        stop.set_mask(None)?;
        let compiled = CompiledGrammar::new(matcher, first_mask, self.bytes.clone());
        compiled.try_out(stop)?;
        Ok(compiled)
    }

    /// Creates `llguidance`'s factory of parsers, which has the model's vocabulary and the limits. All grammars share
    /// it.
    fn factory(&self) -> Result<ParserFactory, GrammarError> {
        let eos_token_ids: Vec<u32> =
            self.eos_token_ids.iter().copied().filter(|id| (*id as usize) < self.vocab_size).collect();
        let Some(&eos) = eos_token_ids.first() else { return Err(GrammarError::NoEos) };
        let vocab_size = u32::try_from(self.vocab_size).map_err(|_| defect())?;
        let tokens = self.tokenizer.token_bytes().into_iter().zip(0..);
        let mut words: Vec<Vec<u8>> = tokens.map(|(token, id)| word(token, eos_token_ids.contains(&id))).collect();
        // The model may have more or fewer ids than the tokenizer.
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

/// Returns a token in `llguidance`'s form: a marker byte that no text contains, and then the markup of a special token
/// or the bytes of an end-of-sequence token. Other tokens have no marker.
fn word(token: TokenBytes, is_eos: bool) -> Vec<u8> {
    let marked = |markup: &[u8]| [&[TokTrie::SPECIAL_TOKEN_MARKER], markup].concat();
    match token {
        TokenBytes::Text(bytes) if is_eos => marked(&bytes),
        TokenBytes::Text(bytes) => bytes,
        TokenBytes::Special(markup) => marked(markup.as_bytes()),
        TokenBytes::Unused => Vec::new(),
    }
}

/// Returns an error's message with its causes. The message of a panic is replaced, because it means nothing to a
/// client.
fn message(error: &dyn std::fmt::Display) -> String {
    let text = format!("{error:#}");
    if text.contains("panic: ") {
        tracing::debug!("a grammar made llguidance panic: {}", one_line(&text));
        return "it is beyond what this server can compile".to_owned();
    }
    one_line(&text)
}

pub(super) fn defect() -> GrammarError {
    GrammarError::Invalid("compiling it failed because of a defect of this server".to_owned())
}
