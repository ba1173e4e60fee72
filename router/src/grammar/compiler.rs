//! From a grammar to something that can be followed: compiled on threads of its own, bounded in time and size, and kept for
//! the next request that asks for the same.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use llguidance::api::ParserLimits;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use rustix::thread::gettid;
use tokio::sync::{Semaphore, oneshot};

use super::key::{GrammarKey, GrammarKeys};
use super::matcher::GrammarMatcher;
use super::{Grammar, GrammarError, limits};
use crate::aside::{NICENESS, lower_priority, num_turns};
use crate::text::{TokenBytes, Tokenizer};

/// Compiled grammars that are kept.
const MAX_KEPT: usize = 64;

/// Longest wait for a turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(20);

/// Most grammars are compiled by then.
const PROMPT_TIME: Duration = Duration::from_millis(50);

/// Niceness of a thread that compiles for longer: it gets what others leave.
const LATE_NICENESS: i32 = 19;

/// Stack of a thread that compiles: `llguidance` goes down once for each property of an object. Only what is used is memory.
const STACK_BYTES: usize = 256 << 20;

/// A grammar is ready by then or refused. `llguidance` counts its own steps and gives up in less, as a rule.
const COMPILE_TIMEOUT: Duration = Duration::from_millis(1500);

/// Compiles grammars for one model.
#[derive(Debug)]
pub(crate) struct GrammarCompiler {
    shared: Arc<Shared>,
    compiling: Arc<Semaphore>,
}

/// What becomes of a grammar.
type Compiled = Result<CompiledGrammar, GrammarError>;

/// A grammar that sequences can follow.
#[derive(Clone)]
pub(crate) struct CompiledGrammar {
    /// At the beginning.
    matcher: Arc<GrammarMatcher>,
    first_mask: Arc<Vec<u8>>,
}

struct Shared {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    eos_token_ids: Vec<u32>,
    /// Made when the first grammar comes: it takes a moment with a large vocabulary.
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
    /// What became of grammars; the one used last is in front.
    kept: Mutex<VecDeque<(GrammarKey, Compiled)>>,
    keys: GrammarKeys,
}

impl GrammarCompiler {
    /// For a model with `vocab_size` token ids, of which some end a sequence.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, vocab_size: u32, eos_token_ids: Vec<u32>) -> Self {
        let (factory, kept, keys) = (OnceLock::new(), Mutex::default(), GrammarKeys::default());
        let shared = Shared { tokenizer, vocab_size: vocab_size as usize, eos_token_ids, factory, kept, keys };
        Self { shared: Arc::new(shared), compiling: Arc::new(Semaphore::new(num_turns())) }
    }

    /// Makes a grammar ready to be followed.
    ///
    /// # Errors
    /// When it is wrong, too large, or allows nothing at all, or too many others are compiled.
    pub(crate) async fn compile(&self, grammar: &Arc<Grammar>) -> Compiled {
        limits::check(grammar)?;
        let key = self.shared.keys.of(grammar);
        if let Some(compiled) = self.shared.find(key) {
            return compiled;
        }
        let (shared, compiling, grammar) = (Arc::clone(&self.shared), Arc::clone(&self.compiling), Arc::clone(grammar));
        let turn = tokio::time::timeout(TURN_TIMEOUT, compiling.acquire_owned()).await;
        let Ok(Ok(permit)) = turn else { return Err(GrammarError::Busy) };
        let (started_tx, started_rx) = oneshot::channel();
        let (compiled_tx, mut compiled_rx) = oneshot::channel();
        let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
        let work = thread.spawn(move || {
            lower_priority(None, NICENESS);
            let _ = started_tx.send(gettid());
            let _ = compiled_tx.send(shared.find(key).unwrap_or_else(|| shared.compile(key, &grammar)));
            // Not before: those who have stopped waiting are no reason to begin the next.
            drop(permit);
        });
        work.map_err(|_| GrammarError::Busy)?;
        let thread_id = started_rx.await.map_err(|_| defect())?;
        if let Ok(compiled) = tokio::time::timeout(PROMPT_TIME, &mut compiled_rx).await {
            return compiled.unwrap_or_else(|_| Err(defect()));
        }
        lower_priority(Some(thread_id), LATE_NICENESS);
        match tokio::time::timeout(COMPILE_TIMEOUT - PROMPT_TIME, compiled_rx).await {
            Ok(compiled) => compiled.unwrap_or_else(|_| Err(defect())),
            Err(_) => Err(GrammarError::Invalid(format!("it is not compiled after {COMPILE_TIMEOUT:?}"))),
        }
    }
}

impl CompiledGrammar {
    /// For a new sequence: the way through the grammar, and the mask of the first token.
    pub(crate) fn begin(&self) -> (GrammarMatcher, Vec<u8>) {
        (self.matcher.duplicate(), Vec::clone(&self.first_mask))
    }
}

impl std::fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompiledGrammar").finish_non_exhaustive()
    }
}

impl PartialEq for CompiledGrammar {
    /// Whether both are the same one.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.matcher, &other.matcher)
    }
}

impl Shared {
    fn find(&self, key: GrammarKey) -> Option<Compiled> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let place = kept.iter().position(|(other, _)| *other == key)?;
        let found = kept.remove(place)?;
        let compiled = found.1.clone();
        kept.push_front(found);
        Some(compiled)
    }

    fn compile(&self, key: GrammarKey, grammar: &Grammar) -> Compiled {
        let compiled = self.compile_new(grammar);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(MAX_KEPT - 1);
        kept.push_front((key, compiled.clone()));
        compiled
    }

    fn compile_new(&self, grammar: &Grammar) -> Compiled {
        let source = grammar.source()?;
        let factory = self.factory.get_or_init(|| self.factory()).as_ref().map_err(Clone::clone)?;
        let parser = factory.create_parser(source).map_err(|error| GrammarError::Invalid(message(&error)))?;
        let mut matcher = GrammarMatcher::new(Matcher::new(Ok(parser)), self.vocab_size);
        let first_mask = matcher.mask().map_err(|error| GrammarError::Invalid(error.to_string()))?;
        Ok(CompiledGrammar { matcher: Arc::new(matcher), first_mask: Arc::new(first_mask) })
    }

    /// What all grammars of the model have in common: its vocabulary.
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
        *factory.limits_mut() = ParserLimits { verbose_errors: false, ..ParserLimits::default() };
        Ok(factory)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
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

/// An error with its reasons.
fn message(error: &impl std::fmt::Display) -> String {
    one_line(&format!("{error:#}"))
}

/// A text in one line that is not too long for a client, without what `llguidance` adds for its own developers.
pub(super) fn one_line(text: &str) -> String {
    let notes = ["<backtrace>", "<non-verbose/>", "<state>"].into_iter().filter_map(|note| text.find(note));
    let text = &text[..notes.min().unwrap_or(text.len())];
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(400).collect()
}

fn defect() -> GrammarError {
    GrammarError::Invalid("compiling it met a defect of this server".to_owned())
}
