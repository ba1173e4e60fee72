//! One connection: greeting, handshake, then the peer's subscriptions or requests.

use crate::command::{Command, write_error, write_pong, write_ready};
use crate::frame::Frame;
use crate::greeting::{self, GREETING_BYTES};
use crate::{MAX_FRAMES, ZmtpError};

/// The type of this side's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketType {
    /// Sends messages to subscribers.
    Pub,
    /// Takes requests and sends any number of replies to each.
    Router,
}

/// News from the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// The handshake is complete, so messages may be sent from now on.
    Ready,
    /// The peer wants the messages whose first frame begins with these bytes.
    Subscribe(Vec<u8>),
    /// The peer no longer wants these messages.
    Cancel(Vec<u8>),
    /// A request, as its frames.
    Request(Vec<Vec<u8>>),
}

/// The state of one connection.
#[derive(Debug)]
pub struct Session {
    socket_type: SocketType,
    stage: Stage,
    /// Received bytes that are not parsed: less than a frame or a greeting.
    received: Vec<u8>,
    /// Bytes that the caller must send.
    unsent: Vec<u8>,
    /// The frames of a message whose last frame was not received.
    message: Vec<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Greeting,
    Handshake,
    Ready,
}

impl SocketType {
    fn name(self) -> &'static str {
        match self {
            Self::Pub => "PUB",
            Self::Router => "ROUTER",
        }
    }

    /// The types of the peers' sockets.
    fn peers(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Pub => (&["SUB", "XSUB"], "SUB and XSUB"),
            Self::Router => (&["REQ", "DEALER", "ROUTER"], "REQ, DEALER and ROUTER"),
        }
    }
}

impl Session {
    /// Creates the state of a new connection. Its first bytes to send are the greeting.
    pub fn new(socket_type: SocketType) -> Self {
        let unsent = greeting::greeting().to_vec();
        Self { socket_type, stage: Stage::Greeting, received: Vec::new(), unsent, message: Vec::new() }
    }

