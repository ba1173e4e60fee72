//! An attack as a value: its requests, its number of connections, and how they treat the answers.

use std::time::Duration;

/// An attack. All connections send at once, and each sends again after its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attack {
    /// The name on the command line and in the report.
    pub(crate) name: &'static str,
    /// The flags of the server.
    pub(crate) flags: &'static [(&'static str, &'static str)],
    /// The API keys of the attackers and of the ordinary streams, if the flags require keys.
    pub(crate) api_keys: Option<[&'static str; 2]>,
    /// The number of connections at a time.
    pub(crate) connections: usize,
    /// The time between an answer and the next request of a connection.
    pub(crate) pause: Duration,
    /// Creates the requests, which the connections send in turn.
    pub(crate) requests: fn() -> Vec<Request>,
    /// How a connection treats its request and the answer.
    pub(crate) manner: Manner,
    /// True if nobody reads the server's log during the attack.
    pub(crate) is_log_unread: bool,
}

/// A request over HTTP.
#[derive(Debug)]
pub(crate) struct Request {
    /// The path of the POST request.
    pub(crate) path: &'static str,
    /// The body, which is JSON.
    pub(crate) body: Vec<u8>,
}

/// How a connection treats its request and the answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Manner {
    /// Reads the answer as fast as it arrives.
    Read,
    /// Reads `bytes_per_second`, with a small receive buffer.
    ReadSlowly { bytes_per_second: usize },
    /// Reads nothing until the attack is over.
    ReadNothing,
    /// Sends all but the end of the body.
    SendHalf,
    /// Sends all but the end of the head.
    SendHead,
    /// Sends one byte after the body, and disconnects while the answer is computed.
    LeaveWithByte,
}

impl Attack {
    /// An attack with four connections that read and pause for a second between their requests, on a server without
    /// flags.
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
