//! The link between the launchers of host 0 and of another host: news of each other, and beats that show that the other
//! launcher runs.
//!
//! A message is one byte for its kind, the length of its text as 32 bits (little-endian), and the text.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use endpoint::Stream;
use liveness::{BEAT_INTERVAL, PatientReader, TICK};

use crate::error::LauncherError;
use crate::event::Event;

/// A host is lost when nothing has come from it for this time. It is shorter than the time for which ranks wait for
/// each other in a step, so that the host is named and not only its rank.
const SILENCE_DEADLINE: Duration = Duration::from_secs(8);
/// The maximum length of a text, in bytes. A longer one is cut.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// News from the launcher of another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// All hosts of the slice are connected to host 0.
    Assembled,
    /// The host has started its shards.
    Started,
    /// The router has opened its port.
    Serving,
    /// The host received a signal to stop; from host 0: the slice stops.
    Stop,
    /// The host ends because of a failure.
    Failed(String),
    /// The host has ended without a failure.
    Left,
    /// The connection has ended for the reason in the text.
    Lost(String),
}

/// The sending side of a link. Dropping it stops the beats, but not the reading of news.
#[derive(Debug)]
pub(super) struct Link {
    stream: Arc<Mutex<Stream>>,
    /// Receives a message when the other side has read the last news. Disconnected when the connection has ended.
    confirmed: Mutex<Receiver<()>>,
    _beats: SyncSender<()>,
}

impl News {
    /// True if the launch cannot go on after these news.
    pub(crate) fn is_end(&self) -> bool {
        matches!(self, Self::Stop | Self::Failed(_) | Self::Left | Self::Lost(_))
    }

    /// Returns the error that these news of the host `name` are; `None` if they are no failure.
    pub(crate) fn loss(&self, name: &str) -> Option<LauncherError> {
        match self {
            Self::Failed(reason) => Some(LauncherError::SliceLost(format!("{name} has failed: {reason}"))),
            Self::Lost(reason) => Some(LauncherError::SliceLost(format!("{name} is lost: {reason}"))),
            Self::Assembled | Self::Started | Self::Serving | Self::Stop | Self::Left => None,
        }
    }
}

impl Link {
    /// Starts the beats to host `host` and the reading of its news, which become events.
    ///
    /// # Errors
    /// When the system refuses a copy of the socket.
    pub(super) fn start(stream: Stream, host: usize, events: SyncSender<Event>) -> io::Result<Self> {
        let stream_in = stream.try_clone()?;
        stream.set_write_timeout(Some(SILENCE_DEADLINE))?;
        stream_in.set_read_timeout(Some(TICK))?;
        let stream = Arc::new(Mutex::new(stream));
        let (beats, stopped) = mpsc::sync_channel(1);
        let (of_beats, of_reader) = (Arc::clone(&stream), Arc::clone(&stream));
        std::thread::spawn(move || {
            while stopped.recv_timeout(BEAT_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if write(&of_beats, BEAT, "").is_err() {
                    return;
                }
            }
        });
        let (confirmed_tx, confirmed) = mpsc::sync_channel(1);
        let reader = NewsReader { writer: of_reader, confirmed_tx, host, events };
        std::thread::spawn(move || reader.read_all(stream_in));
        Ok(Self { stream, confirmed: Mutex::new(confirmed), _beats: beats })
    }

    /// Waits until the other side has read the last news and says so, or has ended, for at most `time`.
    pub(super) fn end(&self, time: Duration) {
        let _ = self.stream.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Write);
        let _: Result<(), RecvTimeoutError> =
            self.confirmed.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(time);
    }

    /// Sends news. An error is ignored: whoever reads news notices that the connection has failed.
    pub(super) fn send(&self, news: &News) {
        let (kind, text) = match news {
            News::Assembled => (ASSEMBLED, ""),
            News::Started => (STARTED, ""),
            News::Serving => (SERVING, ""),
            News::Stop => (STOP, ""),
            News::Failed(text) => (FAILED, text.as_str()),
            News::Left => (LEFT, ""),
            // The other side finds this out by itself.
            News::Lost(_) => return,
        };
        let _ = write(&self.stream, kind, text);
    }
}

const BEAT: u8 = 0;
const ASSEMBLED: u8 = 1;
const STARTED: u8 = 2;
const SERVING: u8 = 3;
const STOP: u8 = 4;
const FAILED: u8 = 5;
const LEFT: u8 = 6;
/// The last news of the receiver has been read.
const READ: u8 = 7;

fn write(stream: &Mutex<Stream>, kind: u8, text: &str) -> io::Result<()> {
    let text = &text.as_bytes()[..text.floor_char_boundary(MAX_TEXT_BYTES)];
    let len = u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes();
    let message = [&[kind][..], &len, text].concat();
    stream.lock().unwrap_or_else(PoisonError::into_inner).write_all(&message)
}

