//! The memory that all requests together may hold. One budget is divided into parts, and code takes bytes from a part
//! before it uses the memory.
//!
//! Entry points: [`budget_bytes`], the size that the user wants; [`MemoryBudget`], which is created once at the start,
//! and its [`Part`]s. A [`Held`] owns the bytes that were taken, and returns them to the part when it is dropped. Parts
//! do not share memory, so a part that is used up (by half-sent bodies or unread answers) does not affect the other
//! parts.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connections;
use crate::memory_size::MemorySize;

/// The semaphores count units of 1 KiB instead of bytes, because a number of permits has 32 bits.
const UNIT_BYTES: usize = 1 << 10;

/// Accounts grow by multiples of this size, in bytes.
const STEP_BYTES: usize = 16 << 10;

/// The shares of the parts of the memory for requests, in percent: connections, small bodies, bodies, text, answers,
/// grammars. The remaining 20 percent are for the allocator, which returns memory to the system late and in whole
/// pages.
const SHARES: [usize; 6] = [16, 4, 16, 12, 16, 16];

/// The default budget: this share of the memory that the process may use, clamped to the two constants below, or more
/// if the largest body needs more. It is at least `MIN_DEFAULT_BYTES` only if that is at most half of the memory.
const DEFAULT_PERCENT: u64 = 25;
const MIN_DEFAULT_BYTES: u64 = 512 << 20;
const MAX_DEFAULT_BYTES: u64 = 4 << 30;

/// The minimum memory for requests, in bytes.
const MIN_BYTES: u64 = 64 << 20;
/// The minimum ratio of the budget to the largest body, because only a share of the budget is for bodies, and a body
/// takes several times its size while it is parsed.
const BODIES_PER_BUDGET: u64 = 20;

/// The error when the budget is too small for requests or for the largest body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`memory_budget` must be >= {least} bytes with a `payload_limit` of {payload_limit_bytes} bytes, at least {} MiB and \
     {BODIES_PER_BUDGET} times the `payload_limit`. Given: {bytes}",
    MIN_BYTES >> 20
)]
pub(crate) struct MemoryError {
    least: u64,
    payload_limit_bytes: usize,
    bytes: u64,
}

/// The memory budget of the router, and its parts.
#[derive(Debug, Clone)]
pub(crate) struct MemoryBudget {
    total_bytes: usize,
    /// The number of bytes that the process used before the first request.
    resting_bytes: usize,
    /// Memory of connections, whether idle or not. Each connection holds the same amount. The limit of open files may
    /// allow fewer connections than the share of the memory.
    pub(crate) connections: Part,
    /// The first bytes of each body, and the data parsed from them, until the request's handler is done.
    pub(crate) small_bodies: Part,
    /// The rest of large bodies.
    pub(crate) bodies: Part,
    /// Text that is being tokenized or put into a template, and the result.
    pub(crate) text: Part,
    /// Events and responses that clients have not read yet.
    pub(crate) answers: Part,
    /// Grammars that are being compiled, cached grammars, and the states of sequences in grammars.
    pub(crate) grammars: Part,
}

/// A part of the budget, from which bytes are taken. Clones are cheap and share the same part.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    units: Arc<Semaphore>,
    limit_bytes: usize,
}

/// Bytes that were taken from a part. Dropping the value returns the bytes to the part.
#[derive(Debug)]
pub(crate) struct Held(OwnedSemaphorePermit);

/// A number of bytes, taken from a part, that can grow.
#[derive(Debug)]
pub(crate) struct Account {
    part: Part,
    held: Option<Held>,
}

impl MemoryBudget {
    /// Divides a budget of `total_bytes`, of which the process already uses `resting_bytes`. If less than [`MIN_BYTES`]
    /// is left, the total is increased.
    pub(crate) fn new(total_bytes: usize, resting_bytes: usize) -> Self {
        let rest = total_bytes.saturating_sub(resting_bytes).max(MIN_BYTES as usize);
        let total_bytes = rest.saturating_add(resting_bytes);
        let mut sizes = SHARES.map(|share| rest / 100 * share);
        // The first share is that of connections.
        sizes[0] = sizes[0].min(connections::max_bytes());
        let [connections, small_bodies, bodies, text, answers, grammars] = sizes.map(Part::new);
        Self { total_bytes, resting_bytes, connections, small_bodies, bodies, text, answers, grammars }
    }

