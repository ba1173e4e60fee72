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
use super::{Grammar, GrammarError, limits};
use crate::aside::{NICENESS, lower_priority, num_turns};
use crate::text::Tokenizer;

/// The number of lanes of compilation: small grammars and large ones.
const NUM_LANES: usize = 2;

/// The longest wait for a turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(20);

/// The time in which most grammars are compiled.
const PROMPT_TIME: Duration = Duration::from_millis(50);

/// The niceness of a thread that compiles for longer, so that it only uses idle time.
const LATE_NICENESS: i32 = 15;

/// The stack of a compiling thread, in bytes: `llguidance` recurses once for each property of an object. Only used
/// pages take memory.
const STACK_BYTES: usize = 256 << 20;

/// The time after which a grammar is refused. Its cost is limited before, so this is for busy machines.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(10);

/// Compiles grammars for one model.
#[derive(Debug)]
pub(crate) struct GrammarCompiler {
    shared: Arc<Shared>,
    /// The turns of small grammars, and those of large grammars, which do not delay small ones.
    lanes: [Arc<Semaphore>; NUM_LANES],
}

#[derive(Debug)]
struct Shared {
    builder: GrammarBuilder,
    kept: Mutex<KeptGrammars>,
    /// True while a task waits to forget kept grammars.
    is_forgetting: AtomicBool,
    keys: GrammarKeys,
}

/// Stops the build when nobody waits for it any more.
struct StopOnDrop(Arc<BuildStop>);

/// A build that has begun.
struct Begun {
    thread_id: Pid,
    compiled_rx: oneshot::Receiver<Compiled>,
    stop: StopOnDrop,
}

impl GrammarCompiler {
    /// Creates the compiler for a model with `vocab_size` token ids. Half of the memory is for sequences, an eighth for
    /// kept grammars, and the rest for grammars that are being compiled.
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        vocab_size: u32,
        eos_token_ids: Vec<u32>,
        memory_bytes: usize,
    ) -> Self {
        let builder = GrammarBuilder::new(tokenizer, vocab_size, eos_token_ids, memory_bytes / 2);
        let kept = Mutex::new(KeptGrammars::new(memory_bytes / 8));
        let shared = Shared { builder, kept, is_forgetting: AtomicBool::new(false), keys: GrammarKeys::default() };
        let lanes = std::array::from_fn(|_| Arc::new(Semaphore::new(num_turns())));
        Self { shared: Arc::new(shared), lanes }
    }

    /// Compiles a grammar, or returns a kept one.
    ///
    /// # Errors
    /// When the grammar is invalid, too large, or allows no text at all, or too many others are being compiled.
    pub(crate) async fn compile(&self, grammar: &Arc<Grammar>) -> Compiled {
        let key = self.shared.keys.of(grammar);
        if let Some(compiled) = self.shared.kept().find(key) {
            return compiled;
        }
        limits::check(grammar)?;
        let lane = Arc::clone(&self.lanes[usize::from(limits::is_large(grammar))]);
        let turn = tokio::time::timeout(TURN_TIMEOUT, lane.acquire_owned()).await;
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
            // The turn ends with the build, even if the caller has stopped waiting: otherwise more builds than allowed
            // would run.
            drop(turn);
        });
        work.map_err(|_| GrammarError::Busy)?;
        let thread_id = started_rx.await.map_err(|_| defect())?;
        Ok(Begun { thread_id, compiled_rx, stop: begun_stop })
    }
}

impl Shared {
    fn kept(&self) -> MutexGuard<'_, KeptGrammars> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a task that forgets large grammars when they have not been used for a while.
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
        // The outcome of a stopped build says nothing about the grammar.
        if !stop.is_stopped() {
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