/// The reading side of a link.
#[derive(Debug)]
struct NewsReader {
    /// The same connection, to confirm the last news of the other host.
    writer: Arc<Mutex<Stream>>,
    confirmed_tx: SyncSender<()>,
    host: usize,
    events: SyncSender<Event>,
}

impl NewsReader {
    /// Turns the messages of the other host into events, until the connection ends. The connection stays open after the
    /// last news of the other host: both hosts may fail at the same moment, and each tells the other why.
    fn read_all(self, stream: Stream) {
        let mut stream = PatientReader::new(stream, SILENCE_DEADLINE);
        // Each kind of news counts once, so that a host cannot fill the queue of events.
        let mut seen: Vec<News> = Vec::new();
        let mut has_ended = false;
        loop {
            let news = match read(&mut stream) {
                Ok(Message::Beat) => continue,
                Ok(Message::Read) => {
                    let _ = self.confirmed_tx.try_send(());
                    continue;
                }
                Ok(Message::News(news)) if has_ended || seen.contains(&news) => continue,
                Ok(Message::News(news)) => news,
                Err(_) if has_ended => return,
                Err(error) => News::Lost(reason(&error)),
            };
            let is_lost = matches!(news, News::Lost(_));
            has_ended = is_lost || matches!(news, News::Failed(_) | News::Left);
            if !has_ended {
                seen.push(news.clone());
            }
            // The last news must arrive, so this waits for room. At the end of this launcher, nobody receives events
            // any more.
            let _ = self.events.send(Event::Host(self.host, news));
            if is_lost {
                let _ = stream.source().shutdown(Shutdown::Both);
                return;
            }
            if has_ended {
                let _ = write(&self.writer, READ, "");
            }
        }
    }
}

/// A message of another host.
#[derive(Debug)]
enum Message {
    Beat,
    News(News),
    /// The other host has read the last news of this one.
    Read,
}

fn read(stream: &mut impl Read) -> io::Result<Message> {
    let mut header = [0; 5];
    stream.read_exact(&mut header)?;
    let [kind, len @ ..] = header;
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_TEXT_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; len];
    stream.read_exact(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(Message::News(match kind {
        BEAT => return Ok(Message::Beat),
        READ => return Ok(Message::Read),
        ASSEMBLED => News::Assembled,
        STARTED => News::Started,
        SERVING => News::Serving,
        STOP => News::Stop,
        FAILED => News::Failed(text),
        LEFT => News::Left,
        _ => return Err(io::ErrorKind::InvalidData.into()),
    }))
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => "it ended without a word".to_owned(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("nothing came from it for {} s", SILENCE_DEADLINE.as_secs())
        }
        io::ErrorKind::InvalidData => "it sent something that is not a message of a host".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use test_support::receive;

    use super::*;
    use crate::event;

    #[test]
    fn a_host_that_floods_hides_no_last_news() {
        let (mut flood, stream) = UnixStream::pair().unwrap();
        let (events_tx, events) = event::channel();
        let writer = Arc::new(Mutex::new(Stream::Unix(stream.try_clone().unwrap())));
        let (confirmed_tx, _confirmed) = mpsc::sync_channel(1);
        let reader = NewsReader { writer, confirmed_tx, host: 1, events: events_tx };
        let reader = std::thread::spawn(move || reader.read_all(Stream::Unix(stream)));
        for _ in 0..1000 {
            flood.write_all(&[STARTED, 0, 0, 0, 0]).unwrap();
        }
        drop(flood);
        assert!(matches!(receive(&events, "the first news"), Event::Host(1, News::Started)));
        assert!(matches!(receive(&events, "the last news"), Event::Host(1, News::Lost(_))));
        test_support::join(reader, "the reader of news");
    }

    #[test]
    fn hosts_that_fail_at_the_same_moment_tell_each_other_why() {
        let (one, two) = UnixStream::pair().unwrap();
        let channels = [event::channel(), event::channel()];
        let links = [one, two]
            .into_iter()
            .zip(&channels)
            .map(|(stream, (events_tx, _))| Link::start(Stream::Unix(stream), 1, events_tx.clone()).unwrap());
        let links: Vec<Link> = links.collect();
        // The first host has read the failure of the second before it fails itself.
        for (number, (_, events)) in [1, 0].into_iter().zip(&channels) {
            links[number].send(&News::Failed(number.to_string()));
            let Event::Host(_, news) = receive(events, "the other's failure") else { panic!("other news") };
            assert_eq!(news, News::Failed(number.to_string()));
        }
        for link in &links {
            let started = std::time::Instant::now();
            link.end(test_support::DEADLINE);
            assert!(started.elapsed() < test_support::DEADLINE, "the news are confirmed");
        }
    }
}
