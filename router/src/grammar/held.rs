//! Limits the memory of the matchers with which sequences follow grammars, because an expression of a few bytes can
//! have states that take many GB.
//!
//! Entry point: [`HeldBytes`], the bytes that one sequence holds of the [`MatcherBytes`] of all sequences. All
//! sequences that hold much may together hold half of the memory budget for grammars. The rest is for grammars that are
//! being compiled or are kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes that every sequence with a grammar may hold, however many bytes other sequences hold.
const FREE_BYTES: usize = 512 << 10;

/// The maximum number of bytes that one sequence may hold.
const MAX_BYTES: usize = 32 << 20;

/// The bytes held by all sequences that hold more than [`FREE_BYTES`] each, and their limit. Clones share the count.
#[derive(Debug, Clone)]
pub(super) struct MatcherBytes {
    held: Arc<AtomicUsize>,
    limit: usize,
}

/// The bytes that one sequence holds. Dropping this releases them.
#[derive(Debug)]
pub(super) struct HeldBytes {
    all: MatcherBytes,
    num_bytes: usize,
}

/// The reason why a sequence cannot hold more bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldError {
    TooMany,
    OthersHoldThem,
}

impl MatcherBytes {
    /// Creates the count of sequences that may hold `limit` bytes together.
    pub(super) fn new(limit: usize) -> Self {
        Self { held: Arc::default(), limit }
    }

    /// Counts a new sequence that holds `num_bytes`.
    ///
    /// # Errors
    /// As [`HeldBytes::set`].
    pub(super) fn hold(&self, num_bytes: usize) -> Result<HeldBytes, HoldError> {
        let mut held = HeldBytes { all: self.clone(), num_bytes: 0 };
        held.set(num_bytes).map(|()| held)
    }
}

impl HeldBytes {
    pub(super) fn num_bytes(&self) -> usize {
        self.num_bytes
    }

    /// Sets the number of bytes that the sequence holds now.
    ///
    /// # Errors
    /// When the number is too large for one sequence, or has grown and is too large together with the bytes of other
    /// sequences. The number is set even then.
    pub(super) fn set(&mut self, num_bytes: usize) -> Result<(), HoldError> {
        let shared = |num_bytes: usize| if num_bytes > FREE_BYTES { num_bytes } else { 0 };
        let (before, now) = (shared(self.num_bytes), shared(num_bytes));
        self.num_bytes = num_bytes;
        let all = match now >= before {
            true => self.all.held.fetch_add(now - before, Ordering::Relaxed) + (now - before),
            false => self.all.held.fetch_sub(before - now, Ordering::Relaxed) - (before - now),
        };
        if num_bytes > MAX_BYTES {
            Err(HoldError::TooMany)
        } else if now > before && all > self.all.limit {
            Err(HoldError::OthersHoldThem)
        } else {
            Ok(())
        }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        let _ = self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_holders_are_bounded_and_small_ones_are_not() {
        let all = MatcherBytes::new(4 * MAX_BYTES);
        assert_eq!(all.hold(MAX_BYTES + 1).unwrap_err(), HoldError::TooMany);
        let mut many: Vec<HeldBytes> = (0..4).map(|_| all.hold(MAX_BYTES).unwrap()).collect();
        assert_eq!(all.hold(FREE_BYTES + 1).unwrap_err(), HoldError::OthersHoldThem);
        let mut little: Vec<HeldBytes> = (0..1000).map(|_| all.hold(FREE_BYTES - 1).unwrap()).collect();
        assert_eq!(little[0].set(FREE_BYTES), Ok(()));
        assert_eq!(little[0].set(FREE_BYTES + 1), Err(HoldError::OthersHoldThem));
        little.clear();
        many.pop();
        assert_eq!(many[0].set(MAX_BYTES - 1), Ok(()), "less is always allowed");
        drop(all.hold(MAX_BYTES).unwrap());
        many.clear();
        assert_eq!(all.held.load(Ordering::Relaxed), 0);
    }
}
