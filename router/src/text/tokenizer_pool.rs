//! Threads that tokenize prompts and render conversations, so that a long one never stops the async threads.
//!
//! A short prompt takes less time than a thread takes to wake up, so it stays where it is. For the others there is
//! one shared, bounded queue: a long prompt keeps one thread busy and nobody waits behind it while another is free.
//! Work whose client has left is skipped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::{TextError, Tokenizer};

/// Prompts that may wait per thread; more wait in their own request.
const QUEUE_PER_WORKER: usize = 8;

/// Longest prompt that stays on the caller's thread: about 250 tokens, a tenth of a millisecond.
const SHORT_PROMPT_BYTES: usize = 1 << 10;

/// Work that knows whom to answer.
type Job = Box<dyn FnOnce(&Tokenizer) + Send>;

/// The threads. They end when the pool is dropped.
#[derive(Debug, Clone)]
pub(crate) struct TokenizerPool {
    tokenizer: Arc<Tokenizer>,
    jobs_tx: mpsc::Sender<Job>,
}

impl TokenizerPool {
    /// Starts `num_workers` threads.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn spawn(tokenizer: &Arc<Tokenizer>, num_workers: u32) -> std::io::Result<Self> {
        let num_workers = num_workers.max(1) as usize;
        let (jobs_tx, jobs_rx) = mpsc::channel(num_workers * QUEUE_PER_WORKER);
        let jobs_rx = Arc::new(Mutex::new(jobs_rx));
        for worker in 0..num_workers {
            let (tokenizer, jobs_rx) = (Arc::clone(tokenizer), Arc::clone(&jobs_rx));
            let thread = std::thread::Builder::new().name(format!("tokenizer-{worker}"));
            thread.spawn(move || work(&tokenizer, &jobs_rx))?;
        }
        Ok(Self { tokenizer: Arc::clone(tokenizer), jobs_tx })
    }

    /// Token ids of a prompt.
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text.
    pub(crate) async fn tokenize(&self, text: String) -> Result<Vec<u32>, TextError> {
        if text.len() <= SHORT_PROMPT_BYTES {
            return guarded(|| self.tokenizer.tokenize(&text)).unwrap_or_else(|| Err(panicked()));
        }
        self.run(move |tokenizer| tokenizer.tokenize(&text)).await?
    }

    /// Token ids of a text that has its special tokens written out.
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text.
    pub(crate) async fn tokenize_rendered(&self, text: String) -> Result<Vec<u32>, TextError> {
        if text.len() <= SHORT_PROMPT_BYTES {
            return guarded(|| self.tokenizer.tokenize_bare(&text)).unwrap_or_else(|| Err(panicked()));
        }
        self.run(move |tokenizer| tokenizer.tokenize_bare(&text)).await?
    }

    /// What `work` makes, on a thread of the pool.
    ///
    /// # Errors
    /// When it panics.
    pub(crate) async fn run<T, F>(&self, work: F) -> Result<T, TextError>
    where
        T: Send + 'static,
        F: FnOnce(&Tokenizer) -> T + Send + 'static,
    {
        let (reply_tx, reply_rx) = oneshot::channel();
        let job = move |tokenizer: &Tokenizer| {
            if !reply_tx.is_closed()
                && let Some(reply) = guarded(|| work(tokenizer))
            {
                let _ = reply_tx.send(reply);
            }
        };
        self.jobs_tx.send(Box::new(job)).await.map_err(|_| panicked())?;
        reply_rx.await.map_err(|_| panicked())
    }
}

fn panicked() -> TextError {
    TextError::Tokenize("the tokenizer panicked".to_owned())
}

fn work(tokenizer: &Tokenizer, jobs_rx: &Mutex<mpsc::Receiver<Job>>) {
    loop {
        // The lock is held while waiting: whoever has it is next, the others queue behind it.
        let job = jobs_rx.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        let Some(job) = job else { return };
        job(tokenizer);
    }
}

/// `None` on a panic: a defect costs the request that hit it, not the thread.
fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tokenizer::demo;

    #[tokio::test]
    async fn many_prompts_at_once_each_get_their_own_ids() {
        let tokenizer = Arc::new(demo());
        let pool = TokenizerPool::spawn(&tokenizer, 3).unwrap();
        let texts: Vec<String> = (0..100).map(|n| format!("prompt number {n} ").repeat(1 + n)).collect();
        let replies = futures_util::future::join_all(texts.iter().map(|text| pool.tokenize(text.clone()))).await;
        for (text, reply) in texts.iter().zip(replies) {
            assert_eq!(reply.unwrap(), tokenizer.tokenize(text).unwrap());
        }
    }
}
