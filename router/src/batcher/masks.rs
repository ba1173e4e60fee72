//! The computation of masks, which contain the tokens that a grammar allows next. The next step waits a short time for
//! masks of quick grammars. Masks of slow grammars are computed at low priority, and no step waits for them.
//!
//! The allowed tokens of a sequence with a grammar depend on the sequence's last token. When that token is known, the
//! next mask is computed on another thread. Meanwhile steps run without the sequence.
//!
//! Entry points: [`Masks`] and [`Masked::settle`]. If a mask takes too long, only its sequence gets an error. If a
//! thread panics, all sequences whose masks it was to compute get an error.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use liveness::{AwakeTime, TICK};
use scheduler::{Event, Scheduler, SequenceEvent, SequenceId};
use tokio::task::JoinSet;

use super::readers::Readers;
use crate::aside::Aside;
use crate::grammar::{GrammarMatcher, MaskError, MaskStop};

/// A step waits for masks at most this share of the previous step's time, clamped to the two constants below. The wait
/// keeps rows with grammars in the same steps as the other rows. A row whose mask comes later misses a step; the other
/// rows do not.
const PATIENCE: f64 = 0.25;
const MIN_PATIENCE: Duration = Duration::from_micros(300);
const MAX_PATIENCE: Duration = Duration::from_millis(3);

/// The maximum number of rows whose masks one thread computes. More rows are divided between several threads.
const MASKS_PER_THREAD: usize = 4;

/// The time after which a mask is late: at the next check ([`WATCH_INTERVAL`]) it is stopped, and its sequence fails.
/// `llguidance` limits its own number of steps and usually gives up earlier.
const MASK_TIMEOUT: Duration = Duration::from_secs(1);

/// The interval at which [`compute`] checks for masks that take too long.
const WATCH_INTERVAL: Duration = TICK;

/// The masks that are being computed.
#[derive(Debug)]
pub(super) struct Masks {
    quick: JoinSet<Vec<Masked>>,
    slow: JoinSet<Vec<Masked>>,
    aside: Aside,
    /// While quick masks are being computed, the next step is not sent before this time.
    until: Instant,
}

/// A newly generated token of a sequence with a grammar, and the state of the sequence in the grammar before that
/// token.
struct Made {
    id: SequenceId,
    matcher: GrammarMatcher,
    token_id: u32,
}

/// A sequence with its matcher and its next mask, or with the error that prevented the mask.
#[derive(Debug)]
pub(super) struct Masked {
    id: SequenceId,
    mask: Result<(GrammarMatcher, Vec<u8>), MaskError>,
}

/// The handle that stops the mask that a thread is computing now, and the time since that mask was begun. `None`
/// between masks.
#[derive(Debug, Clone, Default)]
struct Watch(Arc<Mutex<Option<(MaskStop, AwakeTime)>>>);

impl Masks {
    pub(super) fn new() -> Self {
        Self { quick: JoinSet::new(), slow: JoinSet::new(), aside: Aside::new(), until: Instant::now() }
    }

    /// Begins to compute the masks that follow the tokens of a step. `forward` is the duration of that step.
    pub(super) fn follow(&mut self, events: &[Event], forward: Duration, readers: &mut Readers) {
        let made = events.iter().filter_map(|Event { id, kind }| match kind {
            SequenceEvent::Token { token, finish: None } => {
                Some(Made { id: *id, matcher: readers.take_matcher(*id)?, token_id: token.token_id })
            }
            SequenceEvent::Token { finish: Some(_), .. }
            | SequenceEvent::Admitted { .. }
            | SequenceEvent::Prompt(_)
            | SequenceEvent::Failed(_)
            | SequenceEvent::TimedOut => None,
        });
        self.begin(made.collect(), forward.mul_f64(PATIENCE).clamp(MIN_PATIENCE, MAX_PATIENCE));
    }

