//! The masks that are being computed: those that are quick, for which the next step waits a moment, and those that were
//! slow before, which are computed behind everybody's streams and for which nobody waits.
//!
//! The tokens that may follow in a sequence with a grammar are known when its last token is: then the mask of the next
//! one is computed on a blocking thread, while the steps that are under way go on without the sequence.
//!
//! Doors: [`Masks`] and [`Masked::settle`]. A sequence whose mask takes too long, or whose work is lost, gets an error
//! and nobody else does.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use scheduler::{Event, Scheduler, SequenceEvent, SequenceId};
use tokio::task::JoinSet;

use super::readers::Readers;
use crate::aside::Aside;
use crate::grammar::{GrammarMatcher, MaskError, MaskStop};

/// A step waits so long for masks, so that all rows with grammars stay in the same steps: this share of the time that
/// the step before it took, within bounds. Most masks take 0.1 ms; a row with a later one misses a step, and the others
/// do not.
const PATIENCE: f64 = 0.25;
const MIN_PATIENCE: Duration = Duration::from_micros(300);
const MAX_PATIENCE: Duration = Duration::from_millis(3);

/// Rows whose masks are computed on one thread; more rows are spread over more threads.
const MASKS_PER_THREAD: usize = 4;

/// A mask is there by then, or its sequence ends. `llguidance` counts its steps and gives up in less, as a rule.
const MASK_TIMEOUT: Duration = Duration::from_secs(1);

/// The time between two looks for masks that take too long.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// Masks on their way.
#[derive(Debug)]
pub(super) struct Masks {
    quick: JoinSet<Vec<Masked>>,
    slow: JoinSet<Vec<Masked>>,
    aside: Aside,
    /// No step is sent before then while there are quick ones.
    until: Instant,
}

/// A token that was made in a sequence with a grammar.
struct Made {
    id: SequenceId,
    matcher: GrammarMatcher,
    token_id: u32,
}

/// A sequence whose next mask is there, or will never be.
#[derive(Debug)]
pub(super) struct Masked {
    id: SequenceId,
    mask: Result<(GrammarMatcher, Vec<u8>), MaskError>,
}

/// The mask that a thread is at, and since when.
#[derive(Debug, Clone, Default)]
struct Watch(Arc<Mutex<Option<(MaskStop, Instant)>>>);

impl Masks {
    pub(super) fn new() -> Self {
        Self { quick: JoinSet::new(), slow: JoinSet::new(), aside: Aside::new(), until: Instant::now() }
    }

    /// Begins to compute the masks behind the tokens that a step made in `forward`.
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

    /// Begins to compute masks; the next step waits no longer than `patience`.
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

    /// The end of the next step's wait, if it waits.
    pub(super) fn hold_back_until(&self) -> Option<Instant> {
        (!self.quick.is_empty() && Instant::now() < self.until).then_some(self.until)
    }

    /// The next ones that are there; waits for ever where there are none.
    pub(super) async fn next(&mut self) -> Vec<Masked> {
        let Self { quick, slow, .. } = self;
        let masked = tokio::select! {
            Some(masked) = quick.join_next() => masked,
            Some(masked) = slow.join_next() => masked,
            else => std::future::pending().await,
        };
        // These tasks only wait for threads; what is lost there has an error already.
        masked.unwrap_or_default()
    }
}

impl Masked {
    /// Hands the mask to the scheduler, and the place in the grammar back. A sequence that cannot go on ends.
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

/// Computes masks one after the other on a thread, and watches it.
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
    fn set(&self, mask: Option<(MaskStop, Instant)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = mask;
    }

    fn advance(&self, Made { id, mut matcher, token_id }: Made) -> Masked {
        self.set(Some((matcher.stop(), Instant::now())));
        let mask = matcher.advance(token_id);
        self.set(None);
        Masked { id, mask: mask.map(|mask| (matcher, mask)) }
    }

    fn stop_if_late(&self) {
        let late = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((stop, since)) = &*late
            && since.elapsed() > MASK_TIMEOUT
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
