//! The limits on the contents of one step, which keep its command within a frame.
//!
//! Entry point: [`FrameRoom`]. Half of [`Limits::max_step_bytes`] is for sequences that the step opens, because the
//! cached part of a prompt is sent in full. An eighth is for tokens that are read, and a quarter for masks. A sequence
//! that needs more than that half is the only one that its step opens. Such a sequence still fits in the frame, because
//! sequences have at most [`MAX_SEQUENCE_TOKENS`](proto::MAX_SEQUENCE_TOKENS) tokens.

use proto::TOKEN_BYTES;

use crate::Limits;
use crate::sequence::Sequence;

/// The maximum encoded size of a row without its tokens, blocks, mask and `logit_bias`.
const ROW_BYTES: usize = 200;
const LOGIT_BIAS_BYTES: usize = 13;
const BLOCK_BYTES: usize = 5;

/// The room left in a step for the sequences that it opens.
#[derive(Debug)]
pub(crate) struct FrameRoom {
    opening_bytes: usize,
    is_empty: bool,
}

impl FrameRoom {
    /// Returns the room in an empty step.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { opening_bytes: limits.max_step_bytes / 2, is_empty: true }
    }

    /// Returns the maximum number of tokens in the chunks of one step.
    pub(crate) fn max_read_tokens(limits: &Limits) -> u32 {
        let most = (limits.max_step_bytes / 8 / TOKEN_BYTES).max(1);
        limits.max_batch_prefill_tokens.min(u32::try_from(most).unwrap_or(u32::MAX))
    }

    /// Returns the maximum number of sequences with masks of `mask_bytes` bytes that run at once.
    pub(crate) fn max_masked(limits: &Limits, mask_bytes: usize) -> usize {
        (limits.max_step_bytes / 4 / (mask_bytes + ROW_BYTES)).max(1)
    }

    /// True if this step can open the sequence.
    pub(crate) fn has_room(&self, sequence: &Sequence, block_size_tokens: u32) -> bool {
        self.is_empty || opening_bytes(sequence, block_size_tokens) <= self.opening_bytes
    }

    /// Takes the room of a sequence that the step opens.
    pub(crate) fn take(&mut self, sequence: &Sequence, block_size_tokens: u32) {
        self.is_empty = false;
        self.opening_bytes = self.opening_bytes.saturating_sub(opening_bytes(sequence, block_size_tokens));
    }
}

/// Returns the maximum number of bytes that the opening row of a sequence takes, without a mask. The bound holds
/// whatever part of the prompt is cached.
fn opening_bytes(sequence: &Sequence, block_size_tokens: u32) -> usize {
    let num_tokens = sequence.num_tokens() as usize;
    let num_blocks = num_tokens / block_size_tokens as usize + 1;
    let num_biases = sequence.sampling.logit_bias.len();
    ROW_BYTES + num_tokens * TOKEN_BYTES + num_blocks * BLOCK_BYTES + num_biases * LOGIT_BIAS_BYTES
}
