//! The blocks that subscribers should know, and the message with all of them for a subscriber that missed others.
//!
//! Entry points: [`Blocks`], and [`message`]. The message begins with `AllBlocksCleared`, so a consumer needs no rule
//! of its own to be right again. If blocks change again and again while the message is made, it may contain some
//! changes after its number. That does no harm: the subscriber gets these changes too, and to store or remove a block
//! twice has no further effect.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use scheduler::{BlockEvent, BlockHash};

use super::Feed;
use super::log::Message;
use super::payload::{self, Payload};
use super::peer::PeerError;
use crate::memory::Held;

/// The memory that a block takes beside its tokens, in bytes.
const BLOCK_BYTES: usize = 160;

/// The number of blocks that are read at a time. The batcher waits as long as that takes.
const CHUNK_BLOCKS: usize = 256;

/// The number of attempts to read all blocks before any of them changes.
const NUM_TRIES: u32 = 3;

/// The maximum time that a subscriber waits until others have read their messages with all blocks.
const PATIENCE: Duration = Duration::from_secs(60);

/// The blocks that were stored and not removed.
#[derive(Debug, Default)]
pub(super) struct Blocks(Mutex<Stored>);

#[derive(Debug, Default)]
struct Stored {
    /// The blocks by the order in which they were stored, so a parent comes before its children.
    blocks: BTreeMap<u64, Block>,
    orders: HashMap<BlockHash, u64>,
    next_order: u64,
    /// The number of the message whose events were applied last.
    sequence: u64,
}

/// Some of the blocks, as events.
#[derive(Debug, PartialEq, Eq)]
struct Chunk {
    events: Vec<BlockEvent>,
    /// The order after that of the last block; `None` if there are no more blocks.
    next: Option<u64>,
    /// The number of the message whose events were applied last.
    sequence: u64,
}

#[derive(Debug)]
struct Block {
    hash: BlockHash,
    parent: Option<BlockHash>,
    token_ids: Box<[u32]>,
}

/// Returns the maximum memory of `num_blocks` blocks of `block_size` tokens, in bytes.
pub(super) fn max_bytes(num_blocks: usize, block_size: u32) -> usize {
    num_blocks.saturating_mul(BLOCK_BYTES + size_of::<u32>() * block_size as usize)
}

impl Blocks {
    /// Applies the events of message `sequence`.
    pub(super) fn apply(&self, sequence: u64, events: &[BlockEvent]) {
        let mut stored = self.lock();
        stored.sequence = sequence;
        for event in events {
            match event {
                BlockEvent::Stored { parent, blocks, token_ids } => stored.add(*parent, blocks, token_ids),
                BlockEvent::Removed { blocks } => blocks.iter().for_each(|hash| stored.remove(*hash)),
            }
        }
    }

    /// Returns the number of blocks.
    pub(super) fn len(&self) -> usize {
        self.lock().blocks.len()
    }

    /// Returns some blocks in the order in which they were stored, from order `from` on.
    fn read(&self, from: u64) -> Chunk {
        let stored = self.lock();
        let mut chunk = Chunk { events: Vec::new(), next: None, sequence: stored.sequence };
        for (order, block) in stored.blocks.range(from..).take(CHUNK_BLOCKS) {
            block.add_to(&mut chunk.events);
            chunk.next = Some(order + 1);
        }
        chunk
    }

    fn lock(&self) -> MutexGuard<'_, Stored> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stored {
    fn add(&mut self, mut parent: Option<BlockHash>, hashes: &[BlockHash], token_ids: &[u32]) {
        let block_size = token_ids.len() / hashes.len().max(1);
        for (hash, token_ids) in hashes.iter().zip(token_ids.chunks(block_size.max(1))) {
            if let Entry::Vacant(entry) = self.orders.entry(*hash) {
                entry.insert(self.next_order);
                self.blocks.insert(self.next_order, Block { hash: *hash, parent, token_ids: token_ids.into() });
                self.next_order += 1;
            }
            parent = Some(*hash);
        }
    }

    fn remove(&mut self, hash: BlockHash) {
        if let Some(order) = self.orders.remove(&hash) {
            self.blocks.remove(&order);
        }
    }
}

impl Block {
    /// Adds the block to the last event if it is the child of that event's last block, else as an event of its own.
    fn add_to(&self, events: &mut Vec<BlockEvent>) {
        if let Some(BlockEvent::Stored { blocks, token_ids, .. }) = events.last_mut()
            && self.parent.is_some()
            && blocks.last().copied() == self.parent
        {
            blocks.push(self.hash);
            token_ids.extend_from_slice(&self.token_ids);
            return;
        }
        let (blocks, token_ids) = (vec![self.hash], self.token_ids.to_vec());
        events.push(BlockEvent::Stored { parent: self.parent, blocks, token_ids });
    }
}

