//! Numbers of launches.
//!
//! Door: [`next`]. Devices that run one program together find each other by the number of the launch: XLA-CPU mixes launches up
//! that have the same and overlap, and TPUs tell hosts apart that launch in different orders. A process numbers all it starts, in
//! order, so processes that do the same steps give the same numbers.

use std::sync::atomic::{AtomicI32, Ordering};

/// The number of the next launch of this process; never 0, which is none.
pub(super) fn next() -> i32 {
    static NEXT: AtomicI32 = AtomicI32::new(1);
    // Numbers start again after 2^31 launches, of which no two that are so far apart overlap.
    let number = NEXT.fetch_add(1, Ordering::Relaxed) & i32::MAX;
    if number == 0 { next() } else { number }
}
