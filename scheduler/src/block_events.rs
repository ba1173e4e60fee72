//! Changes of the prefix cache, for gateways that send a prompt to the server that has its beginning in the cache.
//!
//! Entry points: [`BlockEvent`], and [`Recorder`], which the prefix tree tells of each change. Only blocks that a
//! prompt without tenant and salt can find are recorded, because an event contains the tokens of a block. A block that
//! a lookup no longer finds is removed, even while a sequence still reads it. Its descendants are removed with it.
//!
//! The name of a block is a hash of its tokens and of its parent's name. So the name is the same on every server and
//! after every start.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

/// The text at the start of every hash. A change of the hashed fields needs another text.
const HASH_DOMAIN: &[u8] = b"hilo.kv-block.1";

/// The hash of a block's tokens and of all tokens before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u64);

/// A change of the blocks that a prompt without tenant and salt finds in the prefix cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockEvent {
    /// Blocks were added. Each is the child of the one before it.
    Stored {
        /// The parent of the first block; `None` if that block begins a prompt.
        parent: Option<BlockHash>,
        /// The blocks, in order of position.
        blocks: Vec<BlockHash>,
        /// The tokens of the blocks, in order of position.
        token_ids: Vec<u32>,
    },
    /// Blocks were removed, children before their parents.
    Removed {
        /// The blocks.
        blocks: Vec<BlockHash>,
    },
}

/// The recorded nodes of the prefix tree, and the events that were not taken yet. Nodes are named by their index in the
/// tree.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// The hash of each recorded node. The parent of a recorded node is recorded too, unless it is the root.
    hashes: Vec<Option<BlockHash>>,
    /// The recorded nodes that have a parent: pairs of parent and child.
    children: BTreeSet<(u32, u32)>,
    events: Vec<BlockEvent>,
}

/// The parent of a new node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordedParent {
    /// The root of the prompts that all clients share.
    Root,
    /// The root of a scope. Its nodes are not recorded.
    Scope,
    Node(u32),
}

impl BlockHash {
    /// Returns the name of the block with these tokens after `parent`.
    pub(crate) fn new(parent: Option<Self>, token_ids: &[u32]) -> Self {
        let mut hasher = Sha256::new_with_prefix(HASH_DOMAIN);
        if let Some(Self(parent)) = parent {
            hasher.update(parent.to_be_bytes());
        }
        for token_id in token_ids {
            hasher.update(token_id.to_be_bytes());
        }
        let digest = hasher.finalize();
        let (first, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
        Self(u64::from_be_bytes(*first))
    }
}

impl Recorder {
    /// Creates the recorder of an empty tree with room for `num_nodes` nodes.
    pub(crate) fn new(num_nodes: usize) -> Self {
        Self { hashes: vec![None; num_nodes], children: BTreeSet::new(), events: Vec::new() }
    }

    /// Notes that a node was inserted. A node after one that no lookup finds is not recorded.
    pub(crate) fn insert(&mut self, node: u32, parent: RecordedParent, token_ids: &[u32]) {
        let parent_hash = match parent {
            RecordedParent::Scope => return,
            RecordedParent::Root => None,
            RecordedParent::Node(index) => match self.hashes[index as usize] {
                Some(hash) => {
                    self.children.insert((index, node));
                    Some(hash)
                }
                None => return,
            },
        };
        let hash = BlockHash::new(parent_hash, token_ids);
        self.hashes[node as usize] = Some(hash);
        match self.events.last_mut() {
            Some(BlockEvent::Stored { blocks, token_ids: stored, .. })
                if parent_hash.is_some() && blocks.last().copied() == parent_hash =>
            {
                blocks.push(hash);
                stored.extend_from_slice(token_ids);
            }
            _ => {
                let (blocks, token_ids) = (vec![hash], token_ids.to_vec());
                self.events.push(BlockEvent::Stored { parent: parent_hash, blocks, token_ids });
            }
        }
    }

    /// Notes that lookups no longer find a node and its descendants.
    pub(crate) fn remove(&mut self, node: u32, parent: RecordedParent) {
        let Some(hash) = self.hashes[node as usize].take() else { return };
        if let RecordedParent::Node(parent) = parent {
            self.children.remove(&(parent, node));
        }
        let (mut removed, mut unseen) = (vec![hash], vec![node]);
        while let Some(node) = unseen.pop() {
            while let Some(&(_, child)) = self.children.range((node, 0)..=(node, u32::MAX)).next() {
                self.children.remove(&(node, child));
                removed.extend(self.hashes[child as usize].take());
                unseen.push(child);
            }
        }
        removed.reverse();
        match self.events.last_mut() {
            Some(BlockEvent::Removed { blocks }) => blocks.append(&mut removed),
            _ => self.events.push(BlockEvent::Removed { blocks: removed }),
        }
    }

    /// Returns the events since the last call, in order.
    pub(crate) fn take(&mut self) -> Vec<BlockEvent> {
        std::mem::take(&mut self.events)
    }

    /// Returns the hashes of the recorded nodes.
    #[cfg(test)]
    pub(crate) fn recorded(&self) -> BTreeSet<BlockHash> {
        self.hashes.iter().flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_depends_on_every_token_before_it() {
        let first = BlockHash::new(None, &[1, 2]);
        // Python's `hashlib.sha256` gives the same. Another value would mean that servers of two versions name the same
        // block differently.
        assert_eq!(first, BlockHash(0xd304_ff01_bac1_d799));
        assert_ne!(first, BlockHash::new(None, &[2, 1]));
        assert_ne!(BlockHash::new(Some(first), &[3, 4]), BlockHash::new(None, &[3, 4]));
        assert_ne!(BlockHash::new(Some(first), &[3, 4]), BlockHash::new(Some(BlockHash(7)), &[3, 4]));
    }

    #[test]
    fn neighbours_are_one_event_and_descendants_leave_with_their_parent() {
        let mut recorder = Recorder::new(8);
        recorder.insert(5, RecordedParent::Root, &[1, 2]);
        recorder.insert(3, RecordedParent::Node(5), &[3, 4]);
        recorder.insert(4, RecordedParent::Node(5), &[5, 6]);
        recorder.insert(0, RecordedParent::Scope, &[1, 2]);
        recorder.insert(1, RecordedParent::Node(0), &[3, 4]);
        let first = BlockHash::new(None, &[1, 2]);
        let [left, right] = [[3, 4], [5, 6]].map(|token_ids| BlockHash::new(Some(first), &token_ids));
        let chain = BlockEvent::Stored { parent: None, blocks: vec![first, left], token_ids: vec![1, 2, 3, 4] };
        let other = BlockEvent::Stored { parent: Some(first), blocks: vec![right], token_ids: vec![5, 6] };
        assert_eq!(recorder.take(), [chain, other]);
        assert_eq!(recorder.take(), []);
        recorder.remove(3, RecordedParent::Node(5));
        recorder.remove(5, RecordedParent::Root);
        recorder.remove(4, RecordedParent::Node(5));
        recorder.remove(0, RecordedParent::Scope);
        assert_eq!(recorder.take(), [BlockEvent::Removed { blocks: vec![left, right, first] }]);
        assert!(recorder.recorded().is_empty() && recorder.children.is_empty());
    }
}
