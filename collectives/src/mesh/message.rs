//! The header of a message between ranks. The receiver compares it with the message that it expects.

use crate::Operation;

/// The first bytes of every header.
const MAGIC: [u8; 4] = *b"HILC";
const ALL_REDUCE: u8 = 1;
const ALL_GATHER: u8 = 2;
const ABORT: u8 = 3;

/// The length of a header in bytes. A header has the magic, one byte each for kind and stage, two zeros, and three
/// little-endian numbers of 64 bits: ordinal, rows and values. For an abort, the first number is the rank.
pub(super) const HEADER_BYTES: usize = 32;

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// Values of an operation.
    Values {
        /// The number of operations before this one, plus one.
        ordinal: u64,
        operation: Operation,
        stage: Stage,
    },
    /// A rank has ended the group.
    Abort { rank: usize },
}

/// The stage of an operation to which a message belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The ranks' own values.
    Own = 0,
    /// The sums of the parts.
    Sums = 1,
}

impl Header {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let (kind, stage, words) = match self {
            Self::Values { ordinal, operation: Operation::AllGather { num_rows, num_values }, stage } => {
                (ALL_GATHER, stage as u8, [ordinal, num_rows as u64, num_values as u64])
            }
            Self::Values { ordinal, operation: Operation::AllReduce { num_values }, stage } => {
                (ALL_REDUCE, stage as u8, [ordinal, 0, num_values as u64])
            }
            // Other operations have no messages.
            Self::Values { ordinal, operation: _, stage } => (0, stage as u8, [ordinal, 0, 0]),
            Self::Abort { rank } => (ABORT, 0, [rank as u64, 0, 0]),
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = kind;
        bytes[5] = stage;
        for (place, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Returns the header; `None` if the bytes are not those of a header.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let (words, _) = bytes[8..].as_chunks::<8>();
        let [first, second, third] = [0, 1, 2].map(|index| u64::from_le_bytes(words[index]));
        let stage = match bytes[5] {
            0 => Stage::Own,
            1 => Stage::Sums,
            _ => return None,
        };
        if bytes[..4] != MAGIC {
            return None;
        }
        let [num_rows, num_values] = [second, third].map(|word| word as usize);
        let operation = match bytes[4] {
            ABORT => return Some(Self::Abort { rank: first as usize }),
            ALL_REDUCE => Operation::AllReduce { num_values },
            ALL_GATHER => Operation::AllGather { num_rows, num_values },
            kind => Operation::Unknown { kind: u64::from(kind) },
        };
        Some(Self::Values { ordinal: first, operation, stage })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_were_written() {
        let all_gather = Operation::AllGather { num_rows: 3, num_values: 12 };
        for header in [
            Header::Values { ordinal: 7, operation: Operation::AllReduce { num_values: 5 }, stage: Stage::Sums },
            Header::Values { ordinal: u64::MAX, operation: all_gather, stage: Stage::Own },
            Header::Abort { rank: 2 },
        ] {
            assert_eq!(Header::decode(&header.encode()), Some(header));
        }
        assert_eq!(Header::decode(&[0; HEADER_BYTES]), None);
    }
}
