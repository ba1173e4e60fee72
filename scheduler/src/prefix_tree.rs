//! The prefix cache: which full blocks hold the keys and values of which tokens, as a radix tree over blocks.
//!
//! A block's keys and values depend on its tokens and on all tokens before them, so its place in the tree is its parent
//! node and its own tokens. Running sequences refer to the nodes of their path; who refers to a node refers to all its
//! ancestors, so a node without references has no descendant with one, and the blocks of nodes without references can
//! all be evicted, leaves first, the least recently used first. Nothing here depends on the order of a hash table.

use std::collections::BTreeSet;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::PrefixScope;

/// A page of the KV cache. Its bytes are with the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockId(pub(crate) u32);

/// A place in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(u32);

/// Where a block comes: behind another one, or first in a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Parent {
    Root(PrefixScope),
    Node(NodeId),
}

/// All blocks that are in the cache.
#[derive(Debug)]
pub(crate) struct PrefixTree {
    block_size: usize,
    /// By id; there are as many as blocks.
    nodes: Vec<Node>,
    /// Of every node, `[num_blocks, block_size]`.
    tokens: Vec<u32>,
    unused: Vec<NodeId>,
    /// By parent and tokens. The hash has a random key, so that nobody can choose tokens that collide.
    children: HashTable<NodeId>,
    hash_builder: DefaultHashBuilder,
    /// Leaves that nobody refers to, by when they were last used.
    idle_leaves: BTreeSet<(u64, NodeId)>,
    num_idle: u32,
}

/// What is known of a node that is in use.
#[derive(Debug, Clone, Copy)]
struct Node {
    block: BlockId,
    parent: Parent,
    num_references: u32,
    num_children: u32,
    /// The step in which its tokens are computed.
    computed_in: u64,
    /// The step in which the last reference went.
    last_used: u64,
    /// Nobody finds it any more, nor what is behind it. It is the first to be evicted.
    is_forgotten: bool,
}

impl PrefixTree {
    /// An empty cache that can hold blocks `0..num_blocks`.
    pub(crate) fn new(num_blocks: u32, block_size_tokens: u32) -> Self {
        let (num_blocks, block_size) = (num_blocks as usize, block_size_tokens as usize);
        Self {
            block_size,
            nodes: vec![Node::UNUSED; num_blocks],
            tokens: vec![0; num_blocks * block_size],
            unused: (0..num_blocks as u32).rev().map(NodeId).collect(),
            children: HashTable::new(),
            hash_builder: DefaultHashBuilder::default(),
            idle_leaves: BTreeSet::new(),
            num_idle: 0,
        }
    }

    /// The node that holds `tokens`, a block's worth, behind `parent`.
    pub(crate) fn child(&self, parent: Parent, tokens: &[u32]) -> Option<NodeId> {
        let hash = self.hash(parent, tokens);
        let is_it = |node: &NodeId| self.nodes[index(*node)].parent == parent && self.tokens_of(*node) == tokens;
        self.children.find(hash, is_it).copied()
    }

    /// The block with the keys and values of a node.
    pub(crate) fn block(&self, node: NodeId) -> BlockId {
        self.nodes[index(node)].block
    }

    /// Gives a node a block whose keys and values are computed by the end of `step`, and answers the one that it had,
    /// which nobody may use.
    pub(crate) fn replace_block(&mut self, node: NodeId, block: BlockId, step: u64) -> BlockId {
        let node = &mut self.nodes[index(node)];
        node.computed_in = step;
        std::mem::replace(&mut node.block, block)
    }

    /// The step in which the tokens of a node are computed.
    pub(crate) fn computed_in(&self, node: NodeId) -> u64 {
        self.nodes[index(node)].computed_in
    }

    /// How many sequences refer to a node.
    pub(crate) fn num_references(&self, node: NodeId) -> u32 {
        self.nodes[index(node)].num_references
    }

    /// Nodes that nobody refers to.
    pub(crate) fn num_idle(&self) -> u32 {
        self.num_idle
    }

