//! Tests of events as futures: only the last waker is woken, results can be read more than once, and nothing leaks.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};

use test_support::join;

use super::{CountingWaker, assert_clean_soon, upload};
use crate::testing::{Control, Kind, client, control};
use crate::{Argument, Client, Code, Error, Event, ExecuteOptions};

/// Returns an event that stays pending until the test fires it with [`Control::fire`].
fn pending(client: &Client) -> Event {
    let program = client.compile(b"1 1", &crate::CompileOptions::default()).expect("a fake program");
    let (a, b) = (upload(client, 0, &[1]), upload(client, 1, &[2]));
    control().defer();
    let arguments = vec![vec![Argument::Keep(&a)], vec![Argument::Keep(&b)]];
    let options = ExecuteOptions { reports_end: true, ..ExecuteOptions::default() };
    let mut execution = program.execute(arguments, &options).expect("an execution");
    execution.done.swap_remove(0)
}

fn poll(event: &mut Event, waker: &Arc<CountingWaker>) -> Poll<Result<(), Error>> {
    let waker = Waker::from(Arc::clone(waker));
    Pin::new(event).poll(&mut Context::from_waker(&waker))
}

#[test]
fn the_last_waker_is_woken_once() {
    let mut event = pending(&client());
    let [first, second] = [Arc::<CountingWaker>::default(), Arc::default()];
    assert!(poll(&mut event, &first).is_pending());
    assert!(poll(&mut event, &second).is_pending());
    assert!(!event.is_ready());
    control().fire(None);
    assert_eq!((first.count(), second.count()), (0, 1));
    assert!(event.is_ready());
    assert!(poll(&mut event, &first).ended_with(|result| result.is_ok()));
    assert!(poll(&mut event, &first).ended_with(|result| result.is_ok()));
    event.wait().expect("it went well");
    assert_eq!((first.count(), second.count()), (0, 1));
    drop(event);
    control().assert_clean();
}

#[test]
fn a_failure_is_told_to_all_who_ask() {
    let mut event = pending(&client());
    let waker = Arc::<CountingWaker>::default();
    assert!(poll(&mut event, &waker).is_pending());
    control().fire(Some((14, "the other host is gone")));
    for result in [poll(&mut event, &waker), Poll::Ready(event.wait()), poll(&mut event, &waker)] {
        let Poll::Ready(Err(error)) = result else { panic!("not an error: {result:?}") };
        assert_eq!(error.to_string(), "PJRT_LoadedExecutable_Execute: unavailable: the other host is gone");
        assert_eq!(error.code(), Some(Code::Unavailable));
    }
    drop(event);
    control().assert_clean();
}

#[test]
fn an_event_that_was_ready_needs_no_callback() {
    let mut event = pending(&client());
    control().fire(Some((1, "gone")));
    let waker = Arc::<CountingWaker>::default();
    assert!(poll(&mut event, &waker).ended_with(|result| result.is_err()));
    assert_eq!(waker.count(), 0);
    drop(event);
    control().assert_clean();
}

#[test]
fn dropping_an_event_before_it_fires_is_safe() {
    let mut event = pending(&client());
    let waker = Arc::<CountingWaker>::default();
    assert!(poll(&mut event, &waker).is_pending());
    drop(event);
    assert_eq!(control().alive(Kind::Client), 0);
    control().fire(Some((13, "nobody listens")));
    assert_eq!(waker.count(), 1);
    assert_eq!(Arc::strong_count(&waker), 1);
    control().assert_clean();
}

#[test]
fn another_thread_may_end_the_work() {
    let client = client();
    for round in 0..10 {
        let mut event = pending(&client);
        let ours: Arc<Control> = control();
        let theirs = Arc::clone(&ours);
        let plugin = std::thread::spawn(move || {
            theirs.adopt();
            theirs.fire(None);
        });
        let waker = Arc::<CountingWaker>::default();
        if round % 2 == 0 {
            event.wait().expect("it went well");
        } else if poll(&mut event, &waker).is_pending() {
            join(plugin, "the plugin's thread");
            assert_eq!(waker.count(), 1);
            assert!(poll(&mut event, &waker).ended_with(|result| result.is_ok()));
            continue;
        }
        join(plugin, "the plugin's thread");
    }
    drop(client);
    control().assert_clean();
}

/// The waker of a task that owns a client.
struct Task {
    _client: Client,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

/// Ends all pending work on a new thread, which plays a thread of the plugin. Returns the thread's id.
fn fire_on_another_thread() -> std::thread::ThreadId {
    let ours: Arc<Control> = control();
    let fire = move || {
        ours.adopt();
        ours.fire(None);
        std::thread::current().id()
    };
    join(std::thread::spawn(fire), "the plugin's thread")
}

#[test]
fn a_client_is_never_destroyed_on_a_thread_of_the_plugin() {
    let by_waker = || {
        let client = client();
        let mut event = pending(&client);
        let waker = Waker::from(Arc::new(Task { _client: client }));
        assert!(Pin::new(&mut event).poll(&mut Context::from_waker(&waker)).is_pending());
    };
    let by_owner = || {
        let client = client();
        control().defer();
        let owner = super::Owner::new(&[1]);
        drop(client.upload_owned(owner, crate::ElementType::U8, &[1], &client.devices()[0]).expect("an upload"));
    };
    for leave_the_client_to_a_callback in [by_waker as fn(), by_owner] {
        control().is_deferred.store(false, Ordering::SeqCst);
        leave_the_client_to_a_callback();
        assert_eq!(control().alive(Kind::Client), 1);
        let plugin = fire_on_another_thread();
        assert_clean_soon();
        let destroyed_on = *control().destroyed_on.lock().expect("no panic");
        assert!(destroyed_on.is_some_and(|thread| thread != plugin));
    }
}

#[test]
fn a_plugin_that_cannot_call_back_is_an_error_once() {
    let mut event = pending(&client());
    let waker = Arc::<CountingWaker>::default();
    control().fail("PJRT_Event_OnReady", 13, "no thread");
    assert!(poll(&mut event, &waker).ended_with(|result| result.is_err()));
    assert_eq!(Arc::strong_count(&waker), 1);
    assert!(poll(&mut event, &waker).is_pending());
    control().fire(None);
    assert_eq!(waker.count(), 1);
    drop(event);
    control().assert_clean();
}

trait EndedWith<T> {
    fn ended_with(&self, check: impl FnOnce(&T) -> bool) -> bool;
}

impl<T> EndedWith<T> for Poll<T> {
    fn ended_with(&self, check: impl FnOnce(&T) -> bool) -> bool {
        matches!(self, Poll::Ready(value) if check(value))
    }
}
