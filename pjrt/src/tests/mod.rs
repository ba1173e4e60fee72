//! Tests of the wrapper with the fake plugin: lifetimes, wakers, function tables of other sizes, failures. The tests
//! can run under Miri: `cargo +nightly miri test -p pjrt --lib -- --skip plugin::tests`.

mod events;
mod execution;
mod struct_sizes;
mod tables;
mod transfers;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use test_support::until;

use crate::testing::{Kind, control};
use crate::{Buffer, Client, ElementType, HostSlice};

/// A waker that counts how often it is woken.
#[derive(Debug, Default)]
pub(crate) struct CountingWaker(AtomicUsize);

impl CountingWaker {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Bytes whose owners are counted.
#[derive(Debug, Clone)]
pub(crate) struct Owner(pub(crate) Arc<Vec<u8>>);

impl Owner {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self(Arc::new(bytes.to_vec()))
    }

    /// The number of owners besides `self`.
    pub(crate) fn others(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Uploads bytes to the device at index `device`, 0 or 1.
pub(crate) fn upload(client: &Client, device: usize, bytes: &[u8]) -> Buffer {
    let dims = [bytes.len()];
    let host = HostSlice::new(ElementType::U8, &dims, bytes).expect("as long as it is");
    client.upload(host, &client.devices()[device]).expect("an upload")
}

/// Waits until another thread has destroyed the last client, then checks that no objects exist.
pub(crate) fn assert_clean_soon() {
    until("the end of the last client", || control().alive(Kind::Client) == 0);
    control().assert_clean();
}

#[test]
fn values_may_cross_threads() {
    fn check<T: Send + Sync>() {}
    check::<crate::Plugin>();
    check::<Client>();
    check::<crate::Device>();
    check::<Buffer>();
    check::<crate::Event>();
    check::<crate::Download>();
    check::<crate::Executable>();
    check::<crate::LoadedExecutable>();
    check::<crate::Execution>();
    check::<crate::Topology>();
    check::<crate::Error>();
}
