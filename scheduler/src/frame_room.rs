//! The limits on what goes into one step, so that its command fits in a frame for any number of rows.
//!
//! Door: [`FrameRoom`]. Half of [`Limits::max_step_bytes`] is for sequences that are opened, because the cached part of
//! a prompt is sent in full. An eighth is for tokens that are read, and a quarter for masks. A sequence that takes more
//! than that half is opened alone. It fits, because sequences are shorter than
//! [`MAX_SEQUENCE_TOKENS`](proto::MAX_SEQUENCE_TOKENS).

use proto::TOKEN_BYTES;

use crate::Limits;
use crate::sequence::Sequence;

/// The bytes of a slot, a position, and sampling parameters without their biases.
const ROW_BYTES: usize = 200;
const LOGIT_BIAS_BYTES: usize = 13;
const BLOCK_BYTES: usize = 5;

/// The space left in a step's frame.
#[derive(Debug)]
pub(crate) struct FrameRoom {
    opening_bytes: usize,
    is_empty: bool,
}

impl FrameRoom {
    /// The room in an empty step.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { opening_bytes: limits.max_step_bytes / 2, is_empty: true }
    }

    /// The most tokens that one step reads.
    pub(crate) fn max_read_tokens(limits: &Limits) -> u32 {
        let most = (limits.max_step_bytes / 8 / TOKEN_BYTES).max(1);
        limits.max_batch_prefill_tokens.min(u32::try_from(most).unwrap_or(u32::MAX))
    }

    /// The most sequences with masks of `mask_bytes` bytes that run at once.
    pub(crate) fn max_masked(limits: &Limits, mask_bytes: usize) -> usize {
        (limits.max_step_bytes / 4 / (mask_bytes + ROW_BYTES)).max(1)
    }

    /// True if a sequence can be opened in this step.
    pub(crate) fn has_room(&self, sequence: &Sequence, block_size_tokens: u32) -> bool {
        self.is_empty || opening_bytes(sequence, block_size_tokens) <= self.opening_bytes
    }

    /// Takes the room of a sequence that is opened.
    pub(crate) fn take(&mut self, sequence: &Sequence, block_size_tokens: u32) {
        self.is_empty = false;
        self.opening_bytes = self.opening_bytes.saturating_sub(opening_bytes(sequence, block_size_tokens));
    }
}

/// The most bytes that the first chunk of a sequence takes, whatever part of it is cached.
fn opening_bytes(sequence: &Sequence, block_size_tokens: u32) -> usize {
    let num_tokens = sequence.num_tokens() as usize;
    let num_blocks = num_tokens / block_size_tokens as usize + 1;
    let num_biases = sequence.sampling.logit_bias.len();
    ROW_BYTES + num_tokens * TOKEN_BYTES + num_blocks * BLOCK_BYTES + num_biases * LOGIT_BIAS_BYTES
}