    /// Returns the bytes to send that were not returned before.
    pub fn take_unsent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.unsent)
    }

    /// Takes received bytes, and returns their news in order. Bytes to send may result from each call.
    ///
    /// # Errors
    /// When the peer must be sent away. The bytes to send then end with the reason, if the peer can read it.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Vec<Incoming>, ZmtpError> {
        self.received.extend_from_slice(bytes);
        let mut news = Vec::new();
        let result = self.parse(&mut news);
        if let Err(error) = &result
            && self.stage != Stage::Greeting
        {
            write_error(&error.to_string(), &mut self.unsent);
        }
        result.map(|()| news)
    }

    fn parse(&mut self, news: &mut Vec<Incoming>) -> Result<(), ZmtpError> {
        if self.stage == Stage::Greeting {
            greeting::check(&self.received)?;
            if self.received.len() < GREETING_BYTES {
                return Ok(());
            }
            self.received.drain(..GREETING_BYTES);
            self.stage = Stage::Handshake;
            write_ready(self.socket_type.name(), &mut self.unsent);
        }
        while let Some(frame) = Frame::take(&mut self.received)? {
            news.extend(self.take(frame)?);
        }
        Ok(())
    }

    fn take(&mut self, frame: Frame) -> Result<Option<Incoming>, ZmtpError> {
        let Frame { is_command, has_more, body } = frame;
        if is_command {
            return self.obey(&Command::parse(&body)?);
        }
        if self.stage != Stage::Ready {
            return Err(ZmtpError::Command("the handshake must begin with READY"));
        }
        if self.message.len() == MAX_FRAMES {
            return Err(ZmtpError::TooManyFrames);
        }
        self.message.push(body);
        if has_more {
            return Ok(None);
        }
        let mut message = std::mem::take(&mut self.message);
        match (self.socket_type, &*message) {
            (SocketType::Router, _) => Ok(Some(Incoming::Request(message))),
            // Version 3.0 of the protocol has messages instead of the two commands.
            (SocketType::Pub, [body]) => match body.first() {
                Some(1) => Ok(Some(Incoming::Subscribe(message.remove(0).split_off(1)))),
                Some(0) => Ok(Some(Incoming::Cancel(message.remove(0).split_off(1)))),
                _ => Ok(None),
            },
            (SocketType::Pub, _) => Ok(None),
        }
    }

    fn obey(&mut self, command: &Command<'_>) -> Result<Option<Incoming>, ZmtpError> {
        match (self.stage, command) {
            (_, Command::Error(reason)) => Err(ZmtpError::Peer(String::from_utf8_lossy(reason).into_owned())),
            (Stage::Ready, Command::Ready(_)) => Err(ZmtpError::Command("READY comes once")),
            (_, Command::Ready(theirs)) => {
                let (allowed, ours) = self.socket_type.peers();
                if !allowed.iter().any(|name| name.as_bytes() == *theirs) {
                    return Err(ZmtpError::SocketType { theirs: String::from_utf8_lossy(theirs).into_owned(), ours });
                }
                self.stage = Stage::Ready;
                Ok(Some(Incoming::Ready))
            }
            (Stage::Greeting | Stage::Handshake, _) => Err(ZmtpError::Command("the handshake must begin with READY")),
            (Stage::Ready, Command::Ping(context)) => {
                write_pong(context, &mut self.unsent);
                Ok(None)
            }
            (Stage::Ready, Command::Subscribe(topic)) if self.socket_type == SocketType::Pub => {
                Ok(Some(Incoming::Subscribe(topic.to_vec())))
            }
            (Stage::Ready, Command::Cancel(topic)) if self.socket_type == SocketType::Pub => {
                Ok(Some(Incoming::Cancel(topic.to_vec())))
            }
            (Stage::Ready, Command::Subscribe(_) | Command::Cancel(_) | Command::Other) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::write_command;
    use crate::write_message;

    /// Returns the first bytes of a peer with a socket of this type.
    fn hello(socket_type: &str) -> Vec<u8> {
        let mut bytes = greeting::greeting().to_vec();
        write_ready(socket_type, &mut bytes);
        bytes
    }

    fn ready(ours: SocketType, theirs: &str) -> Session {
        let mut session = Session::new(ours);
        assert_eq!(session.receive(&hello(theirs)), Ok(vec![Incoming::Ready]));
        session.take_unsent();
        session
    }

    #[test]
    fn the_handshake_is_the_same_byte_by_byte() {
        let mut session = Session::new(SocketType::Pub);
        assert_eq!(session.take_unsent(), greeting::greeting());
        let mut news = Vec::new();
        for byte in hello("SUB") {
            news.extend(session.receive(&[byte]).unwrap());
        }
        assert_eq!(news, [Incoming::Ready]);
        let ready = b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03PUB\x08Identity\0\0\0\0";
        assert_eq!(session.take_unsent(), ready);
    }

    #[test]
    fn subscriptions_come_as_commands_or_as_messages() {
        let mut session = ready(SocketType::Pub, "SUB");
        let mut bytes = Vec::new();
        write_command(b"\x09SUBSCRIBEa", &mut bytes);
        write_message(&[b"\x01b"], &mut bytes);
        write_command(b"\x06CANCELa", &mut bytes);
        write_message(&[b"\0b"], &mut bytes);
        write_message(&[b"\x01part", b"of more"], &mut bytes);
        write_message(&[b"noise"], &mut bytes);
        let [a, b] = [b"a".to_vec(), b"b".to_vec()];
        let expected = vec![
            Incoming::Subscribe(a.clone()),
            Incoming::Subscribe(b.clone()),
            Incoming::Cancel(a),
            Incoming::Cancel(b),
        ];
        assert_eq!(session.receive(&bytes), Ok(expected));
        assert_eq!(session.take_unsent(), []);
    }

    #[test]
    fn requests_come_whole_and_heartbeats_are_answered_between_frames() {
        let mut session = ready(SocketType::Router, "DEALER");
        let mut bytes = Vec::new();
        write_message(&[b"", b"12345678"], &mut bytes);
        let rest = bytes.split_off(2);
        write_command(b"\x04PING\0\x01abc", &mut bytes);
        bytes.extend(rest);
        assert_eq!(session.receive(&bytes), Ok(vec![Incoming::Request(vec![vec![], b"12345678".to_vec()])]));
        assert_eq!(session.take_unsent(), b"\x04\x08\x04PONGabc");
    }

    #[test]
    fn other_sockets_and_messages_before_the_handshake_are_refused() {
        let mut session = Session::new(SocketType::Pub);
        let error = session.receive(&hello("REQ")).unwrap_err();
        assert_eq!(error, ZmtpError::SocketType { theirs: "REQ".to_owned(), ours: "SUB and XSUB" });
        let unsent = session.take_unsent();
        assert!(String::from_utf8_lossy(&unsent).ends_with(&error.to_string()));
        let mut early = greeting::greeting().to_vec();
        write_message(&[b"\x01"], &mut early);
        assert!(Session::new(SocketType::Pub).receive(&early).is_err());
        let mut session = ready(SocketType::Router, "REQ");
        let mut many = Vec::new();
        write_message(&[b"".as_slice(); MAX_FRAMES + 1], &mut many);
        assert_eq!(session.receive(&many), Err(ZmtpError::TooManyFrames));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_hold_much(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20),
            is_ready in any::<bool>(),
        ) {
            let mut session = if is_ready { ready(SocketType::Pub, "SUB") } else { Session::new(SocketType::Router) };
            for chunk in chunks {
                if session.receive(&chunk).is_err() {
                    break;
                }
                prop_assert!(session.received.len() < crate::MAX_FRAME_BYTES + 9);
                prop_assert!(session.message.len() <= MAX_FRAMES);
            }
        }
    }
}