/// Returns a message with all blocks, and the memory that must be held until the message is written. Its number is that
/// of the last message whose events it contains. Must not be called before there is a message.
///
/// # Errors
/// When messages for other subscribers take the memory for too long.
pub(super) async fn message(feed: &Feed) -> Result<(Message, Held), PeerError> {
    let bytes = payload::max_bytes(feed.blocks.len(), feed.block_size).min(feed.wholes.limit_bytes());
    let held = feed.wholes.take(bytes, PATIENCE).await.ok_or(PeerError::NoRoom)?;
    let mut whole = read_all(feed).await;
    for _ in 1..NUM_TRIES {
        if !whole.has_changed {
            break;
        }
        whole = read_all(feed).await;
    }
    let payload = whole.payload.finish(seconds_since_1970()).into();
    Ok((Message { sequence: whole.sequence, payload }, held))
}

/// A payload with all blocks.
struct Whole {
    payload: Payload,
    /// The number of the message whose events were applied when reading began.
    sequence: u64,
    /// True if blocks changed while they were read.
    has_changed: bool,
}

async fn read_all(feed: &Feed) -> Whole {
    let mut chunk = feed.blocks.read(0);
    let mut whole = Whole { payload: Payload::new(feed.block_size), sequence: chunk.sequence, has_changed: false };
    whole.payload.add_cleared();
    while let Some(next) = chunk.next {
        chunk.events.iter().for_each(|event| whole.payload.add(event));
        tokio::task::yield_now().await;
        chunk = feed.blocks.read(next);
        whole.has_changed |= chunk.sequence != whole.sequence;
    }
    whole
}

/// Returns the time in seconds since 1970.
pub(super) fn seconds_since_1970() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(parent: Option<u64>, blocks: &[u64]) -> BlockEvent {
        let token_ids = blocks.iter().flat_map(|hash| [*hash as u32, 0]).collect();
        let blocks = blocks.iter().copied().map(BlockHash).collect();
        BlockEvent::Stored { parent: parent.map(BlockHash), blocks, token_ids }
    }

    fn removed(blocks: &[u64]) -> BlockEvent {
        BlockEvent::Removed { blocks: blocks.iter().copied().map(BlockHash).collect() }
    }

    fn all(blocks: &Blocks) -> Vec<BlockEvent> {
        let mut chunk = blocks.read(0);
        let mut events = std::mem::take(&mut chunk.events);
        while let Some(next) = chunk.next {
            chunk = blocks.read(next);
            events.append(&mut chunk.events);
        }
        events
    }

    #[test]
    fn parents_come_before_their_children() {
        let blocks = Blocks::default();
        blocks.apply(0, &[stored(None, &[1, 2, 3]), stored(Some(1), &[4]), removed(&[3])]);
        assert_eq!(all(&blocks), [stored(None, &[1, 2]), stored(Some(1), &[4])]);
        blocks.apply(1, &[removed(&[4, 2, 1]), stored(None, &[5]), stored(None, &[1, 4])]);
        assert_eq!(all(&blocks), [stored(None, &[5]), stored(None, &[1, 4])]);
        blocks.apply(2, &[removed(&[4, 1, 5, 7])]);
        assert!(all(&blocks).is_empty() && blocks.lock().orders.is_empty());
    }

    #[test]
    fn a_reader_that_is_overtaken_gets_no_child_without_its_parent() {
        let (blocks, num) = (Blocks::default(), CHUNK_BLOCKS as u64);
        let many: Vec<u64> = (1..=2 * num).collect();
        blocks.apply(7, &[stored(None, &many)]);
        let first = Chunk { events: vec![stored(None, &many[..CHUNK_BLOCKS])], next: Some(num), sequence: 7 };
        assert_eq!(blocks.read(0), first);
        let gone: Vec<u64> = many.iter().rev().copied().collect();
        blocks.apply(8, &[removed(&gone), stored(None, &[1]), stored(Some(1), &[2])]);
        let rest = Chunk { events: vec![stored(None, &[1, 2])], next: Some(2 * num + 2), sequence: 8 };
        assert_eq!(blocks.read(num), rest);
        assert_eq!(blocks.read(2 * num + 2), Chunk { events: vec![], next: None, sequence: 8 });
    }

    #[test]
    fn the_memory_of_blocks_is_bounded() {
        let entry = size_of::<(u64, Block)>() + size_of::<(BlockHash, u64)>();
        // A tree's nodes are at least half full, and so is a table; a box has a header of the allocator.
        assert!(2 * entry + 16 <= BLOCK_BYTES, "{entry}");
    }
}
