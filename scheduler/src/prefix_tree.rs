//! The prefix cache: which full blocks hold the keys and values of which tokens, as a radix tree over blocks.
//!
//! A block's keys and values depend on its tokens and on all tokens before them, so its place in the tree is its parent
//! node and its own tokens. Running sequences refer to the nodes of their path that they still read: all, or with a
//! window the last ones. The blocks of nodes without references can all be evicted: leaves first, the least recently
//! used first; then those before a node in use, the most recently used first, which is the farthest from the root. What
//! is behind an evicted node is not found any more, because no other node gets its name. Nothing here depends on the
//! order of a hash table.

use std::collections::BTreeSet;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::PrefixScope;

/// A page of the KV cache. Its bytes are with the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockId(pub(crate) u32);

/// A place in the tree. In order, a parent is before its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId {
    /// Counts insertions: no two nodes have the same, one that was evicted included.
    name: u64,
    index: u32,
}

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
    /// By index; there are as many as blocks.
    nodes: Vec<Node>,
    /// The tokens of every node, `[num_blocks, block_size]`.
    tokens: Vec<u32>,
    /// Indices of nodes.
    unused: Vec<u32>,
    next_name: u64,
    /// By parent and tokens. The hash has a random key, so that nobody can choose tokens that collide.
    children: HashTable<NodeId>,
    hash_builder: DefaultHashBuilder,
    /// Leaves that nobody refers to, by when they were last used.
    idle_leaves: BTreeSet<(u64, NodeId)>,
    /// Other nodes that nobody refers to, in the same order.
    idle_inner: BTreeSet<(u64, NodeId)>,
}

/// The data of a node in use.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// `None` where there is no node.
    name: Option<u64>,
    block: BlockId,
    parent: Parent,
    num_references: u32,
    num_children: u32,
    /// The step in which its tokens are computed.
    computed_in: u64,
    /// The step in which the last reference went.
    last_used: u64,
    /// Nobody finds it any more, nor what is behind it. When its last reference goes, it is the first to be evicted.
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
            unused: (0..num_blocks as u32).rev().collect(),
            next_name: 0,
            children: HashTable::new(),
            hash_builder: DefaultHashBuilder::default(),
            idle_leaves: BTreeSet::new(),
            idle_inner: BTreeSet::new(),
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
        // There are fewer than 2^32 nodes.
        (self.idle_leaves.len() + self.idle_inner.len()) as u32
    }

    /// False if a node was evicted.
    pub(crate) fn has(&self, id: NodeId) -> bool {
        self.nodes[index(id)].name == Some(id.name)
    }

    /// Puts a block into the cache, with one reference. Its tokens are computed in `step`. No other may be in its
    /// place.
    pub(crate) fn insert(&mut self, parent: Parent, block: BlockId, tokens: &[u32], step: u64) -> NodeId {
        let unused = self.unused.pop().expect("there are as many nodes as blocks");
        let id = NodeId { name: self.next_name, index: unused };
        self.next_name += 1;
        let start = index(id) * self.block_size;
        self.tokens[start..start + self.block_size].copy_from_slice(tokens);
        self.nodes[index(id)] = Node {
            name: Some(id.name),
            block,
            parent,
            num_references: 1,
            computed_in: step,
            last_used: step,
            ..Node::UNUSED
        };
        self.count_child(parent, 1);
        let hash = self.hash(parent, tokens);
        let Self { children, nodes, tokens, hash_builder, block_size, .. } = self;
        children.insert_unique(hash, id, |id| {
            let start = index(*id) * *block_size;
            hash_builder.hash_one((nodes[index(*id)].parent, &tokens[start..start + *block_size]))
        });
        id
    }

    /// Refers to a node once more.
    pub(crate) fn refer(&mut self, id: NodeId) {
        self.set_idle(id, false);
        self.nodes[index(id)].num_references += 1;
    }

    /// Takes a reference back in `step`.
    pub(crate) fn unrefer(&mut self, id: NodeId, step: u64) {
        let node = &mut self.nodes[index(id)];
        node.num_references = node.num_references.checked_sub(1).expect("each reference is taken back once");
        if node.num_references == 0 {
            node.last_used = if node.is_forgotten { 0 } else { step };
        }
        self.set_idle(id, true);
    }

    /// Lets nobody find a node from here on, if it was not evicted. Another one with the same tokens may come into its
    /// place.
    pub(crate) fn forget(&mut self, id: NodeId) {
        if self.has(id) {
            self.nodes[index(id)].is_forgotten = true;
            self.remove_from_children(id);
        }
    }

    /// True if a node was forgotten, and not evicted since.
    pub(crate) fn is_forgotten(&self, id: NodeId) -> bool {
        self.has(id) && self.nodes[index(id)].is_forgotten
    }

    /// Takes a block that nobody refers to out of the cache: that of the least recently used leaf where there is one.
    pub(crate) fn evict(&mut self) -> Option<BlockId> {
        let (_, id) = self.idle_leaves.pop_first().or_else(|| self.idle_inner.pop_last())?;
        let Node { block, parent, .. } = self.nodes[index(id)];
        self.remove_from_children(id);
        self.nodes[index(id)] = Node::UNUSED;
        self.unused.push(id.index);
        self.count_child(parent, -1);
        Some(block)
    }

    /// Adds to the number of a node's children, if it was not evicted.
    fn count_child(&mut self, parent: Parent, change: i32) {
        let Parent::Node(parent) = parent else { return };
        if self.has(parent) {
            self.set_idle(parent, false);
            let node = &mut self.nodes[index(parent)];
            node.num_children = node.num_children.checked_add_signed(change).expect("each child is counted once");
            self.set_idle(parent, true);
        }
    }

    /// Puts a node that nobody refers to among those that can be evicted, or takes it out.
    fn set_idle(&mut self, id: NodeId, is_idle: bool) {
        let Node { num_references, num_children, last_used, .. } = self.nodes[index(id)];
        if num_references > 0 {
            return;
        }
        let nodes = if num_children == 0 { &mut self.idle_leaves } else { &mut self.idle_inner };
        if is_idle {
            nodes.insert((last_used, id));
        } else {
            nodes.remove(&(last_used, id));
        }
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
        name: None,
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
    node.index as usize
}
