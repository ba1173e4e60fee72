//! Signs of life between the processes of a server: how often they are sent, how long their absence is borne, and a
//! clock that counts only the time in which the waiting process ran itself.
//!
//! Entry points: [`AwakeTime`], [`PatientReader`]. If all processes are frozen for a while (`docker pause`, a
//! hypervisor, a debugger), nobody was silent: the clocks of the machine went on, but no process could have spoken. A
//! process that waits therefore wakes at least once in each [`TICK`], and a wake counts for at most one tick.
//! `docs/liveness.md` has the table of all deadlines.

#![forbid(unsafe_code)]

use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

/// The time between two signs of life of a process.
pub const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// The time without a sign of life after which a process counts as hanging.
pub const SILENCE_DEADLINE: Duration = Duration::from_secs(10);
/// The time without a sign of life after which a server that waits for it is not ready: three beats are missing.
pub const DOUBT: Duration = Duration::from_secs(3);
/// The maximum time between two looks at an [`AwakeTime`] while its process waits.
pub const TICK: Duration = Duration::from_millis(250);

/// The time for which this process has waited for something while it ran.
///
/// The value advances by at most [`TICK`] for each look, so a process that was frozen between two looks has hardly
/// waited.
#[derive(Debug, Clone, Copy)]
pub struct AwakeTime {
    looked_at: Instant,
    elapsed: Duration,
}

impl AwakeTime {
    /// Returns a clock that starts now.
    pub fn start(now: Instant) -> Self {
        Self { looked_at: now, elapsed: Duration::ZERO }
    }

    /// Starts again from zero.
    pub fn restart(&mut self, now: Instant) {
        *self = Self::start(now);
    }

    /// Returns the time since the start. Must be called at least once in each [`TICK`], or time is not counted.
    pub fn look(&mut self, now: Instant) -> Duration {
        self.elapsed += now.saturating_duration_since(self.looked_at).min(TICK);
        self.looked_at = self.looked_at.max(now);
        self.elapsed
    }

    /// Returns the time since the start, as of the last look.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }
}

/// A reader that waits for bytes of a source for at most a deadline, without the time in which this process did not
/// run. The source must give up a read after a [`TICK`] with [`ErrorKind::WouldBlock`], as sockets with a read timeout
/// do. Bytes that were read before are not lost.
#[derive(Debug)]
pub struct PatientReader<R> {
    source: R,
    deadline: Duration,
}

impl<R: Read> PatientReader<R> {
    /// Returns a reader that waits for each byte at most `deadline`.
    pub fn new(source: R, deadline: Duration) -> Self {
        Self { source, deadline }
    }

    /// The source.
    pub fn source(&self) -> &R {
        &self.source
    }

    /// Returns the source, which has all bytes that were not read.
    pub fn into_source(self) -> R {
        self.source
    }
}

impl<R: Read> Read for PatientReader<R> {
    /// Reads as the source does.
    ///
    /// # Errors
    /// As for the source, and [`ErrorKind::TimedOut`] after the deadline.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut silence = AwakeTime::start(Instant::now());
        loop {
            match self.source.read(bytes) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if silence.look(Instant::now()) >= self.deadline {
                        return Err(ErrorKind::TimedOut.into());
                    }
                }
                result => return result,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn time_in_which_the_process_did_not_run_hardly_counts() {
        let start = Instant::now();
        let mut time = AwakeTime::start(start);
        assert_eq!(time.look(start + TICK / 2), TICK / 2);
        assert_eq!(time.look(start + TICK), TICK);
        assert_eq!(time.look(start + Duration::from_secs(60)), 2 * TICK, "frozen for a minute");
        assert_eq!(time.look(start), 2 * TICK, "an earlier look counts nothing");
        assert_eq!(time.look(start + Duration::from_secs(60) + TICK), 3 * TICK);
        time.restart(start + Duration::from_secs(120));
        assert_eq!(time.elapsed(), Duration::ZERO);
    }

    /// A source whose reads return these results, and `WouldBlock` after the last.
    struct Script(VecDeque<io::Result<u8>>);

    impl Read for Script {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            bytes[0] = self.0.pop_front().unwrap_or_else(|| Err(ErrorKind::WouldBlock.into()))?;
            Ok(1)
        }
    }

    #[test]
    fn a_read_that_is_given_up_loses_no_byte() {
        let script = [Ok(1), Err(ErrorKind::WouldBlock.into()), Err(ErrorKind::TimedOut.into()), Ok(2)];
        let mut reader = PatientReader::new(Script(script.into_iter().collect()), SILENCE_DEADLINE);
        let mut both = [0; 2];
        reader.read_exact(&mut both).unwrap();
        assert_eq!(both, [1, 2]);
        let mut reader = PatientReader::new(Script(VecDeque::new()), Duration::from_millis(1));
        assert_eq!(reader.read_exact(&mut both).unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
