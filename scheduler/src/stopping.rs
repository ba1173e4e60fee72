//! The end of a sequence: by its length, or by an end-of-sequence token.
//!
//! Stop strings are not handled here, because the scheduler sees token ids and no text. The router finds stop strings
//! and cancels the sequence.

use crate::sequence::Sequence;

/// The reason why a token is the last one of its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenFinish {
    /// The sequence has generated `max_new_tokens` tokens.
    Length,
    /// The token is an end-of-sequence token.
    Eos,
}

/// Returns the reason if `token_id`, the last token in `sequence`, ends the sequence. The length comes first: an
/// end-of-sequence token exactly at the limit is reported as `Length`, as TGI does. Sequences with `ignores_eos` go on
/// after end-of-sequence tokens.
pub(crate) fn after_token(sequence: &Sequence, token_id: u32, eos_token_ids: &[u32]) -> Option<TokenFinish> {
    if sequence.num_new_tokens() >= sequence.max_new_tokens {
        Some(TokenFinish::Length)
    } else if !sequence.ignores_eos && eos_token_ids.contains(&token_id) {
        Some(TokenFinish::Eos)
    } else {
        None
    }
}