    /// Puts a block into the cache, with one reference. Its tokens are computed in `step`. No other may be in its
    /// place.
    pub(crate) fn insert(&mut self, parent: Parent, block: BlockId, tokens: &[u32], step: u64) -> NodeId {
        let id = self.unused.pop().expect("there are as many nodes as blocks");
        let start = index(id) * self.block_size;
        self.tokens[start..start + self.block_size].copy_from_slice(tokens);
        self.nodes[index(id)] =
            Node { block, parent, num_references: 1, computed_in: step, last_used: step, ..Node::UNUSED };
        if let Parent::Node(parent) = parent {
            self.nodes[index(parent)].num_children += 1;
        }
        let hash = self.hash(parent, tokens);
        let Self { children, nodes, tokens, hash_builder, block_size, .. } = self;
        children.insert_unique(hash, id, |id| {
            let start = index(*id) * *block_size;
            hash_builder.hash_one((nodes[index(*id)].parent, &tokens[start..start + *block_size]))
        });
        id
    }

    /// Refers to a node once more. Its ancestors come first.
    pub(crate) fn refer(&mut self, id: NodeId) {
        let node = &mut self.nodes[index(id)];
        node.num_references += 1;
        if node.num_references == 1 {
            self.num_idle -= 1;
            self.idle_leaves.remove(&(node.last_used, id));
        }
    }

    /// Takes a reference back in `step`. Its ancestors come last.
    pub(crate) fn unrefer(&mut self, id: NodeId, step: u64) {
        let node = &mut self.nodes[index(id)];
        node.num_references = node.num_references.checked_sub(1).expect("each reference is taken back once");
        if node.num_references == 0 {
            node.last_used = if node.is_forgotten { 0 } else { step };
            self.num_idle += 1;
            if node.num_children == 0 {
                self.idle_leaves.insert((node.last_used, id));
            }
        }
    }

    /// Lets nobody find a node from here on. Another one with the same tokens may come into its place.
    pub(crate) fn forget(&mut self, id: NodeId) {
        self.nodes[index(id)].is_forgotten = true;
        self.remove_from_children(id);
    }

    /// True if nobody finds a node any more.
    pub(crate) fn is_forgotten(&self, id: NodeId) -> bool {
        self.nodes[index(id)].is_forgotten
    }

    /// Takes the block of the least recently used leaf out of the cache.
    pub(crate) fn evict(&mut self) -> Option<BlockId> {
        let (_, id) = self.idle_leaves.pop_first()?;
        let Node { block, parent, .. } = self.nodes[index(id)];
        self.remove_from_children(id);
        self.nodes[index(id)] = Node::UNUSED;
        self.unused.push(id);
        self.num_idle -= 1;
        if let Parent::Node(parent) = parent {
            let node = &mut self.nodes[index(parent)];
            node.num_children -= 1;
            if node.num_children == 0 && node.num_references == 0 {
                self.idle_leaves.insert((node.last_used, parent));
            }
        }
        Some(block)
    }

    /// Does nothing for a node that was forgotten before.
    fn remove_from_children(&mut self, id: NodeId) {
        let hash = self.hash(self.nodes[index(id)].parent, self.tokens_of(id));
        if let Ok(entry) = self.children.find_entry(hash, |other| *other == id) {
            entry.remove();
        }
    }

    fn tokens_of(&self, node: NodeId) -> &[u32] {
        &self.tokens[index(node) * self.block_size..][..self.block_size]
    }

    fn hash(&self, parent: Parent, tokens: &[u32]) -> u64 {
        self.hash_builder.hash_one((parent, tokens))
    }
}

impl Node {
    const UNUSED: Self = Self {
        block: BlockId(u32::MAX),
        parent: Parent::Root(PrefixScope::SHARED),
        num_references: 0,
        num_children: 0,
        computed_in: 0,
        last_used: 0,
        is_forgotten: false,
    };
}

fn index(node: NodeId) -> usize {
    node.0 as usize
}