    /// Logs the budget at the start.
    pub(crate) fn announce(&self) {
        let Self { total_bytes, resting_bytes, connections, small_bodies, bodies, text, answers, grammars } = self;
        tracing::info!(
            total = mib(*total_bytes),
            at_rest = mib(*resting_bytes),
            connections = mib(connections.limit_bytes),
            bodies = mib(small_bodies.limit_bytes + bodies.limit_bytes),
            text = mib(text.limit_bytes),
            answers = mib(answers.limit_bytes),
            grammars = mib(grammars.limit_bytes),
            "memory budget of the router"
        );
    }
}

impl Part {
    /// Creates a part of this size.
    pub(crate) fn new(limit_bytes: usize) -> Self {
        let limit_bytes = limit_bytes.min(u32::MAX as usize * UNIT_BYTES);
        Self { units: Arc::new(Semaphore::new(limit_bytes / UNIT_BYTES)), limit_bytes }
    }

    /// Creates an account that holds no bytes yet.
    pub(crate) fn open(&self) -> Account {
        Account { part: self.clone(), held: None }
    }

    /// Returns the size of the part. More bytes than this can never be taken at a time.
    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// Takes bytes if enough are free now. Returns `None` if not.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<Held> {
        Arc::clone(&self.units).try_acquire_many_owned(units(bytes)?).ok().map(Held)
    }

    /// Takes bytes, and waits at most `patience` until enough are free. Returns `None` if they did not become free, or
    /// if the part is too small. Callers that wait are served in order of arrival.
    pub(crate) async fn take(&self, bytes: usize, patience: Duration) -> Option<Held> {
        let needed = units(bytes).filter(|_| bytes <= self.limit_bytes)?;
        if let Some(held) = self.try_take(bytes) {
            return Some(held);
        }
        let taken = Arc::clone(&self.units).acquire_many_owned(needed);
        tokio::time::timeout(patience, taken).await.ok()?.ok().map(Held)
    }
}

impl Held {
    /// Returns the number of bytes, rounded up to whole KiB.
    pub(crate) fn bytes(&self) -> usize {
        self.0.num_permits() * UNIT_BYTES
    }

    /// Returns the bytes above `bytes` to the part.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let kept = units(bytes).map_or(usize::MAX, |units| units as usize);
        drop(self.0.split(self.0.num_permits().saturating_sub(kept)));
    }

    /// Takes over the bytes of another `Held` of the same part.
    pub(crate) fn add(&mut self, other: Self) {
        self.0.merge(other.0);
    }
}

impl Account {
    /// Grows the account to at least `bytes`, and waits at most `patience` until enough are free. Returns false, and
    /// changes nothing, if they did not become free.
    pub(crate) async fn grow_to(&mut self, bytes: usize, patience: Duration) -> bool {
        let missing = bytes.saturating_sub(self.held.as_ref().map_or(0, Held::bytes));
        if missing == 0 {
            return true;
        }
        let Some(more) = self.part.take(missing.next_multiple_of(STEP_BYTES), patience).await else { return false };
        match &mut self.held {
            Some(held) => held.add(more),
            None => self.held = Some(more),
        }
        true
    }

    /// Returns the bytes above `bytes` to the part.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        if let Some(held) = &mut self.held {
            held.shrink_to(bytes);
        }
    }
}

/// Returns the number of units for `bytes`, or `None` if the number exceeds 32 bits.
fn units(bytes: usize) -> Option<u32> {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).ok()
}

