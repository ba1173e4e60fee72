//! Waits of tests. Each has a deadline, after which the test fails and names the thing that did not come.

use std::time::{Duration, Instant};

/// The maximum time of a wait. It is longer than any wait in a correct test, including deadlines of the server on a
/// paused clock.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until `is_true` returns true. Fails after [`DEADLINE`], also on a paused clock.
pub async fn until(awaited: &str, is_true: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < DEADLINE, "waited {DEADLINE:?} for {awaited}");
        tokio::task::yield_now().await;
    }
}

/// Waits as [`until`] does, for a condition that is itself asynchronous, such as a request.
pub async fn until_async(awaited: &str, is_true: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !within(awaited, is_true()).await {
        assert!(start.elapsed() < DEADLINE, "waited {DEADLINE:?} for {awaited}");
        tokio::task::yield_now().await;
    }
}

/// Returns the result of `future`. Fails after [`DEADLINE`] by tokio's clock.
pub async fn within<T>(awaited: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(DEADLINE, future).await;
    result.unwrap_or_else(|_| panic!("waited {DEADLINE:?} for {awaited}"))
}
