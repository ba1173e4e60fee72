//! One attack as a value: which requests, over how many connections, and how their answers are treated.

use std::time::Duration;

/// An attack. All connections send at once, and send again when their answer has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attack {
    /// Names it on the command line and in the report.
    pub(crate) name: &'static str,
    /// Flags of the server.
    pub(crate) flags: &'static [(&'static str, &'static str)],
    /// API key of the attackers, and that of the ordinary streams, where the flags ask for keys.
    pub(crate) api_keys: Option<[&'static str; 2]>,
    /// Connections at a time.
    pub(crate) connections: usize,
    /// Time between an answer and the next request of a connection.
    pub(crate) pause: Duration,
    /// Makes the requests; connections take them in turn.
    pub(crate) requests: fn() -> Vec<Request>,
    /// How a connection treats its request and the answer.
    pub(crate) manner: Manner,
    /// True where nobody reads the log of the server.
    pub(crate) is_log_unread: bool,
}

/// A request over HTTP.
#[derive(Debug)]
pub(crate) struct Request {
    /// Path of a POST.
    pub(crate) path: &'static str,
    /// JSON.
    pub(crate) body: Vec<u8>,
}

/// How a connection treats its request and the answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Manner {
    /// Reads the answer as fast as it comes.
    Read,
    /// Reads so many bytes in a second, into a small buffer.
    ReadSlowly { bytes_per_second: usize },
    /// Reads nothing until the attack is over.
    ReadNothing,
    /// Sends all but the end of the body.
    SendHalf,
    /// Sends all but the end of the head.
    SendHead,
    /// Sends a byte behind the body, and leaves while the answer is made.
    LeaveWithByte,
}

impl Attack {
    /// Four connections that read, with a second between their requests, against a server without flags.
    pub(crate) const fn new(name: &'static str, requests: fn() -> Vec<Request>) -> Self {
        Self {
            name,
            flags: &[],
            api_keys: None,
            connections: 4,
            pause: Duration::from_secs(1),
            requests,
            manner: Manner::Read,
            is_log_unread: false,
        }
    }
}
