//! Attention windows. They decide how many blocks of a row no token reads any more, and for how many tokens a row takes
//! blocks in advance.
//!
//! A token at position p reads no keys and values before position p − window + 1. A row gives up the blocks before that
//! position ([`Limits::num_dead_blocks`]), so it needs room only for a window and for the tokens that one step reads.

use crate::Limits;
use crate::frame_room::FrameRoom;

impl Limits {
    /// Returns the number of blocks at the start of a row that no token from `position` on reads.
    pub(crate) fn num_dead_blocks(&self, position: u32) -> u32 {
        self.window.map_or(0, |window| position.saturating_add(1).saturating_sub(window) / self.block_size_tokens)
    }

    /// Returns the number of tokens for which a row has blocks when `num_written` of `num_to_read` tokens are written:
    /// all `num_to_read`, or with a window at least those up to the last token that the next step may read.
    pub(crate) fn reach(&self, num_written: u32, num_to_read: u32) -> u32 {
        let Some(window) = self.window else { return num_to_read };
        num_written.max(window).saturating_add(self.lookahead(window)).min(num_to_read)
    }

    /// Returns the maximum number of blocks that a row of `num_tokens` tokens holds at a time.
    pub(crate) fn most_blocks(&self, num_tokens: u32) -> u32 {
        let all = num_tokens.div_ceil(self.block_size_tokens);
        let Some(window) = self.window else { return all };
        // The maximum number of keys that a row reads in one step. The first key may be at any offset in its block.
        let num_keys = window.saturating_add(self.lookahead(window)) - 1;
        all.min(num_keys.saturating_sub(1).div_ceil(self.block_size_tokens) + 1)
    }

    /// Returns the number of tokens for which a row takes blocks in advance, after its written tokens or its first
    /// window: the limit of a step, or less if the KV cache is too small for that many tokens and a window.
    fn lookahead(&self, window: u32) -> u32 {
        let after_first = self.num_blocks.saturating_sub(1).saturating_mul(self.block_size_tokens);
        let room = after_first.saturating_add(2).saturating_sub(window);
        FrameRoom::max_read_tokens(self).min(room).max(1)
    }
}