    /// Begins to compute masks. The next step waits for the masks of quick grammars, at most `patience`.
    fn begin(&mut self, made: Vec<Made>, patience: Duration) {
        let (slow, quick): (Vec<Made>, Vec<Made>) = made.into_iter().partition(|made| made.matcher.is_slow());
        for made in slow {
            let aside = self.aside.clone();
            self.slow.spawn(async move {
                let run = |work: Work| async move { aside.run(work).await };
                compute(vec![made], run).await
            });
        }
        if quick.is_empty() {
            return;
        }
        self.until = Instant::now() + patience;
        let mut quick = quick.into_iter().peekable();
        while quick.peek().is_some() {
            let some = quick.by_ref().take(MASKS_PER_THREAD).collect();
            self.quick.spawn(async move {
                let run = |work: Work| async move { tokio::task::spawn_blocking(work).await.ok() };
                compute(some, run).await
            });
        }
    }

    /// Returns the time until which the next step must wait for masks, or `None` if it need not wait.
    pub(super) fn hold_back_until(&self) -> Option<Instant> {
        (!self.quick.is_empty() && Instant::now() < self.until).then_some(self.until)
    }

    /// Returns the next masks that are complete. Waits forever if no mask is being computed.
    pub(super) async fn next(&mut self) -> Vec<Masked> {
        let Self { quick, slow, .. } = self;
        let masked = tokio::select! {
            Some(masked) = quick.join_next() => masked,
            Some(masked) = slow.join_next() => masked,
            else => std::future::pending().await,
        };
        // These tasks only wait for threads, so they do not panic. If a thread panics, `compute` returns errors.
        masked.unwrap_or_default()
    }
}

impl Masked {
    /// Passes the mask to the scheduler, and returns the matcher to the sequence's reader. Ends the sequence if there
    /// is an error instead.
    pub(super) fn settle(self, readers: &mut Readers, scheduler: &mut Scheduler) {
        let Self { id, mask } = self;
        match mask {
            Ok((matcher, mask)) => {
                if readers.put_matcher(id, matcher) {
                    scheduler.set_mask(id, mask);
                }
            }
            Err(error) => {
                scheduler.cancel(id);
                readers.dispatch(vec![Event { id, kind: SequenceEvent::Failed(error.to_string()) }], scheduler);
            }
        }
    }
}

type Work = Box<dyn FnOnce() -> Vec<Masked> + Send>;

/// Computes masks one after the other on the thread of `run`, and stops a mask that takes too long.
async fn compute<F: Future<Output = Option<Vec<Masked>>>>(made: Vec<Made>, run: impl FnOnce(Work) -> F) -> Vec<Masked> {
    let ids: Vec<SequenceId> = made.iter().map(|made| made.id).collect();
    let watch = Watch::default();
    let of_thread = watch.clone();
    let work = Box::new(move || made.into_iter().map(|made| of_thread.advance(made)).collect());
    let mut masked = std::pin::pin!(run(work));
    loop {
        match tokio::time::timeout(WATCH_INTERVAL, &mut masked).await {
            Ok(Some(masked)) => return masked,
            Ok(None) => return ids.into_iter().map(|id| Masked { id, mask: Err(MaskError::Defect) }).collect(),
            Err(_) => watch.stop_if_late(),
        }
    }
}

impl Watch {
    fn set(&self, mask: Option<(MaskStop, AwakeTime)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = mask;
    }

    fn advance(&self, Made { id, mut matcher, token_id }: Made) -> Masked {
        self.set(Some((matcher.stop(), AwakeTime::start(Instant::now()))));
        let mask = matcher.advance(token_id);
        self.set(None);
        Masked { id, mask: mask.map(|mask| (matcher, mask)) }
    }

    fn stop_if_late(&self) {
        let mut mask = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((stop, time)) = &mut *mask
            && time.look(Instant::now()) > MASK_TIMEOUT
        {
            stop.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lost_thread_is_an_error_of_its_sequences() {
        let masked = compute(Vec::new(), |_| async { None }).await;
        assert!(masked.is_empty());
    }
}
