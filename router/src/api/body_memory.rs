//! Estimates the memory that a request's body takes, and reserves that number of bytes in the memory budget.
//!
//! Entry points: [`JsonCost`], which estimates the memory from the bytes as they arrive; [`BodyMemory`], the bytes
//! taken from the budget; and [`RequestMemory`], which holds them until the handler is done.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::ApiError;
use crate::memory::{Account, MemoryBudget};

/// The maximum time for which a body waits for memory that other requests hold.
const PATIENCE: Duration = Duration::from_secs(2);

/// The number of bytes of each body that are taken from a separate part of the budget, for small bodies. Only the rest
/// is taken from the part for large ones, so large bodies always leave room for small ones.
const SMALL_BYTES: usize = 64 << 10;

/// The estimated memory of a parsed JSON value, in bytes. It includes the spare capacity of vectors and maps, but not
/// the value's text.
const VALUE_BYTES: usize = 128;

/// The memory that a request holds for its body. Clones share the memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestMemory(Arc<OnceLock<BodyMemory>>);

/// The bytes of the memory budget that a body holds.
#[derive(Debug)]
pub(super) struct BodyMemory {
    small: Account,
    large: Account,
    /// The maximum number of bytes that all large bodies together may hold.
    limit_bytes: usize,
}

/// An estimate of the memory that JSON takes. It counts the bytes, and the marks `,`, `:`, `[` and `{` outside of
/// strings, each of which a value may follow.
#[derive(Debug, Default)]
pub(super) struct JsonCost {
    num_bytes: usize,
    num_marks: usize,
    is_in_string: bool,
    is_escaped: bool,
}

impl RequestMemory {
    /// Holds `memory` until the last clone of `self` is dropped.
    pub(super) fn keep(&self, memory: BodyMemory) {
        // A request has one body, so this is the only call, and `set` succeeds.
        let _ = self.0.set(memory);
    }
}

impl BodyMemory {
    /// Creates a `BodyMemory` that holds nothing yet.
    pub(super) fn new(budget: &MemoryBudget) -> Self {
        let limit_bytes = budget.bodies.limit_bytes();
        Self { small: budget.small_bodies.open(), large: budget.bodies.open(), limit_bytes }
    }

    /// Grows to at least `bytes`. Waits for a limited time if other requests hold the memory.
    ///
    /// # Errors
    /// When the memory does not become free in time, or `bytes` is more than all bodies together may hold.
    pub(super) async fn grow_to(&mut self, bytes: usize) -> Result<(), ApiError> {
        let large_bytes = bytes.saturating_sub(SMALL_BYTES);
        if large_bytes > self.limit_bytes {
            return Err(ApiError::BodyTooCostly);
        }
        let has_grown = self.small.grow_to(bytes.min(SMALL_BYTES), PATIENCE).await
            && self.large.grow_to(large_bytes, PATIENCE).await;
        if has_grown { Ok(()) } else { Err(ApiError::NoRoomForBody) }
    }

    /// Returns the bytes above `bytes` to the budget.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        self.small.shrink_to(bytes.min(SMALL_BYTES));
        self.large.shrink_to(bytes.saturating_sub(SMALL_BYTES));
    }
}

impl JsonCost {
    /// Adds the next bytes of the JSON to the estimate.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        self.num_bytes += bytes.len();
        for byte in bytes {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = self.is_in_string,
                b'"' => self.is_in_string = !self.is_in_string,
                b',' | b':' | b'[' | b'{' if !self.is_in_string => self.num_marks += 1,
                _ => {}
            }
        }
    }

    /// Returns the memory of the bytes together with the data parsed from them, in bytes.
    pub(super) fn whole_bytes(&self) -> usize {
        self.num_bytes + self.parsed_bytes()
    }

    /// Returns the memory of the data parsed from the bytes, in bytes.
    pub(super) fn parsed_bytes(&self) -> usize {
        self.num_bytes + self.num_marks * VALUE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn num_marks(text: &str) -> usize {
        let (mut cost, mut in_pieces) = (JsonCost::default(), JsonCost::default());
        cost.read(text.as_bytes());
        text.as_bytes().chunks(1).for_each(|piece| in_pieces.read(piece));
        assert_eq!((cost.num_marks, cost.whole_bytes()), (in_pieces.num_marks, in_pieces.whole_bytes()));
        assert_eq!(cost.parsed_bytes(), text.len() + cost.num_marks * VALUE_BYTES);
        cost.num_marks
    }

    #[test]
    fn values_cost_and_text_does_not() {
        let cases = [
            ("", 0),
            (r#""a,b:[{""#, 0),
            (r#"{"inputs":"1,2,3\",4\\"}"#, 2),
            (r#"{"inputs":"\\","a":[1,2]}"#, 6),
            ("[[[[", 4),
            (r"\,", 1),
        ];
        for (text, expected) in cases {
            assert_eq!(num_marks(text), expected, "{text}");
        }
    }

    /// `serde_json` takes at most the estimated memory, even for values of a few bytes each.
    #[test]
    fn values_take_no_more_than_is_counted() {
        let size = std::mem::size_of::<serde_json::Value>();
        let member = size + std::mem::size_of::<(String, u64)>();
        assert!(2 * size <= VALUE_BYTES * 2 && 2 * member <= 3 * VALUE_BYTES, "{size} {member}");
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_leave_room_for_small_ones() {
        let budget = MemoryBudget::new(100 << 20, 0);
        let large_bytes = budget.bodies.limit_bytes() & !0xffff;
        let [mut large, mut other] = [(), ()].map(|()| BodyMemory::new(&budget));
        large.grow_to(large_bytes).await.unwrap();
        other.grow_to(SMALL_BYTES).await.unwrap();
        assert!(matches!(other.grow_to(4 * SMALL_BYTES).await, Err(ApiError::NoRoomForBody)));
        assert!(matches!(other.grow_to(2 * large_bytes).await, Err(ApiError::BodyTooCostly)));
        large.shrink_to(SMALL_BYTES);
        other.grow_to(4 * SMALL_BYTES).await.unwrap();
    }
}
