//! The counter that shows that a step goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that a backend advances whenever another part of a step is complete: an operation of a graph on the CPU, a
/// launch or a result on a device. Another thread reads it. Clones share the counter.
#[derive(Debug, Clone, Default)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// Notes that another part of a step is complete.
    pub fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of parts that are complete.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
