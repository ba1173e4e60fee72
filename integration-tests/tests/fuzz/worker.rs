//! A client of the fuzz test. It draws requests, sends them in various manners, and has the answers judged.

use std::net::SocketAddr;
use std::time::Duration;

use integration_tests::{Client, Connection, End, Processes, request_head};

use crate::draw::Draw;
use crate::requests::{self, Request};
use crate::tally::{Place, Tally};
use crate::verdict;

/// The maximum time after which a client that leaves early disconnects.
const MAX_STAY_MS: usize = 60;
/// The maximum number of lines of a stream that a client reads before it leaves.
const MAX_LINES: usize = 24;

/// The server under test, and the state that all clients share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) client: &'a Client,
    pub(crate) address: SocketAddr,
    pub(crate) processes: &'a Processes,
    pub(crate) tally: &'a Tally,
    pub(crate) end: &'a End,
}

/// How a client treats its request and the answer.
#[derive(Debug, Clone, Copy)]
enum Manner {
    /// Reads the whole answer.
    Read,
    /// Reads `num_lines` lines of the answer and disconnects.
    LeaveMidway { num_lines: usize },
    /// Disconnects after `stay`, most likely before the answer arrives.
    LeaveEarly { stay: Duration },
    /// Sends half of the body and disconnects after `stay`.
    SendHalf { stay: Duration },
}

/// The outcome of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    Answered(Answer),
    /// The client disconnected before the end of the answer.
    Left,
    /// There was no answer, or it was cut off.
    Lost(String),
}

/// An answer over HTTP.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) text: String,
}

/// Sends requests until the end of the run, and ends the run if there are too many violations or the server is gone.
pub(crate) fn run(target: Target<'_>, mut draw: Draw, worker: u64) {
    for number in 0.. {
        if target.end.is_set() {
            return;
        }
        let request = requests::draw(&mut draw);
        let outcome = match Manner::draw(&mut draw, request.is_stream) {
            Manner::Read => read(target.client, &request, None),
            Manner::LeaveMidway { num_lines } => read(target.client, &request, Some(num_lines)),
            Manner::LeaveEarly { stay } => leave(target, &request, request.body.to_string().as_bytes(), stay),
            Manner::SendHalf { stay } => {
                let body = request.body.to_string();
                leave(target, &request, &body.as_bytes()[..body.len() / 2], stay)
            }
        };
        let fault = match &outcome {
            Outcome::Answered(answer) => verdict::judge(&request, answer).err(),
            Outcome::Left => None,
            Outcome::Lost(reason) => Some(reason.clone()),
        };
        let has_room = target.tally.add(&request, Place { worker, number }, &outcome, fault.as_deref());
        let is_lost = matches!(outcome, Outcome::Lost(_));
        if !has_room || is_lost && !target.processes.are_alive() {
            target.end.set();
        }
    }
}

impl Manner {
    fn draw(draw: &mut Draw, is_stream: bool) -> Self {
        let stay = Duration::from_millis(draw.below(MAX_STAY_MS) as u64);
        let num_lines = draw.below(MAX_LINES);
        match draw.below(30) {
            0 => Self::SendHalf { stay },
            1 | 2 => Self::LeaveEarly { stay },
            3..=7 if is_stream => Self::LeaveMidway { num_lines },
            _ => Self::Read,
        }
    }
}

/// Sends a request and reads the answer, but at most `most_lines` lines of it.
fn read(client: &Client, request: &Request, most_lines: Option<usize>) -> Outcome {
    let (status, lines) = match client.open(request.path, &request.body) {
        Ok(opened) => opened,
        Err(error) => return Outcome::Lost(format!("no answer: {error}")),
    };
    let mut text = String::new();
    for (number, line) in lines.enumerate() {
        if Some(number) == most_lines {
            return Outcome::Left;
        }
        match line {
            Ok(line) => text.push_str(&(line + "\n")),
            Err(error) => return Outcome::Lost(format!("the status {status}, {text:?}, and then {error}")),
        }
    }
    Outcome::Answered(Answer { status, text })
}

/// Sends the head of the request and `sent`, which is all or a part of the body. Waits for `stay`, and closes the
/// connection.
fn leave(target: Target<'_>, request: &Request, sent: &[u8], stay: Duration) -> Outcome {
    let head = request_head(request.path, request.body.to_string().len(), None);
    let send = |mut connection: Connection| -> std::io::Result<()> {
        connection.send(head.as_bytes(), target.end)?;
        connection.send(sent, target.end)?;
        target.end.wait(stay);
        Ok(())
    };
    // An error of sending is no fault: a server that refuses a request need not read all of it.
    match Connection::open(target.address, false).map(send) {
        Ok(Ok(()) | Err(_)) => Outcome::Left,
        Err(error) => Outcome::Lost(format!("no connection: {error}")),
    }
}
