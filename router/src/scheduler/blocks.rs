//! The pages of the KV cache. Each is free or belongs to one running sequence.
//!
//! Their bytes are with the shards. A sequence's blocks in order are its block table.

/// A page of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockId(pub(crate) u32);

/// All blocks.
#[derive(Debug)]
pub(super) struct BlockPool {
    free: Vec<BlockId>,
    is_taken: Vec<bool>,
}

impl BlockPool {
    /// Blocks `0..num_blocks`, all free.
    pub(super) fn new(num_blocks: u32) -> Self {
        Self { free: (0..num_blocks).rev().map(BlockId).collect(), is_taken: vec![false; num_blocks as usize] }
    }

    /// Takes that many blocks, or none when there are not enough.
    pub(super) fn take(&mut self, num_blocks: u32) -> Option<Vec<BlockId>> {
        let num_left = self.free.len().checked_sub(num_blocks as usize)?;
        let blocks: Vec<BlockId> = self.free.drain(num_left..).rev().collect();
        for block in &blocks {
            self.is_taken[block.0 as usize] = true;
        }
        Some(blocks)
    }

    /// Gives blocks back. Giving one back twice is a defect and panics, before two sequences share it.
    pub(super) fn release(&mut self, blocks: Vec<BlockId>) {
        for block in blocks {
            let was_taken = std::mem::replace(&mut self.is_taken[block.0 as usize], false);
            assert!(was_taken, "block {} released twice", block.0);
            self.free.push(block);
        }
    }

    /// Blocks that belong to a sequence.
    pub(super) fn num_taken(&self) -> u32 {
        u32::try_from(self.is_taken.len() - self.free.len()).unwrap_or(u32::MAX)
    }
}
