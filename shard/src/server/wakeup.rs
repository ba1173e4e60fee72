//! The wait for a command or for the end of a step, whichever comes first.
//!
//! Entry point: [`Wakeup::wait`]. The waker of a step writes to an eventfd, so the main thread can wait for the eventfd
//! and the socket together (poll(2)).

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};

use rustix::event::{EventfdFlags, PollFd, PollFlags};

/// The wait of the main thread, which a launched step can end.
#[derive(Debug)]
pub(super) struct Wakeup {
    signal: Arc<Signal>,
}

/// An eventfd: readable after the waker was woken, until it is read.
#[derive(Debug)]
struct Signal(OwnedFd);

impl Wakeup {
    /// Creates the eventfd.
    ///
    /// # Errors
    /// When the system refuses it, for example because the process has no file descriptor left.
    pub(super) fn new() -> io::Result<Self> {
        let signal = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { signal: Arc::new(Signal(signal)) })
    }

    /// Returns a waker that ends [`wait`](Self::wait).
    pub(super) fn waker(&self) -> Waker {
        Arc::clone(&self.signal).into()
    }

    /// Blocks until the waker is woken or `commands` can be read. Without `commands`, only the waker ends the wait.
    /// Returns true if `commands` can be read, or was closed.
    ///
    /// # Errors
    /// When the system cannot wait.
    pub(super) fn wait(&self, commands: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let mut files = vec![PollFd::new(&self.signal.0, PollFlags::IN)];
        files.extend(commands.map(|commands| PollFd::from_borrowed_fd(commands, PollFlags::IN)));
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut files, None))?;
        if !files[0].revents().is_empty() {
            // The count does not matter. Reading resets it.
            let _ = rustix::io::read(&self.signal.0, &mut [0; 8]);
        }
        Ok(files.get(1).is_some_and(|commands| !commands.revents().is_empty()))
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // If the count would overflow, the write fails, but the eventfd is readable then.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn wait(wakeup: &Wakeup, commands: Option<BorrowedFd<'_>>) -> bool {
        test_support::watched("the end of the wait", || wakeup.wait(commands)).unwrap()
    }

    #[test]
    fn a_command_or_the_waker_ends_the_wait() {
        let wakeup = Wakeup::new().unwrap();
        let (mut client, commands) = UnixStream::pair().unwrap();
        client.write_all(b"command").unwrap();
        assert!(wait(&wakeup, Some(commands.as_fd())));
        wakeup.waker().wake();
        assert!(!wait(&wakeup, None));
        // The earlier wake-up was read, so only the command ends this wait.
        assert!(wait(&wakeup, Some(commands.as_fd())));
        drop(client);
        assert!(wait(&wakeup, Some(commands.as_fd())));
    }

    #[test]
    fn another_thread_ends_the_wait() {
        let wakeup = Wakeup::new().unwrap();
        let (_client, commands) = UnixStream::pair().unwrap();
        let waker = wakeup.waker();
        let thread = std::thread::spawn(move || waker.wake());
        assert!(!wait(&wakeup, Some(commands.as_fd())));
        test_support::join(thread, "the thread that wakes");
    }
}
