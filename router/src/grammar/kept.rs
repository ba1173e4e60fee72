//! The grammars of earlier requests, for the next one that asks for the same: those that can be followed, within a number of
//! bytes, and those that were refused, so that each costs its work once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::GrammarError;
use super::compiler::{Compiled, CompiledGrammar};
use super::key::GrammarKey;

/// Compiled grammars that are kept.
const MAX_COMPILED: usize = 64;

/// Refused grammars that are known.
const MAX_REFUSED: usize = 1024;

/// For so long a grammar is refused that took too much time; it may have been the machine's fault.
const MAX_LATE: Duration = Duration::from_secs(60);

/// The ones used last are in front.
#[derive(Debug)]
pub(super) struct KeptGrammars {
    max_bytes: usize,
    compiled: VecDeque<(GrammarKey, CompiledGrammar)>,
    refused: VecDeque<Refused>,
}

#[derive(Debug)]
struct Refused {
    key: GrammarKey,
    error: GrammarError,
    until: Option<Instant>,
}

impl KeptGrammars {
    /// At most `max_bytes` of compiled grammars.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, compiled: VecDeque::new(), refused: VecDeque::new() }
    }

    pub(super) fn find(&mut self, key: GrammarKey) -> Option<Compiled> {
        if let Some(place) = self.compiled.iter().position(|(other, _)| *other == key) {
            let found = self.compiled.remove(place)?;
            let compiled = found.1.clone();
            self.compiled.push_front(found);
            return Some(Ok(compiled));
        }
        let now = Instant::now();
        let refused = self.refused.iter().find(|refused| refused.key == key)?;
        refused.until.is_none_or(|until| now < until).then(|| Err(refused.error.clone()))
    }

    pub(super) fn keep(&mut self, key: GrammarKey, compiled: Compiled) {
        match compiled {
            Ok(compiled) => {
                self.compiled.push_front((key, compiled));
                let num_bytes = |grammars: &VecDeque<(GrammarKey, CompiledGrammar)>| -> usize {
                    grammars.iter().map(|(_, grammar)| grammar.num_bytes()).sum()
                };
                while self.compiled.len() > MAX_COMPILED || num_bytes(&self.compiled) > self.max_bytes {
                    self.compiled.pop_back();
                }
            }
            Err(error) => self.refuse(key, error, None),
        }
    }

    /// Remembers a grammar that took too long.
    pub(super) fn keep_late(&mut self, key: GrammarKey, error: GrammarError) {
        self.refuse(key, error, Some(Instant::now() + MAX_LATE));
    }

    fn refuse(&mut self, key: GrammarKey, error: GrammarError, until: Option<Instant>) {
        self.refused.retain(|refused| refused.key != key);
        self.refused.truncate(MAX_REFUSED - 1);
        self.refused.push_front(Refused { key, error, until });
    }
}
