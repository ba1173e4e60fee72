//! Keeps the grammars of earlier requests, so that later requests with the same grammar do not compile it again.
//! Compiled grammars are kept up to a limit in bytes; of refused grammars only the errors are kept.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::GrammarError;
use super::compiled::{Compiled, CompiledGrammar};
use super::key::GrammarKey;

/// The maximum number of compiled grammars that are kept.
const MAX_COMPILED: usize = 64;

/// The maximum number of refused grammars whose errors are kept.
const MAX_REFUSED: usize = 1024;

/// A grammar that took too long to compile is refused for this long and then tried again, because the machine may just
/// have been busy.
const MAX_LATE: Duration = Duration::from_secs(60);

/// Compiled grammars that together take at most this many bytes are kept even if unused.
const MAX_IDLE_BYTES: usize = 1 << 20;

/// While the compiled grammars take more than [`MAX_IDLE_BYTES`], those that were not used for this long are removed,
/// the longest unused first.
pub(super) const MAX_IDLE: Duration = Duration::from_secs(10);

/// The kept grammars: compiled ones, the last used first, and refused ones, the last refused first.
#[derive(Debug)]
pub(super) struct KeptGrammars {
    max_bytes: usize,
    compiled: VecDeque<Kept>,
    refused: VecDeque<Refused>,
}

#[derive(Debug)]
struct Kept {
    key: GrammarKey,
    compiled: CompiledGrammar,
    used_at: Instant,
}

#[derive(Debug)]
struct Refused {
    key: GrammarKey,
    error: GrammarError,
    until: Option<Instant>,
}

impl KeptGrammars {
    /// Creates a store for at most `max_bytes` of compiled grammars.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, compiled: VecDeque::new(), refused: VecDeque::new() }
    }

    pub(super) fn find(&mut self, key: GrammarKey) -> Option<Compiled> {
        let now = Instant::now();
        if let Some(place) = self.compiled.iter().position(|kept| kept.key == key) {
            let found = self.compiled.remove(place)?;
            let compiled = found.compiled.clone();
            self.compiled.push_front(Kept { used_at: now, ..found });
            return Some(Ok(compiled));
        }
        let refused = self.refused.iter().find(|refused| refused.key == key)?;
        refused.until.is_none_or(|until| now < until).then(|| Err(refused.error.clone()))
    }

    pub(super) fn keep(&mut self, key: GrammarKey, compiled: Compiled) {
        match compiled {
            Ok(compiled) => {
                self.compiled.push_front(Kept { key, compiled, used_at: Instant::now() });
                while self.compiled.len() > MAX_COMPILED || self.num_bytes() > self.max_bytes {
                    self.compiled.pop_back();
                }
            }
            Err(error) => self.refuse(key, error, None),
        }
    }

    /// While the compiled grammars take more than [`MAX_IDLE_BYTES`], removes those that were not used for
    /// [`MAX_IDLE`], the longest unused first. Returns true if the rest still takes more.
    pub(super) fn forget_idle(&mut self, now: Instant) -> bool {
        let is_idle = |kept: &Kept| now.saturating_duration_since(kept.used_at) >= MAX_IDLE;
        while self.has_too_much() && self.compiled.back().is_some_and(is_idle) {
            self.compiled.pop_back();
        }
        self.has_too_much()
    }

    /// True if the compiled grammars take more than [`MAX_IDLE_BYTES`].
    pub(super) fn has_too_much(&self) -> bool {
        self.num_bytes() > MAX_IDLE_BYTES
    }

    fn num_bytes(&self) -> usize {
        self.compiled.iter().map(|kept| kept.compiled.num_bytes()).sum()
    }

    /// Keeps for [`MAX_LATE`] the error of a grammar that took too long to compile.
    pub(super) fn keep_late(&mut self, key: GrammarKey, error: GrammarError) {
        self.refuse(key, error, Some(Instant::now() + MAX_LATE));
    }

    fn refuse(&mut self, key: GrammarKey, error: GrammarError, until: Option<Instant>) {
        self.refused.retain(|refused| refused.key != key);
        self.refused.truncate(MAX_REFUSED - 1);
        self.refused.push_front(Refused { key, error, until });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::grammar::Grammar;
    use crate::grammar::key::GrammarKeys;
    use crate::grammar::tests::compiler;

    #[tokio::test]
    async fn many_bytes_that_nobody_uses_are_forgotten() {
        let grammar = |number: usize| Grammar::Regex(format!("{number}[a-z]+"));
        let compiled = compiler().0.compile(&Arc::new(grammar(0))).await.unwrap();
        let (keys, mut kept) = (GrammarKeys::default(), KeptGrammars::new(usize::MAX));
        let key = |number: usize| keys.of(&grammar(number));
        // Together the copies take more than `MAX_IDLE_BYTES`, because the bytes of the grammar are counted for each
        // copy.
        let count = MAX_IDLE_BYTES / compiled.num_bytes() + 2;
        assert!(count <= MAX_COMPILED, "{count}");
        (0..count).for_each(|number| kept.keep(key(number), Ok(compiled.clone())));
        let now = Instant::now();
        assert!(kept.forget_idle(now), "they have just been used");
        assert!(kept.find(key(0)).is_some());
        assert!(!kept.forget_idle(now + 2 * MAX_IDLE));
        assert!(kept.find(key(1)).is_none() && kept.find(key(0)).is_some(), "the one used last stays");
    }
}
