//! The errors of reading a compiled module.

use prost::DecodeError;

/// An error of reading a module.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HloError {
    #[error("optimised program is in format {format:?}; only hlo and hlo_with_config can be read")]
    Format { format: String },
    #[error("optimised program is not a serialized HLO module")]
    Decode { source: DecodeError },
    #[error("optimised program has no computation {id}, which {user} names")]
    NoComputation { id: i64, user: String },
    #[error("computation {computation} has no instruction {id} before {user}, which names it")]
    NoInstruction { id: i64, computation: String, user: String },
}
