//! Compiles grammars on threads of their own, with limits of time and size, and keeps them for later requests with the
//! same grammar.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::gettid;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::build::{GrammarBuilder, defect};
use super::compiled::Compiled;
use super::kept::{KeptGrammars, MAX_IDLE};
use super::key::{GrammarKey, GrammarKeys};
use super::stop::BuildStop;
use super::trial::Trials;
use super::{Grammar, GrammarError, LATE_NICENESS, PROMPT_TIME, limits, risk};
use crate::aside::{NICENESS, lower_priority, num_turns};
use crate::text::Tokenizer;

/// The maximum time that a request waits until its grammar may be compiled.
const TURN_TIMEOUT: Duration = Duration::from_secs(20);

/// The stack of a compiling thread, in bytes: `llguidance` recurses once for each property of an object. Only pages
/// that are touched take memory.
const STACK_BYTES: usize = 256 << 20;

/// The time after which a build is stopped and its grammar is refused. The cost of grammars is limited before the
/// build, so builds take this long mainly on busy machines.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(10);

/// Compiles grammars for one model.
#[derive(Debug)]
pub(crate) struct GrammarCompiler {
    shared: Arc<Shared>,
    lanes: Lanes,
}

/// The permits to compile grammars of each kind. They are separate so that a kind that may take long does not delay
/// another one.
#[derive(Debug)]
struct Lanes {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// For grammars that need a trial.
    risky: Arc<Semaphore>,
}

#[derive(Debug)]
struct Shared {
    builder: GrammarBuilder,
    kept: Mutex<KeptGrammars>,
    /// True while a task runs that removes unused grammars from `kept`.
    is_forgetting: AtomicBool,
    keys: GrammarKeys,
}

/// Stops a build when this is dropped, which happens when nobody waits for the build any more.
struct StopOnDrop(Arc<BuildStop>);

/// A build that has begun: its thread, the channel for its outcome, and the handle that stops it.
struct Begun {
    thread_id: Pid,
    compiled_rx: oneshot::Receiver<Compiled>,
    stop: StopOnDrop,
}

impl GrammarCompiler {
    /// Creates the compiler for a model with `vocab_size` token ids. Half of `memory_bytes` is for sequences that
    /// follow grammars, an eighth is for kept grammars, and the rest is for grammars that are being compiled.
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        vocab_size: u32,
        eos_token_ids: Vec<u32>,
        memory_bytes: usize,
    ) -> Self {
        let (of_matchers, of_kept) = (memory_bytes / 2, memory_bytes / 8);
        let trials = Trials::new(memory_bytes - of_matchers - of_kept);
        let builder = GrammarBuilder::new(tokenizer, vocab_size, eos_token_ids, trials, of_matchers);
        let kept = Mutex::new(KeptGrammars::new(of_kept));
        let shared = Shared { builder, kept, is_forgetting: AtomicBool::new(false), keys: GrammarKeys::default() };
        let lane = |num_turns| Arc::new(Semaphore::new(num_turns));
        let lanes = Lanes { small: lane(num_turns()), large: lane(num_turns()), risky: lane(trials.num_turns()) };
        Self { shared: Arc::new(shared), lanes }
    }

    /// Compiles a grammar, or returns a kept one.
    ///
    /// # Errors
    /// When the grammar is invalid, too large, takes too long to compile or allows no text at all, or when too many
    /// other grammars are being compiled.
    pub(crate) async fn compile(&self, grammar: &Arc<Grammar>) -> Compiled {
        let key = self.shared.keys.of(grammar);
        if let Some(compiled) = self.shared.kept().find(key) {
            return compiled;
        }
        limits::check(grammar)?;
        let turn = tokio::time::timeout(TURN_TIMEOUT, self.lanes.of(grammar).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(GrammarError::Busy) };
        // Another request may have compiled the same grammar meanwhile.
        if let Some(compiled) = self.shared.kept().find(key) {
            return compiled;
        }
        let Begun { thread_id, mut compiled_rx, stop } = self.begin(key, Arc::clone(grammar), turn).await?;
        if let Ok(compiled) = tokio::time::timeout(PROMPT_TIME, &mut compiled_rx).await {
            self.shared.forget_later();
            return compiled.unwrap_or_else(|_| Err(defect()));
        }
        lower_priority(Some(thread_id), LATE_NICENESS);
        if let Ok(compiled) = tokio::time::timeout(COMPILE_TIMEOUT - PROMPT_TIME, compiled_rx).await {
            self.shared.forget_later();
            return compiled.unwrap_or_else(|_| Err(defect()));
        }
        drop(stop);
        let error = GrammarError::Invalid(format!("compiling it takes longer than {COMPILE_TIMEOUT:?}; simplify it"));
        self.shared.kept().keep_late(key, error.clone());
        Err(error)
    }

    /// Begins a build on a thread of its own.
    async fn begin(
        &self,
        key: GrammarKey,
        grammar: Arc<Grammar>,
        turn: OwnedSemaphorePermit,
    ) -> Result<Begun, GrammarError> {
        let (started_tx, started_rx) = oneshot::channel();
        let (compiled_tx, compiled_rx) = oneshot::channel();
        let (shared, stop) = (Arc::clone(&self.shared), Arc::new(BuildStop::default()));
        let begun_stop = StopOnDrop(Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
        let work = thread.spawn(move || {
            lower_priority(None, NICENESS);
            let _ = started_tx.send(gettid());
            let _ = compiled_tx.send(shared.compile(key, &grammar, &stop));
            // The permit is held until the build ends, even if the caller has stopped waiting, because otherwise more
            // builds than allowed would run.
            drop(turn);
        });
        work.map_err(|_| GrammarError::Busy)?;
        let thread_id = started_rx.await.map_err(|_| defect())?;
        Ok(Begun { thread_id, compiled_rx, stop: begun_stop })
    }
}

impl Lanes {
    /// Returns the lane of a grammar.
    fn of(&self, grammar: &Grammar) -> Arc<Semaphore> {
        let lane = match (risk::needs_trial(grammar), limits::is_large(grammar)) {
            (true, _) => &self.risky,
            (false, true) => &self.large,
            (false, false) => &self.small,
        };
        Arc::clone(lane)
    }
}

impl Shared {
    fn kept(&self) -> MutexGuard<'_, KeptGrammars> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// If the kept grammars take too much memory, starts a task that removes unused ones, the longest unused first,
    /// until the rest takes little enough. A no-op while such a task runs.
    fn forget_later(self: &Arc<Self>) {
        if !self.kept().has_too_much() || self.is_forgetting.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(MAX_IDLE / 4).await;
                if !shared.kept().forget_idle(Instant::now()) {
                    break;
                }
            }
            shared.is_forgetting.store(false, Ordering::Relaxed);
        });
    }

    fn compile(&self, key: GrammarKey, grammar: &Grammar, stop: &BuildStop) -> Compiled {
        let compiled = self.builder.build(grammar, stop);
        // The outcome of a build that was stopped, or had no child, says nothing about the grammar.
        let is_final = !matches!(compiled, Err(GrammarError::Busy | GrammarError::NoTrial(_)));
        if is_final && !stop.is_stopped() {
            self.kept().keep(key, compiled.clone());
        }
        compiled
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}
