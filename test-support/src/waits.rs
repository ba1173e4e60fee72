//! Waits with a deadline. The message of a wait that fails contains the name of the thing that did not come.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{JoinHandle, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// The maximum time of a wait. A test that passes needs far less, even on a loaded machine.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// The number of times that a condition is looked at before the waiting thread sleeps between two looks.
const LOOKS_BEFORE_SLEEP: u32 = 100;
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Waits until `is_true` returns true.
///
/// # Panics
///
/// When [`DEADLINE`] has passed. The message contains `awaited`, the name of the thing that did not come.
#[track_caller]
pub fn until(awaited: &str, is_true: impl FnMut() -> bool) {
    until_within(DEADLINE, awaited, is_true);
}

/// Waits as [`until`] does, for a wait that has a deadline of its own.
///
/// # Panics
///
/// When `deadline` has passed.
#[track_caller]
pub fn until_within(deadline: Duration, awaited: &str, is_true: impl FnMut() -> bool) {
    assert!(comes_within(deadline, is_true), "waited {deadline:?} for {awaited}");
}

/// Returns true as soon as `is_true` does, and false if that takes longer than `deadline`.
pub(crate) fn comes_within(deadline: Duration, mut is_true: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut num_looks = 0;
    while !is_true() {
        if start.elapsed() >= deadline {
            return false;
        }
        num_looks += 1;
        if num_looks < LOOKS_BEFORE_SLEEP {
            std::thread::yield_now();
        } else {
            std::thread::park_timeout(LOOK_INTERVAL);
        }
    }
    true
}

/// Returns the next message of a channel.
///
/// # Panics
///
/// When no message comes before [`DEADLINE`], or the senders are dropped.
#[track_caller]
pub fn receive<T>(messages: &Receiver<T>, awaited: &str) -> T {
    match messages.recv_timeout(DEADLINE) {
        Ok(message) => message,
        Err(RecvTimeoutError::Timeout) => panic!("waited {DEADLINE:?} for {awaited}"),
        Err(RecvTimeoutError::Disconnected) => panic!("every sender was dropped before {awaited}"),
    }
}

