//! When a sequence ends, as far as token ids can tell.
//!
//! Stop strings need text, which never comes here: the router finds them and cancels what still runs.

use crate::sequence::Sequence;

/// The reason why no token follows another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenFinish {
    /// The sequence has as many as were asked for.
    Length,
    /// The model ends the sequence with this one.
    Eos,
}

/// The reason, if `token_id`, the last of the tokens counted in `sequence`, ends it. The length comes first: an
/// end-of-sequence token exactly at the limit is reported as `Length`, as TGI does. Sequences may ignore such tokens.
pub(crate) fn after_token(sequence: &Sequence, token_id: u32, eos_token_ids: &[u32]) -> Option<TokenFinish> {
    if sequence.num_new_tokens() >= sequence.max_new_tokens {
        Some(TokenFinish::Length)
    } else if !sequence.ignores_eos && eos_token_ids.contains(&token_id) {
        Some(TokenFinish::Eos)
    } else {
        None
    }
}
