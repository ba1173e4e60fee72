//! Commands: the handshake, subscriptions and heartbeats.
//!
//! ```text
//! size of the name (1)  name  data
//! READY: properties, each: size of the name (1)  name  size of the value (4, big-endian)  value
//! PING: seconds until the peer gives up, in tenths (2)  context (at most 16)     PONG: the same context
//! ```

use crate::ZmtpError;
use crate::frame::write_command;

/// The maximum size of a heartbeat's context, in bytes.
const MAX_CONTEXT_BYTES: usize = 16;

/// The name of the property with the type of a socket. Names of properties ignore case.
const SOCKET_TYPE: &str = "Socket-Type";

/// A command from the peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    /// The peer's socket type.
    Ready(&'a [u8]),
    Error(&'a [u8]),
    Subscribe(&'a [u8]),
    Cancel(&'a [u8]),
    /// The context of a heartbeat.
    Ping(&'a [u8]),
    /// Any other command. The protocol allows to ignore it.
    Other,
}

impl<'a> Command<'a> {
    /// Parses the body of a command.
    ///
    /// # Errors
    /// When a size in the command is larger than the rest of it.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, ZmtpError> {
        let (name, data) = sized(body).ok_or(ZmtpError::Command("it ends within its name"))?;
        Ok(match name {
            b"READY" => Self::Ready(socket_type(data)?),
            b"ERROR" => Self::Error(sized(data).map_or(data, |(reason, _)| reason)),
            b"SUBSCRIBE" => Self::Subscribe(data),
            b"CANCEL" => Self::Cancel(data),
            b"PING" => match data.get(2..) {
                Some(context) if context.len() <= MAX_CONTEXT_BYTES => Self::Ping(context),
                _ => return Err(ZmtpError::Command("a heartbeat has 2 to 18 bytes")),
            },
            _ => Self::Other,
        })
    }
}

/// Splits off the first part of `bytes`, whose size is in the first byte.
fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*size))
}

/// Returns the socket type in the properties of READY.
fn socket_type(mut properties: &[u8]) -> Result<&[u8], ZmtpError> {
    const INCOMPLETE: ZmtpError = ZmtpError::Command("READY ends within a property");
    let mut found = None;
    while !properties.is_empty() {
        let (name, rest) = sized(properties).ok_or(INCOMPLETE)?;
        let (size, rest) = rest.split_first_chunk().ok_or(INCOMPLETE)?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*size) as usize).ok_or(INCOMPLETE)?;
        if name.eq_ignore_ascii_case(SOCKET_TYPE.as_bytes()) {
            found = Some(value);
        }
        properties = rest;
    }
    found.ok_or(ZmtpError::Command("READY has no Socket-Type"))
}

/// Appends READY to `bytes`.
pub(crate) fn write_ready(socket_type: &str, bytes: &mut Vec<u8>) {
    let mut body = named("READY");
    for (name, value) in [(SOCKET_TYPE, socket_type), ("Identity", "")] {
        body.extend(named(name));
        // A socket type has a few letters.
        body.extend((value.len() as u32).to_be_bytes());
        body.extend_from_slice(value.as_bytes());
    }
    write_command(&body, bytes);
}

/// Appends ERROR to `bytes`. A reason that is too long is cut.
pub(crate) fn write_error(reason: &str, bytes: &mut Vec<u8>) {
    let reason = &reason.as_bytes()[..reason.len().min(255)];
    let mut body = named("ERROR");
    body.push(reason.len() as u8);
    body.extend_from_slice(reason);
    write_command(&body, bytes);
}

/// Appends PONG to `bytes`.
pub(crate) fn write_pong(context: &[u8], bytes: &mut Vec<u8>) {
    let mut body = named("PONG");
    body.extend_from_slice(context);
    write_command(&body, bytes);
}

/// Returns a name of less than 256 bytes, after its size.
fn named(name: &str) -> Vec<u8> {
    let mut bytes = vec![name.len() as u8];
    bytes.extend_from_slice(name.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_parsed() {
        let ready = b"\x05READY\x0bsocket-type\0\0\0\x03SUB\x08Identity\0\0\0\0";
        for (body, expected) in [
            (&ready[..], Command::Ready(b"SUB")),
            (b"\x05ERROR\x02no", Command::Error(b"no")),
            (b"\x09SUBSCRIBEkv@", Command::Subscribe(b"kv@")),
            (b"\x06CANCEL", Command::Cancel(b"")),
            (b"\x04PING\0\x05abc", Command::Ping(b"abc")),
            (b"\x04PONGabc", Command::Other),
        ] {
            assert_eq!(Command::parse(body), Ok(expected));
        }
    }

    #[test]
    fn sizes_are_checked() {
        let no_type = "READY has no Socket-Type";
        let heartbeat = "a heartbeat has 2 to 18 bytes";
        for (body, expected) in [
            (&b""[..], "it ends within its name"),
            (b"\x06READY", "it ends within its name"),
            (b"\x05READY", no_type),
            (b"\x05READY\x08Identity\0\0\0\0", no_type),
            (b"\x05READY\x0bSocket-Type\0\0\0", "READY ends within a property"),
            (b"\x05READY\x0bSocket-Type\xff\xff\xff\xffSUB", "READY ends within a property"),
            (b"\x04PING\0", heartbeat),
            (b"\x04PING\0\x0001234567890123456", heartbeat),
        ] {
            assert_eq!(Command::parse(body), Err(ZmtpError::Command(expected)));
        }
    }
}