/// Returns the result of a thread. A panic of the thread goes on in the caller.
///
/// # Panics
///
/// When the thread has not ended before [`DEADLINE`].
#[track_caller]
pub fn join<T>(thread: JoinHandle<T>, awaited: &str) -> T {
    until(awaited, || thread.is_finished());
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Returns the result of a thread of a scope. A panic of the thread goes on in the caller.
///
/// If the thread has not ended before [`DEADLINE`], the process is aborted after a message. A panic would not help: the
/// scope would still wait for the thread.
#[track_caller]
pub fn join_scoped<T>(thread: ScopedJoinHandle<'_, T>, awaited: &str) -> T {
    if !comes_within(DEADLINE, || thread.is_finished()) {
        abort(&last_words(awaited));
    }
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Returns the result of `wait`, a call that waits and cannot be interrupted. If it has not returned before
/// [`DEADLINE`], the process is aborted after a message.
#[track_caller]
pub fn watched<T>(awaited: &str, wait: impl FnOnce() -> T) -> T {
    let (end_tx, end_rx) = std::sync::mpsc::channel::<()>();
    let message = last_words(awaited);
    let watch = move || {
        if end_rx.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout) {
            abort(&message);
        }
    };
    let watcher = std::thread::spawn(watch);
    let result = wait();
    drop(end_tx);
    join(watcher, "the watcher of a wait");
    result
}

#[track_caller]
fn last_words(awaited: &str) -> String {
    let (caller, thread) = (std::panic::Location::caller(), std::thread::current());
    let test = thread.name().unwrap_or("a thread without a name");
    format!("{test} ({caller}): waited {DEADLINE:?} for {awaited}; the test process ends\n")
}

/// Ends the process. The message goes to stderr itself, because the test runner would keep the output of the test.
fn abort(message: &str) -> ! {
    let _ = io::Write::write_all(&mut io::stderr(), message.as_bytes());
    std::process::abort()
}

/// Returns the next connection of a listener. Its reads fail after [`DEADLINE`].
///
/// # Panics
///
/// When no connection comes before [`DEADLINE`].
#[track_caller]
pub fn accept(listener: &TcpListener, awaited: &str) -> TcpStream {
    let set_nonblocking = |is_nonblocking| listener.set_nonblocking(is_nonblocking);
    let (stream, _) = accepted(set_nonblocking, || listener.accept(), awaited);
    stream.set_read_timeout(Some(DEADLINE)).expect("the duration is not zero");
    stream
}

/// Returns the next connection of a Unix socket, as [`accept`] does.
///
/// # Panics
///
/// When no connection comes before [`DEADLINE`].
#[track_caller]
pub fn accept_unix(listener: &UnixListener, awaited: &str) -> UnixStream {
    let set_nonblocking = |is_nonblocking| listener.set_nonblocking(is_nonblocking);
    let (stream, _) = accepted(set_nonblocking, || listener.accept(), awaited);
    stream.set_read_timeout(Some(DEADLINE)).expect("the duration is not zero");
    stream
}

#[track_caller]
fn accepted<T>(
    set_nonblocking: impl Fn(bool) -> io::Result<()>,
    accept: impl Fn() -> io::Result<T>,
    awaited: &str,
) -> T {
    set_nonblocking(true).expect("an open listener");
    let mut connection = None;
    until(awaited, || {
        connection = match accept() {
            Ok(connection) => Some(connection),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => panic!("{awaited}: {error}"),
        };
        connection.is_some()
    });
    set_nonblocking(false).expect("an open listener");
    connection.expect("the wait ends with a connection")
}

/// The place where a number of threads wait for each other, again and again. A barrier with a deadline.
pub struct Meeting {
    num_threads: usize,
    num_arrivals: AtomicUsize,
}

impl Meeting {
    /// Returns a meeting of `num_threads` threads.
    #[must_use]
    pub const fn new(num_threads: usize) -> Self {
        Self { num_threads, num_arrivals: AtomicUsize::new(0) }
    }

    /// Waits until all threads have arrived.
    ///
    /// # Panics
    ///
    /// When one of them has not arrived before [`DEADLINE`].
    #[track_caller]
    pub fn attend(&self, awaited: &str) {
        let earlier = self.num_arrivals.fetch_add(1, Ordering::AcqRel);
        let all = (earlier / self.num_threads + 1) * self.num_threads;
        until(awaited, || self.num_arrivals.load(Ordering::Acquire) >= all);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_wait_ends_when_its_condition_is_true() {
        let mut num_looks = 0;
        until("the third look", || {
            num_looks += 1;
            num_looks == 3
        });
        assert_eq!(num_looks, 3);
    }

    #[test]
    fn a_wait_that_fails_names_the_thing_that_did_not_come() {
        let wait = || until_within(Duration::from_millis(1), "the reply of the shard", || false);
        let panic = catch_unwind(wait).expect_err("the condition is never true");
        assert_eq!(panic.downcast_ref::<String>().unwrap(), "waited 1ms for the reply of the shard");
    }

    #[test]
    fn a_channel_without_senders_is_named() {
        let (message_tx, messages) = mpsc::channel();
        message_tx.send(7).unwrap();
        assert_eq!(receive(&messages, "the number"), 7);
        drop(message_tx);
        let panic = catch_unwind(move || receive(&messages, "the number")).expect_err("nobody sends");
        assert_eq!(panic.downcast_ref::<String>().unwrap(), "every sender was dropped before the number");
    }

    #[test]
    fn a_panic_of_a_thread_goes_on() {
        let thread = std::thread::spawn(|| panic!("expected by the test"));
        let panic = catch_unwind(AssertUnwindSafe(|| join(thread, "the thread"))).expect_err("the thread panics");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"expected by the test"));
        assert_eq!(std::thread::scope(|scope| join_scoped(scope.spawn(|| 7), "the thread")), 7);
    }

    #[test]
    fn a_watched_wait_returns_its_result() {
        assert_eq!(watched("the number", || 7), 7);
    }

    #[test]
    fn threads_meet_again_and_again() {
        let (meeting, num_rounds) = (Meeting::new(3), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 0..10 {
                        meeting.attend("the other threads");
                        assert!((3 * round..3 * (round + 1)).contains(&num_rounds.fetch_add(1, Ordering::SeqCst)));
                        meeting.attend("the end of the round");
                    }
                });
            }
        });
        assert_eq!(num_rounds.into_inner(), 30);
    }

    #[test]
    fn connections_are_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = accept(&listener, "the client");
        assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
        assert_eq!(server.read_timeout().unwrap(), Some(DEADLINE));
    }
}
