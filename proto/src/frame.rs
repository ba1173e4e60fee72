//! Frames: the length of the body in bytes as a little-endian `u32`, then the body, which is one protobuf message.
//!
//! The functions work on byte slices; the caller reads and writes the socket. Any bytes yield a message or a
//! [`FrameError`], never a panic. [`body_len`] refuses lengths above [`MAX_FRAME_BYTES`], so a corrupted length does
//! not lead to a huge buffer.

use prost::Message;

/// The size of the length prefix, in bytes.
pub const HEADER_BYTES: usize = 4;

/// The maximum size of a body, in bytes. The longest sequence fits, and most corrupted lengths are larger.
pub const MAX_FRAME_BYTES: usize = 64 << 20;

/// The size that the scheduler divides between the parts of a step's command, in bytes. It is less than a frame's size,
/// which leaves room for what the scheduler does not count.
pub const MAX_STEP_BYTES: usize = 48 << 20;

/// The maximum number of tokens in a vocabulary. In a list, an id below it takes at most [`TOKEN_BYTES`] bytes.
pub const MAX_VOCAB_SIZE: usize = 1 << 21;

/// The maximum encoded size of a token id in a list, in bytes.
pub const TOKEN_BYTES: usize = 3;

/// The maximum length of a sequence, in tokens.
pub const MAX_SEQUENCE_TOKENS: usize = 10_000_000;

/// The error for bytes that are not a frame, or for a message that does not fit in a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length prefix, or the message to send, is over the limit.
    #[error("a frame of {0} bytes is larger than the {MAX_FRAME_BYTES} bytes allowed")]
    TooLarge(usize),
    /// The body is not a message of the expected type.
    #[error("a frame body is not a message of the expected type: {0}")]
    Malformed(#[from] prost::DecodeError),
}

/// Appends the frame of `message` to `buffer`.
///
/// # Errors
/// [`FrameError::TooLarge`] when the body is larger than [`MAX_FRAME_BYTES`], which the peer would not accept. `buffer`
/// is then unchanged.
pub fn encode<M: Message>(message: &M, buffer: &mut Vec<u8>) -> Result<(), FrameError> {
    let header_at = buffer.len();
    buffer.extend_from_slice(&[0; HEADER_BYTES]);
    // The length is written last, because computing it beforehand (`encoded_len`) would be one more pass over the whole
    // message.
    message.encode_raw(buffer);
    let len = buffer.len() - header_at - HEADER_BYTES;
    let Some(prefix) = u32::try_from(len).ok().filter(|_| len <= MAX_FRAME_BYTES) else {
        buffer.truncate(header_at);
        return Err(FrameError::TooLarge(len));
    };
    buffer[header_at..header_at + HEADER_BYTES].copy_from_slice(&prefix.to_le_bytes());
    Ok(())
}

/// Returns the length in bytes of the body that follows this header.
///
/// # Errors
/// [`FrameError::TooLarge`] when the header claims more than [`MAX_FRAME_BYTES`].
pub fn body_len(header: [u8; HEADER_BYTES]) -> Result<usize, FrameError> {
    let len = u32::from_le_bytes(header) as usize;
    if len > MAX_FRAME_BYTES {
        return Err(FrameError::TooLarge(len));
    }
    Ok(len)
}

/// Returns the message in a frame's body.
///
/// # Errors
/// [`FrameError::Malformed`] when the bytes are not an `M`.
pub fn decode<M: Message + Default>(body: &[u8]) -> Result<M, FrameError> {
    Ok(M::decode(body)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Command, Opening, Reply, Row, Sample, SamplingParams, Step, command};

    /// Returns the command of a step that opens a row with a prompt.
    fn prefill(token_ids: Vec<u32>, sampling: SamplingParams) -> Command {
        let row = Row {
            slot: 3,
            token_ids,
            new_blocks: vec![7, 9],
            opening: Some(Box::new(Opening { sampling: Some(sampling), ..Opening::default() })),
            token: Some(Sample::default()),
            ..Row::default()
        };
        Command { sequence_number: 42, kind: Some(command::Kind::Step(Step { rows: vec![row] })) }
    }

    #[test]
    fn golden_bytes() {
        let command = Command {
            sequence_number: 5,
            kind: Some(command::Kind::Hello(crate::Hello { protocol_version: 1, build: None })),
        };
        let mut buffer = Vec::new();
        encode(&command, &mut buffer).unwrap();
        assert_eq!(buffer, [6, 0, 0, 0, 0x08, 5, 0x12, 2, 0x08, 1]);
    }

    #[test]
    fn the_longest_sequence_fits_in_a_frame() {
        let cached = Opening { cached_token_ids: vec![MAX_VOCAB_SIZE as u32 - 1; 1000], ..Opening::default() };
        let table = Row { new_blocks: vec![u32::MAX; 1000 / 16 + 1], ..Row::default() };
        let per_thousand = cached.encoded_len();
        let largest = (per_thousand + table.encoded_len()) * (MAX_SEQUENCE_TOKENS / 1000);
        assert!(per_thousand <= 1000 * TOKEN_BYTES + 8 && largest < MAX_STEP_BYTES, "{per_thousand} {largest}");
    }

    #[test]
    fn an_oversized_length_is_an_error() {
        assert_eq!(body_len(u32::MAX.to_le_bytes()), Err(FrameError::TooLarge(u32::MAX as usize)));
        assert_eq!(body_len((MAX_FRAME_BYTES as u32).to_le_bytes()), Ok(MAX_FRAME_BYTES));
    }

    #[test]
    fn a_message_that_does_not_fit_is_an_error() {
        let command = prefill(vec![u32::MAX; MAX_FRAME_BYTES / 5 + 1], SamplingParams::greedy());
        let mut buffer = Vec::new();
        assert!(matches!(encode(&command, &mut buffer), Err(FrameError::TooLarge(_))));
        assert!(buffer.is_empty());
    }

    /// Checks that the bytes are refused as malformed, or decode to a message that is the same after it was encoded and
    /// decoded once more.
    fn check_decoding<M: Message + Default>(bytes: &[u8]) -> Result<(), TestCaseError> {
        match decode::<M>(bytes) {
            Err(error) => prop_assert!(matches!(error, FrameError::Malformed(_)), "{}", error),
            Ok(message) => {
                let encoded = message.encode_to_vec();
                prop_assert_eq!(decode::<M>(&encoded).unwrap().encode_to_vec(), encoded);
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn decode_returns_what_was_encoded(token_ids in prop::collection::vec(any::<u32>(), 0..200), temperature in any::<f32>(), seed in any::<u64>()) {
            prop_assume!(!temperature.is_nan());
            let command = prefill(token_ids, SamplingParams { temperature, seed, ..SamplingParams::greedy() });
            let mut buffer = Vec::new();
            encode(&command, &mut buffer).unwrap();
            let (header, body) = buffer.split_first_chunk::<HEADER_BYTES>().unwrap();
            prop_assert_eq!(body_len(*header).unwrap(), body.len());
            prop_assert_eq!(decode::<Command>(body).unwrap(), command);
        }

        #[test]
        fn any_bytes_are_malformed_or_a_message(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            check_decoding::<Command>(&bytes)?;
            check_decoding::<Reply>(&bytes)?;
        }

        #[test]
        fn a_damaged_message_is_malformed_or_another_message(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = prefill(vec![300; 20], SamplingParams::greedy()).encode_to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            check_decoding::<Command>(&bytes)?;
            check_decoding::<Command>(&bytes[..at])?;
        }
    }
}
