//! Threads that tokenize prompts, so that a long prompt never stops the async threads.
//!
//! A short prompt takes less time than a thread takes to wake up, so it stays where it is. For the others there is
//! one shared, bounded queue: a long prompt keeps one thread busy and nobody waits behind it while another is free.
//! A prompt whose client has left is skipped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::{TextError, Tokenizer};

/// Prompts that may wait per thread; more wait in their own request.
const QUEUE_PER_WORKER: usize = 8;

/// Longest prompt that stays on the caller's thread: about 250 tokens, a tenth of a millisecond.
const SHORT_PROMPT_BYTES: usize = 1 << 10;

struct Job {
    text: String,
    reply_tx: oneshot::Sender<Result<Vec<u32>, TextError>>,
}

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
        let gone = || TextError::Tokenize("the tokenizer panicked".to_owned());
        if text.len() <= SHORT_PROMPT_BYTES {
            return tokenize(&self.tokenizer, &text).unwrap_or_else(|| Err(gone()));
        }
        let (reply_tx, reply_rx) = oneshot::channel();
        self.jobs_tx.send(Job { text, reply_tx }).await.map_err(|_| gone())?;
        reply_rx.await.map_err(|_| gone())?
    }
}

fn work(tokenizer: &Tokenizer, jobs_rx: &Mutex<mpsc::Receiver<Job>>) {
    loop {
        // The lock is held while waiting: whoever has it is next, the others queue behind it.
        let job = jobs_rx.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        let Some(Job { text, reply_tx }) = job else { return };
        if reply_tx.is_closed() {
            continue;
        }
        if let Some(result) = tokenize(tokenizer, &text) {
            let _ = reply_tx.send(result);
        }
    }
}

/// `None` when the tokenizer panics: its defect costs the request that hit it, not the thread.
fn tokenize(tokenizer: &Tokenizer, text: &str) -> Option<Result<Vec<u32>, TextError>> {
    catch_unwind(AssertUnwindSafe(|| tokenizer.tokenize(text))).ok()
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
