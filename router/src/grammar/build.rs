//! Compiles a grammar in steps, and checks between the steps if anybody still waits for the grammar.
//!
//! Entry point: [`GrammarBuilder`].

use std::sync::{Arc, OnceLock};

use llguidance::ParserFactory;
use llguidance::toktrie::{InferenceCapabilities, TokTrie};

use super::compiled::{Compiled, CompiledGrammar};
use super::held::MatcherBytes;
use super::internal::{limits, message, to_internal, token_env};
use super::matcher::GrammarMatcher;
use super::stop::BuildStop;
use super::trial::{NamedTokens, Trials};
use super::{Grammar, GrammarError, risk};
use crate::text::{TokenBytes, Tokenizer};

/// Compiles the grammars of one model.
pub(super) struct GrammarBuilder {
    tokenizer: Arc<Tokenizer>,
    vocab_size: u32,
    eos_token_ids: Vec<u32>,
    trials: Trials,
    /// Created for the first trial.
    named_tokens: OnceLock<NamedTokens>,
    /// Created for the first grammar and not at the start, because this takes a moment with a large vocabulary.
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
    bytes: MatcherBytes,
}

impl GrammarBuilder {
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        vocab_size: u32,
        eos_token_ids: Vec<u32>,
        trials: Trials,
        matcher_bytes: usize,
    ) -> Self {
        let (named_tokens, factory, bytes) = (OnceLock::new(), OnceLock::new(), MatcherBytes::new(matcher_bytes));
        Self { tokenizer, vocab_size, eos_token_ids, trials, named_tokens, factory, bytes }
    }

    /// Compiles a grammar, after a trial if it needs one.
    ///
    /// # Errors
    /// When the grammar is invalid, too large, or allows no text at all, when the model has no end-of-sequence token,
    /// when the trial fails, or when `stop` was used.
    pub(super) fn build(&self, grammar: &Grammar, stop: &BuildStop) -> Compiled {
        let source = grammar.source()?;
        let is_risky = risk::needs_trial(grammar);
        if is_risky {
            let tokens = self.named_tokens.get_or_init(|| self.named_tokens());
            self.trials.run(&source, tokens, stop)?;
        }
        let factory = self.factory.get_or_init(|| self.factory()).as_ref().map_err(Clone::clone)?;
        stop.check()?;
        let invalid = |error: &dyn std::fmt::Display| GrammarError::Invalid(message(error));
        let internal = to_internal(source, factory.tok_env())?;
        stop.check()?;
        let parser = factory.create_parser_from_init_default(internal).map_err(|error| invalid(&error))?;
        let mut matcher = GrammarMatcher::new(parser, self.vocab_size as usize, &MatcherBytes::new(usize::MAX))
            .map_err(|error| invalid(&error))?;
        stop.set_mask(Some(matcher.stop()))?;
        let first_mask = matcher.mask().map_err(|error| invalid(&error))?;
        // Sequences start with copies of this matcher, so nothing may stop it any more.
        stop.set_mask(None)?;
        let compiled = CompiledGrammar::new(matcher, first_mask, self.bytes.clone());
        compiled.try_out(is_risky, stop)?;
        Ok(compiled)
    }

    /// Creates `llguidance`'s factory of parsers, which has the model's vocabulary and the limits. All grammars share
    /// it.
    fn factory(&self) -> Result<ParserFactory, GrammarError> {
        let env = token_env(self.vocab_size, &self.eos_token_ids, self.words().collect())?;
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| GrammarError::Invalid(message(&error)))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(factory)
    }

    /// Returns the model's tokens in `llguidance`'s form.
    fn words(&self) -> impl Iterator<Item = Vec<u8>> {
        let tokens = self.tokenizer.token_bytes().into_iter().zip(0..self.vocab_size);
        tokens.map(|(token, id)| word(token, self.eos_token_ids.contains(&id)))
    }

    fn named_tokens(&self) -> NamedTokens {
        let is_special = |word: &[u8]| word.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER);
        let special = (0..).zip(self.words()).filter(|(_, word)| is_special(word)).collect();
        NamedTokens { vocab_size: self.vocab_size, eos_token_ids: self.eos_token_ids.clone(), special }
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

pub(super) fn defect() -> GrammarError {
    GrammarError::Invalid("compiling it failed because of a defect of this server".to_owned())
}
