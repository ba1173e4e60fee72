//! Tests of events and downloads as futures, and of values that are dropped while a program runs.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};

use pjrt::{Argument, ExecuteOptions};

use super::{PATIENCE, client, identity_matrix, new_client, plugin, slow};

/// A waker that counts how often it is woken, and sends a message each time.
#[derive(Debug)]
struct Notifier(mpsc::Sender<()>, AtomicUsize);

impl Wake for Notifier {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.send(()).expect("the test waits");
    }
}

#[test]
fn futures_wake_the_task_that_polled_last() {
    let Some(client) = client() else { return };
    let program = slow(&client);
    let x = identity_matrix(&client.addressable_devices()[0]);
    let options = ExecuteOptions { reports_end: true, ..ExecuteOptions::default() };
    let mut execution = program.execute(vec![vec![Argument::Keep(&x)]], &options).expect("started");
    let mut copy = execution.outputs[0][0].to_host().expect("a download");
    let ((first, _unheard), (second, heard)) = (mpsc::channel(), mpsc::channel());
    let tasks = [first, second].map(|sender| Arc::new(Notifier(sender, AtomicUsize::new(0))));
    let wakers = [0, 1].map(|index| Waker::from(Arc::clone(&tasks[index])));
    let mut poll = |waker| Pin::new(&mut execution.done[0]).poll(&mut Context::from_waker(waker));
    let pending = [poll(&wakers[0]).is_pending(), poll(&wakers[1]).is_pending()];
    assert_eq!(pending, [true; 2], "the program ended too soon to test anything");
    heard.recv_timeout(PATIENCE).expect("the last waker is woken");
    assert_eq!(tasks[0].1.load(Ordering::SeqCst), 0);
    assert!(matches!(poll(&wakers[0]), Poll::Ready(Ok(()))));
    while Pin::new(&mut copy).poll(&mut Context::from_waker(&wakers[1])).is_pending() {
        heard.recv_timeout(PATIENCE).expect("woken");
    }
}

#[test]
fn values_may_be_dropped_in_any_order_while_work_goes_on() {
    let Some(plugin) = plugin() else { return };
    for first in 0..4 {
        let client = new_client(&plugin);
        let program = slow(&client);
        let x = identity_matrix(&client.addressable_devices()[0]);
        let execution = program.execute(vec![vec![Argument::Keep(&x)]], &ExecuteOptions::default()).expect("started");
        let copy = execution.outputs[0][0].to_host().expect("a download");
        let mut parts: [Option<Box<dyn std::any::Any>>; 4] =
            [Some(Box::new((client, x))), Some(Box::new(program)), Some(Box::new(copy)), Some(Box::new(execution))];
        for index in (0..4).map(|step| (first + step) % 4) {
            parts[index] = None;
        }
    }
}
