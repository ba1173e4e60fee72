//! Frames: the parts of a message, and commands.
//!
//! ```text
//! flags (1): 1 more frames follow, 2 the size has 8 bytes, 4 a command
//! size (1, or 8 in big-endian order)
//! body
//! ```

use crate::{MAX_FRAME_BYTES, ZmtpError};

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A frame from the peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) is_command: bool,
    /// True if the next frame belongs to the same message.
    pub(crate) has_more: bool,
    pub(crate) body: Vec<u8>,
}

impl Frame {
    /// Removes the first frame from `received`. Returns `None` if it is not complete.
    ///
    /// # Errors
    /// When the frame is too long, or its flags are not valid.
    pub(crate) fn take(received: &mut Vec<u8>) -> Result<Option<Self>, ZmtpError> {
        let Some(&flags) = received.first() else { return Ok(None) };
        let (is_command, has_more, is_long) = (flags & COMMAND != 0, flags & MORE != 0, flags & LONG != 0);
        if flags & !(MORE | LONG | COMMAND) != 0 || (is_command && has_more) {
            return Err(ZmtpError::Flags(flags));
        }
        let (start, size) = if is_long {
            let Some(size) = received.get(1..).and_then(|rest| rest.first_chunk()) else { return Ok(None) };
            (9, u64::from_be_bytes(*size))
        } else {
            let Some(size) = received.get(1) else { return Ok(None) };
            (2, u64::from(*size))
        };
        let end = match usize::try_from(size) {
            Ok(size) if size <= MAX_FRAME_BYTES => start + size,
            Ok(_) | Err(_) => return Err(ZmtpError::FrameTooLong(size)),
        };
        if received.len() < end {
            return Ok(None);
        }
        let body = received[start..end].to_vec();
        received.drain(..end);
        Ok(Some(Self { is_command, has_more, body }))
    }
}

/// Appends a message of these frames to `bytes`.
pub fn write_message(frames: &[&[u8]], bytes: &mut Vec<u8>) {
    for (index, body) in frames.iter().enumerate() {
        write(if index + 1 < frames.len() { MORE } else { 0 }, body, bytes);
    }
}

/// Appends a command to `bytes`.
pub(crate) fn write_command(body: &[u8], bytes: &mut Vec<u8>) {
    write(COMMAND, body, bytes);
}

fn write(flags: u8, body: &[u8], bytes: &mut Vec<u8>) {
    match u8::try_from(body.len()) {
        Ok(size) => bytes.extend([flags, size]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend((body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_one_by_one_when_they_are_complete() {
        let long = vec![7; 300];
        let mut bytes = Vec::new();
        write_message(&[b"", &long, b"c"], &mut bytes);
        write_command(b"\x04PING", &mut bytes);
        assert_eq!(bytes[..5], [1, 0, 3, 0, 0]);
        let (mut received, mut frames) = (Vec::new(), Vec::new());
        for byte in bytes {
            received.push(byte);
            frames.extend(Frame::take(&mut received).unwrap());
        }
        assert!(received.is_empty());
        let frame = |is_command, has_more, body: &[u8]| Frame { is_command, has_more, body: body.to_vec() };
        let expected = [
            frame(false, true, b""),
            frame(false, true, &long),
            frame(false, false, b"c"),
            frame(true, false, b"\x04PING"),
        ];
        assert_eq!(frames, expected);
    }

    #[test]
    fn bad_frames_are_refused_before_they_are_received() {
        let take = |bytes: &[u8]| Frame::take(&mut bytes.to_vec());
        assert_eq!(take(&[2, 0, 0, 0, 0, 0, 0, 16, 1]), Err(ZmtpError::FrameTooLong(4097)));
        assert_eq!(take(&[2, 255, 255, 255, 255, 255, 255, 255, 255]), Err(ZmtpError::FrameTooLong(u64::MAX)));
        assert_eq!(take(&[8]), Err(ZmtpError::Flags(8)));
        assert_eq!(take(&[5]), Err(ZmtpError::Flags(5)));
    }
}
