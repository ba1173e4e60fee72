//! Threads that tokenize prompts and render conversations, so that a long text never blocks the async threads.
//!
//! Short prompts are tokenized on the caller's thread, because waking another thread would take longer. Other texts go
//! to one of two lanes, each with its own threads: an ordinary text never waits for the end of a long one, and the
//! threads for long texts have a lower priority. A request that gets no thread in time is refused. If a client leaves,
//! its work is skipped, or ends early if a conversation is being rendered (`caller`). The memory budget limits the
//! memory of long texts.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::caller::Caller;
use super::{TextError, Tokenizer};
use crate::aside::{NICENESS, lower_priority};
use crate::memory::{Held, Part};

/// The maximum length, in bytes, of a prompt that is tokenized on the caller's thread.
const SHORT_PROMPT_BYTES: usize = 1 << 10;

/// The maximum length, in bytes, of a text in the ordinary lane.
const ORDINARY_BYTES: usize = 64 << 10;

/// The maximum time for which a text waits for a thread. Before that, a long text waits for memory, for at most the
/// same time.
const PATIENCE: Duration = Duration::from_secs(5);

/// The estimated memory, in bytes, that tokenizing takes per byte of text: tokens with their ranges in the text, and
/// the tokenizer's own tables.
const WORK_BYTES: usize = 32;

/// The work on one text, which sends its own result to the caller.
type Job = Box<dyn FnOnce(&Tokenizer) + Send>;

/// The threads, in two lanes. Clones share the threads, which end after the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct TokenizerPool {
    tokenizer: Arc<Tokenizer>,
    ordinary: Arc<Lane>,
    long: Arc<Lane>,
    num_threads: u32,
    memory: Part,
}

/// The jobs that wait for the threads of their lane, in order of arrival.
#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    is_closed: bool,
}

/// A lane: the queue of its threads. When this is dropped, the threads finish the waiting jobs and end.
#[derive(Debug)]
struct Lane(Arc<LaneQueue>);

#[derive(Default)]
struct LaneQueue {
    jobs: Mutex<Jobs>,
    has_news: Condvar,
}

impl TokenizerPool {
    /// Starts `num_workers` threads for ordinary texts, and half as many, rounded up, for long ones. Long texts and
    /// their results are counted in `memory`.
    ///
    /// # Errors
    /// When the system cannot start a thread.
    pub(crate) fn spawn(tokenizer: &Arc<Tokenizer>, num_workers: u32, memory: Part) -> std::io::Result<Self> {
        let num_workers = num_workers.max(1);
        let num_for_long = num_workers.div_ceil(2);
        Ok(Self {
            tokenizer: Arc::clone(tokenizer),
            ordinary: Arc::new(Lane::spawn(tokenizer, "tokenizer", num_workers, || {})?),
            long: Arc::new(Lane::spawn(tokenizer, "long-texts", num_for_long, || {
                lower_priority(None, NICENESS);
            })?),
            num_threads: num_workers.saturating_add(num_for_long),
            memory,
        })
    }

    /// Returns the token ids of a prompt.
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text, or the pool is too busy.
    pub(crate) async fn tokenize(&self, text: &Arc<str>) -> Result<Vec<u32>, TextError> {
        if text.len() <= SHORT_PROMPT_BYTES {
            return guarded(|| self.tokenizer.tokenize(text)).unwrap_or_else(|| Err(panicked()));
        }
        let (len, text) = (text.len(), Arc::clone(text));
        self.run(len, move |tokenizer| tokenizer.tokenize(&text)).await?
    }

    /// Returns the token ids of a text that contains its special tokens.
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text, or the pool is too busy.
    pub(crate) async fn tokenize_rendered(&self, text: &Arc<str>) -> Result<Vec<u32>, TextError> {
        if text.len() <= SHORT_PROMPT_BYTES {
            return guarded(|| self.tokenizer.tokenize_bare(text)).unwrap_or_else(|| Err(panicked()));
        }
        let (len, text) = (text.len(), Arc::clone(text));
        self.run(len, move |tokenizer| tokenizer.tokenize_bare(&text)).await?
    }

    /// Runs `work` for a text of `num_bytes` on a thread of the pool.
    ///
    /// # Errors
    /// When `work` panics, or gets no memory or no thread in time.
    pub(crate) async fn run<T, F>(&self, num_bytes: usize, work: F) -> Result<T, TextError>
    where
        T: Send + 'static,
        F: FnOnce(&Tokenizer) -> T + Send + 'static,
    {
        let is_long = num_bytes > ORDINARY_BYTES;
        let held = if is_long { Some(self.take(num_bytes.saturating_mul(WORK_BYTES)).await?) } else { None };
        let (start_tx, start_rx) = oneshot::channel();
        let (reply_tx, reply_rx) = oneshot::channel();
        // It leaves when this future is dropped.
        let caller = Caller::default();
        let view = caller.view();
        let job = move |tokenizer: &Tokenizer| {
            if start_tx.send(()).is_ok()
                && let Some(reply) = view.during(|| guarded(|| work(tokenizer)))
            {
                let _ = reply_tx.send(reply);
            }
            // The memory is needed until the work is done, even if nobody waits for the result any more.
            drop(held);
        };
        let lane = if is_long { &self.long } else { &self.ordinary };
        lane.0.push(Box::new(job));
        let start = tokio::time::timeout(PATIENCE, start_rx).await;
        start.map_err(|_| TextError::Busy)?.map_err(|_| panicked())?;
        reply_rx.await.map_err(|_| panicked())
    }

    /// Returns the share of a thread in the memory for texts, in bytes.
    pub(crate) fn bytes_per_thread(&self) -> usize {
        self.memory.limit_bytes() / self.num_threads as usize
    }