fn mib(bytes: usize) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Returns the budget that the user wants, or the default, in bytes.
///
/// # Errors
/// When the budget is too small for requests, or for the largest body.
pub(crate) fn budget_bytes(wanted: Option<MemorySize>, payload_limit_bytes: usize) -> Result<usize, MemoryError> {
    let machine_bytes = machine::total_bytes().unwrap_or(0);
    let least = MIN_BYTES.max((payload_limit_bytes as u64).saturating_mul(BODIES_PER_BUDGET));
    let bytes = match wanted {
        Some(MemorySize::Bytes(bytes)) => bytes,
        Some(MemorySize::Percent(percent)) => machine_bytes / 100 * u64::from(percent),
        None => default_bytes(machine_bytes, least),
    };
    if bytes < least {
        return Err(MemoryError { least, payload_limit_bytes, bytes });
    }
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Returns the default budget of a machine or container with `machine_bytes` of memory, which is at least `least`.
fn default_bytes(machine_bytes: u64, least: u64) -> u64 {
    let floor = MIN_DEFAULT_BYTES.min(machine_bytes / 2);
    (machine_bytes / 100 * DEFAULT_PERCENT).clamp(floor, MAX_DEFAULT_BYTES).max(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_memory_is_missing_until_it_is_given_back() {
        let part = Part::new(10 << 10);
        let mut held = part.try_take(6 << 10).unwrap();
        assert!(part.try_take(5 << 10).is_none());
        held.shrink_to(5 << 10);
        held.add(part.try_take((4 << 10) + 1).unwrap());
        assert_eq!(held.bytes(), 10 << 10);
        assert!(part.try_take(1).is_none(), "a byte takes a whole unit");
        held.shrink_to(usize::MAX);
        assert_eq!(held.bytes(), 10 << 10);
        drop(held);
        assert!(part.try_take(10 << 10).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_taker_is_served_or_refused_in_time() {
        let (part, patience) = (Part::new(4 << 10), Duration::from_secs(2));
        let held = part.try_take(4 << 10).unwrap();
        assert!(part.take(1, patience).await.is_none());
        let start = tokio::time::Instant::now();
        for impossible in [(4 << 10) + 1, usize::MAX] {
            assert!(part.take(impossible, patience).await.is_none());
        }
        assert_eq!(start.elapsed(), Duration::ZERO, "nobody waits for what can never be");
        let waiting = tokio::spawn(async move { part.take(4 << 10, patience).await.is_some() });
        tokio::task::yield_now().await;
        drop(held);
        assert!(waiting.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_grows_step_by_step() {
        let part = Part::new(2 * STEP_BYTES);
        let (mut one, mut other) = (part.open(), part.open());
        for bytes in [0, 1, STEP_BYTES] {
            assert!(one.grow_to(bytes, Duration::ZERO).await);
        }
        assert!(other.grow_to(1, Duration::ZERO).await);
        assert!(!one.grow_to(STEP_BYTES + 1, Duration::from_secs(2)).await);
        other.shrink_to(0);
        assert!(one.grow_to(STEP_BYTES + 1, Duration::ZERO).await);
        drop(one);
        assert!(other.grow_to(2 * STEP_BYTES, Duration::ZERO).await);
    }

    #[test]
    fn the_parts_and_what_is_there_already_fit_into_the_whole() {
        for (total, resting) in [(1 << 30, 50 << 20), (500 << 20, 600 << 20), (usize::MAX, 1 << 20)] {
            let budget = MemoryBudget::new(total, resting);
            let MemoryBudget { connections, small_bodies, bodies, text, answers, grammars, .. } = &budget;
            let parts = [connections, small_bodies, bodies, text, answers, grammars];
            let sum: usize = parts.iter().map(|part| part.limit_bytes()).sum();
            assert!(sum <= (budget.total_bytes - resting) / 5 * 4, "{sum}");
            assert!(budget.total_bytes >= resting + (64 << 20));
        }
    }

    #[test]
    fn a_small_machine_keeps_half_of_its_memory() {
        let default_mib = |machine_mib: u64| default_bytes(machine_mib << 20, MIN_BYTES) >> 20;
        assert_eq!([1 << 20, 16 << 10, 8 << 10, 2048, 1024].map(default_mib), [4096, 4095, 2047, 512, 512]);
        assert_eq!([600, 300, 128, 100, 0].map(default_mib), [300, 150, 64, 64, 64]);
    }

    #[test]
    fn the_largest_body_fits_into_the_budget() {
        let default = budget_bytes(None, 2_000_000).unwrap() as u64;
        assert!((MIN_DEFAULT_BYTES..=MAX_DEFAULT_BYTES).contains(&default), "{default}");
        assert_eq!(budget_bytes(None, 1 << 30), Ok(20 << 30), "the default grows with the body");
        assert_eq!(budget_bytes(Some(MemorySize::Bytes(64 << 20)), 1000), Ok(64 << 20));
        let error = |size, payload_limit| budget_bytes(Some(size), payload_limit).unwrap_err().to_string();
        let small = error(MemorySize::Bytes(64 << 20), 10 << 20);
        insta::assert_snapshot!(
            small,
            @"`memory_budget` must be >= 209715200 bytes with a `payload_limit` of 10485760 bytes, at least 64 MiB and 20 times the `payload_limit`. Given: 67108864"
        );
        insta::assert_snapshot!(
            error(MemorySize::Bytes(1), 0),
            @"`memory_budget` must be >= 67108864 bytes with a `payload_limit` of 0 bytes, at least 64 MiB and 20 times the `payload_limit`. Given: 1"
        );
        assert!(error(MemorySize::Percent(1), usize::MAX).contains("`payload_limit`"));
    }
}
