//! An attack as a value: its requests, the number of its connections, and how the connections treat the answers of the
//! server.

use std::time::Duration;

/// An attack. All connections start at the same time, and each sends its next request when the previous one is over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attack {
    /// The name on the command line and in the report.
    pub(crate) name: &'static str,
    /// The flags of the server that is attacked.
    pub(crate) flags: &'static [(&'static str, &'static str)],
    /// The API key of the attackers, and that of the ordinary streams, if the server's flags require keys.
    pub(crate) api_keys: Option<[&'static str; 2]>,
    /// The number of connections at a time.
    pub(crate) connections: usize,
    /// The time between an answer and the next request of a connection.
    pub(crate) pause: Duration,
    /// Creates the requests. The connections send them in order, again and again, and start at different ones as far as
    /// there are enough.
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
    /// Reads at most `bytes_per_second`, with a small receive buffer.
    ReadSlowly { bytes_per_second: usize },
    /// Reads nothing until the attack is over.
    ReadNothing,
    /// Sends the request without the end of its body.
    SendHalf,
    /// Sends only the head of the request, without its end.
    SendHead,
    /// Sends one byte more than the body, and disconnects while the answer is computed.
    LeaveWithByte,
}

impl Attack {
    /// Returns an attack on a server without flags, with four connections that read the answers and pause for a second
    /// between their requests.
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