    /// Takes memory for the result of a text; returns `None` if the result is too small to be counted.
    ///
    /// # Errors
    /// When other texts hold the memory for too long.
    pub(crate) async fn memory_for(&self, num_bytes: usize) -> Result<Option<Held>, TextError> {
        if num_bytes <= ORDINARY_BYTES { Ok(None) } else { self.take(num_bytes).await.map(Some) }
    }

    /// Takes `num_bytes` of memory, or all memory if the text needs more than there is. Such a text runs alone among
    /// the long texts.
    async fn take(&self, num_bytes: usize) -> Result<Held, TextError> {
        self.memory.take(num_bytes.min(self.memory.limit_bytes()), PATIENCE).await.ok_or(TextError::Busy)
    }
}

impl Lane {
    fn spawn(tokenizer: &Arc<Tokenizer>, name: &str, num_threads: u32, prepare: fn()) -> std::io::Result<Self> {
        let lane = Self(Arc::new(LaneQueue::default()));
        for number in 0..num_threads {
            let (tokenizer, queue) = (Arc::clone(tokenizer), Arc::clone(&lane.0));
            let thread = std::thread::Builder::new().name(format!("{name}-{number}"));
            thread.spawn(move || {
                prepare();
                while let Some(job) = queue.next() {
                    job(&tokenizer);
                }
            })?;
        }
        Ok(lane)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.has_news.notify_all();
    }
}

impl LaneQueue {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job) {
        self.lock().waiting.push_back(job);
        self.has_news.notify_one();
    }

    /// Waits for a job; returns `None` when the lane is closed and empty.
    fn next(&self) -> Option<Job> {
        let is_idle = |jobs: &mut Jobs| jobs.waiting.is_empty() && !jobs.is_closed;
        let jobs = self.has_news.wait_while(self.lock(), is_idle);
        jobs.unwrap_or_else(PoisonError::into_inner).waiting.pop_front()
    }
}

impl std::fmt::Debug for LaneQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneQueue").field("num_waiting", &self.lock().waiting.len()).finish_non_exhaustive()
    }
}

fn panicked() -> TextError {
    TextError::Tokenize("the text could not be processed because of a defect of this server".to_owned())
}

/// Runs `work`; returns `None` if it panics. A defect then costs only the request, not the thread.
fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

#[cfg(test)]
pub(crate) fn demo_pool(num_workers: u32) -> TokenizerPool {
    TokenizerPool::spawn(&Arc::new(super::tokenizer::demo()), num_workers, Part::new(64 << 20)).unwrap()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, RecvTimeoutError};

    use super::*;
    use crate::testing::{DEADLINE, within};

    #[tokio::test]
    async fn many_prompts_at_once_each_get_their_own_ids() {
        let pool = demo_pool(3);
        let texts: Vec<Arc<str>> = (0..100).map(|n| format!("prompt number {n} ").repeat(1 + n).into()).collect();
        let replies = futures_util::future::join_all(texts.iter().map(|text| pool.tokenize(text))).await;
        for (text, reply) in texts.iter().zip(replies) {
            assert_eq!(reply.unwrap(), pool.tokenizer.tokenize(text).unwrap());
        }
    }

    #[tokio::test]
    async fn ordinary_texts_do_not_wait_behind_long_ones() {
        let pool = demo_pool(1);
        let (end_tx, end_rx) = mpsc::channel::<()>();
        let work = pool.clone();
        let long =
            tokio::spawn(async move { work.run(ORDINARY_BYTES + 1, move |_| end_rx.recv_timeout(DEADLINE)).await });
        let ordinary: Arc<str> = "word ".repeat(ORDINARY_BYTES / 5).into();
        assert!(pool.tokenize(&ordinary).await.is_ok());
        drop(end_tx);
        let ended = within("the end of the long work", long).await.unwrap();
        assert_eq!(ended, Ok(Err(RecvTimeoutError::Disconnected)));
    }

    #[tokio::test]
    async fn a_caller_without_a_turn_is_told_and_its_work_is_skipped() {
        let pool = demo_pool(1);
        let (end_tx, end_rx) = mpsc::channel::<()>();
        let work = pool.clone();
        let (begun_tx, begun_rx) = oneshot::channel();
        let first = tokio::spawn(async move {
            work.run(1, move |_| {
                let _ = begun_tx.send(());
                end_rx.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Disconnected)
            })
            .await
        });
        within("the begin of the work", begun_rx).await.unwrap();
        tokio::time::pause();
        let (ran_tx, ran_rx) = mpsc::channel::<()>();
        let late = pool.run(1, move |_| ran_tx.send(())).await.map(drop);
        assert_eq!(late, Err(TextError::Busy));
        tokio::time::resume();
        drop(end_tx);
        assert!(within("the end of the first work", first).await.unwrap().unwrap());
        assert!(pool.run(1, |_| ()).await.is_ok());
        assert!(ran_rx.try_recv().is_err());
    }

    #[tokio::test]
    async fn memory_is_held_until_the_work_is_done() {
        let pool = demo_pool(1);
        let most = pool.memory.limit_bytes();
        let (end_tx, end_rx) = mpsc::channel::<()>();
        let (begun_tx, begun_rx) = oneshot::channel();
        let work = pool.clone();
        let task = tokio::spawn(async move {
            work.run(usize::MAX, move |_| {
                let _ = begun_tx.send(());
                end_rx.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Disconnected)
            })
            .await
        });
        within("the begin of the work", begun_rx).await.unwrap();
        task.abort();
        assert!(pool.memory.try_take(1).is_none(), "the thread still works");
        drop(end_tx);
        assert!(pool.memory.take(most, PATIENCE).await.is_some());
    }
}
