//! Numbers of launches.
//!
//! Entry point: [`next`]. Devices that run one program together find each other by the number of the launch: XLA-CPU
//! confuses overlapping launches with equal numbers, and TPUs use the number to detect hosts that launch in different
//! orders. A process numbers its launches in order, so processes that run the same steps use the same numbers.

use std::sync::atomic::{AtomicI32, Ordering};

/// Returns the number of the next launch of this process. The number is never 0: 0 means that the launch has none.
pub(super) fn next() -> i32 {
    static NEXT: AtomicI32 = AtomicI32::new(1);
    // Numbers repeat after about 2^31 launches, which is no problem: launches so far apart never overlap.
    let number = NEXT.fetch_add(1, Ordering::Relaxed) & i32::MAX;
    if number == 0 { next() } else { number }
}
