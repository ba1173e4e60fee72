//! A stream to which callers write without waiting: lines go into a queue, and one thread writes them.
//!
//! The reader of the log may pause for any time, or go away. If the queue is full, the oldest lines are dropped, so
//! that the last lines of a process are kept. When the reader continues, one line takes the place of the dropped lines
//! and gives their number.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tracing::Level;

use crate::LogLine;

/// The maximum size of the queue, in bytes. If it is exceeded, the oldest lines are dropped.
pub(crate) const MAX_QUEUED_BYTES: usize = 1 << 20;
/// The maximum number of bytes that are written at once, unless a single line is longer.
const MAX_CHUNK_BYTES: usize = 64 << 10;

/// A function that formats a log line. The notices about dropped lines have the same format.
pub(crate) type Format = Box<dyn Fn(&LogLine) -> String + Send + Sync>;

/// The queue of one stream, and the thread that writes it, which runs until the process ends.
pub(crate) struct Output {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// Notified when text was queued, or when a write has ended.
    changed: Condvar,
    format: Format,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<String>,
    num_bytes: usize,
    /// The number of lines before `lines` that were dropped.
    num_dropped: u64,
    is_writing: bool,
    /// True if the last write failed.
    is_broken: bool,
}

impl Output {
    /// Starts the thread that writes to `stream`.
    pub(crate) fn start(stream: &impl AsFd, format: Format) -> io::Result<Self> {
        let file = File::from(stream.as_fd().try_clone_to_owned()?);
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new(), format });
        let writer = Arc::clone(&shared);
        std::thread::Builder::new().name("log".into()).spawn(move || writer.write_forever(file))?;
        Ok(Self { shared })
    }

    /// Queues a log line.
    pub(crate) fn push_line(&self, line: &LogLine) {
        self.push((self.shared.format)(line));
    }

    /// Queues text, unchanged.
    pub(crate) fn push(&self, text: String) {
        self.shared.lock().push(text);
        self.shared.changed.notify_all();
    }

    /// Waits until the queue is written. Returns false if that takes longer than `timeout`, or if the last write
    /// failed.
    pub(crate) fn flush(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut queue = self.shared.lock();
        while queue.is_writing || !queue.lines.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.changed.wait_timeout(queue, left);
            (queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        !queue.is_broken
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A poisoned lock is ignored, because no code panics while it holds the queue.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_forever(&self, mut file: File) {
        loop {
            let mut queue = self.lock();
            while queue.lines.is_empty() {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            let (lines, num_dropped) = queue.take();
            drop(queue);
            let notice = if num_dropped == 0 { String::new() } else { (self.format)(&notice(num_dropped)) };
            let is_written =
                write_all(&mut file, notice.as_bytes()).and_then(|()| write_all(&mut file, lines.as_bytes()));
            let mut queue = self.lock();
            queue.is_writing = false;
            queue.is_broken = is_written.is_err();
            if queue.is_broken {
                queue.num_dropped += num_dropped + num_lines(&lines);
            }
            drop(queue);
            self.changed.notify_all();
        }
    }
}

impl Queue {
    fn push(&mut self, text: String) {
        self.num_bytes += text.len();
        self.lines.push_back(text);
        while self.num_bytes > MAX_QUEUED_BYTES {
            let Some(oldest) = self.lines.pop_front() else { return };
            self.num_bytes -= oldest.len();
            self.num_dropped += num_lines(&oldest);
        }
    }

    /// Takes the lines that the next write writes, and the number of lines that were dropped before them.
    fn take(&mut self) -> (String, u64) {
        let mut chunk = self.lines.pop_front().unwrap_or_default();
        while let Some(next) = self.lines.front().filter(|next| chunk.len() + next.len() <= MAX_CHUNK_BYTES) {
            chunk.push_str(next);
            self.lines.pop_front();
        }
        self.num_bytes -= chunk.len();
        self.is_writing = true;
        (chunk, std::mem::take(&mut self.num_dropped))
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("queue", &self.shared.queue).finish_non_exhaustive()
    }
}

fn num_lines(text: &str) -> u64 {
    text.bytes().filter(|byte| *byte == b'\n').count() as u64
}

fn notice(num_dropped: u64) -> LogLine {
    let lines = if num_dropped == 1 { "log line was" } else { "log lines were" };
    let message = format!("{num_dropped} {lines} dropped: the log was not read fast enough or could not be written");
    let mut line = LogLine::now(Level::WARN, "telemetry", message);
    line.fields.insert("num_dropped".into(), num_dropped.into());
    line
}

/// Writes all bytes. Waits if the stream is not ready, because another process that shares the stream may have made it
/// non-blocking.
fn write_all(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(num_written) => bytes = &bytes[num_written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(file, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, PipeReader};

    use super::*;

    /// The timeout of a wait that a test expects to fail.
    const SHORT: Duration = Duration::from_millis(10);
    const LONG: Duration = Duration::from_secs(60);

    fn output() -> (PipeReader, Output) {
        let (reader, writer) = io::pipe().unwrap();
        let output = Output::start(&writer, Box::new(|line| line.text() + "\n")).unwrap();
        (reader, output)
    }

    /// Returns a line of 1 KiB.
    fn line(index: usize) -> String {
        format!("{index:<1023}\n")
    }

    #[test]
    fn lines_arrive_in_order() {
        let (mut reader, output) = output();
        (0..10).for_each(|index| output.push(format!("{index}\n")));
        assert!(output.flush(LONG));
        drop(output);
        let mut bytes = vec![0; 20];
        io::Read::read_exact(&mut reader, &mut bytes).unwrap();
        assert_eq!(bytes, b"0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
    }

    #[test]
    fn nobody_waits_for_a_reader_and_the_newest_lines_are_kept() {
        let (reader, output) = output();
        let num_lines = 3 * MAX_QUEUED_BYTES / 1024;
        (0..num_lines).for_each(|index| output.push(line(index)));
        assert!(!output.flush(SHORT));
        let mut read = 0;
        let mut dropped = 0;
        for text in BufReader::new(reader).lines().map(Result::unwrap) {
            if let Some((count, _)) = text.split_once(" log line") {
                dropped += count.parse::<usize>().unwrap();
                continue;
            }
            assert_eq!(text.trim_end(), (read + dropped).to_string(), "the notice stands where lines are missing");
            read += 1;
            if read + dropped == num_lines {
                break;
            }
        }
        assert!(dropped >= num_lines - (MAX_QUEUED_BYTES + 3 * MAX_CHUNK_BYTES) / 1024, "{dropped} dropped");
        assert!(output.flush(LONG));
    }

    #[test]
    fn a_reader_that_is_gone_is_no_error_but_known() {
        let (reader, output) = output();
        drop(reader);
        output.push("lost\n".into());
        assert!(!output.flush(LONG), "it cannot be written");
        assert_eq!(output.shared.lock().num_dropped, 1);
        output.push("lost too\n".into());
        assert!(!output.flush(LONG));
        assert_eq!(output.shared.lock().num_dropped, 2);
    }

    #[test]
    fn a_stream_that_somebody_made_non_blocking_is_waited_for() {
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let output = Output::start(&writer, Box::new(LogLine::text)).unwrap();
        let num_lines = MAX_QUEUED_BYTES / 1024;
        (0..num_lines).for_each(|index| output.push(line(index)));
        let mut bytes = vec![0; MAX_QUEUED_BYTES];
        io::Read::read_exact(&mut reader, &mut bytes).unwrap();
        assert!(bytes.ends_with(line(num_lines - 1).as_bytes()));
        assert!(output.flush(LONG));
    }
}
