//! The prefix cache: a radix tree of full blocks. It maps tokens to the blocks that contain their keys and values.
//!
//! A block's keys and values depend on its tokens and on all tokens before them, so a node is found by its parent node
//! and its own tokens. Running sequences refer to the nodes of their path that they still read: all nodes, or with an
//! attention window only the last ones. Only nodes without references can be evicted: first leaves, the one with the
//! smallest `last_used` first; then nodes with children, the one with the largest first, because that node tends to be
//! the farthest from the root. Lookups no longer find the descendants of an evicted node, because no other node gets
//! its name. The order of the hash table has no effect.

use std::collections::BTreeSet;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::PrefixScope;
use crate::block_events::{BlockEvent, RecordedParent, Recorder};

/// The index of a block (page) of the KV cache. The shards store the block's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockId(pub(crate) u32);

/// The id of a node of the tree. The id of a parent sorts before the ids of its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId {
    /// The number of insertions before this node, so that no two nodes, evicted ones included, have the same name.
    name: u64,
    index: u32,
}

/// The parent of a block: another node, or the root of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Parent {
    Root(PrefixScope),
    Node(NodeId),
}

/// The tree, its indexes and its unused nodes.
#[derive(Debug)]
pub(crate) struct PrefixTree {
    block_size: usize,
    /// Nodes by index. There are as many nodes as blocks.
    nodes: Vec<Node>,
    /// The tokens of every node, `[num_blocks, block_size]`.
    tokens: Vec<u32>,
    /// The indices of unused nodes.
    unused: Vec<u32>,
    next_name: u64,
    /// Nodes by parent and tokens. The hash has a random key, so that tokens that collide are hard to choose.
    children: HashTable<NodeId>,
    hash_builder: DefaultHashBuilder,
    /// Leaves without references, in order of `last_used`.
    idle_leaves: BTreeSet<(u64, NodeId)>,
    /// Other nodes without references, in the same order.
    idle_inner: BTreeSet<(u64, NodeId)>,
    /// `None` if changes of the cache are not recorded.
    recorder: Option<Recorder>,
}

/// The data of a node.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// `None` if the node is unused.
    name: Option<u64>,
    block: BlockId,
    parent: Parent,
    num_references: u32,
    num_children: u32,
    /// The step that computes the keys and values of the node.
    computed_in: u64,
    /// The step of the insertion, later the step in which the last reference was dropped, or 0 if the node was
    /// forgotten before that.
    last_used: u64,
    /// True if lookups no longer find the node and its descendants. A leaf that is forgotten before its last reference
    /// is dropped is evicted first.
    is_forgotten: bool,
}

impl PrefixTree {
    /// Creates an empty cache with room for `num_blocks` blocks.
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
            recorder: None,
        }
    }

    /// Records changes from now on. The cache must be empty.
    pub(crate) fn record_events(&mut self) {
        self.recorder = Some(Recorder::new(self.nodes.len()));
    }

    /// Returns the recorded events since the last call, in order.
    pub(crate) fn take_events(&mut self) -> Vec<BlockEvent> {
        self.recorder.as_mut().map_or(Vec::new(), Recorder::take)
    }

    /// Returns the child of `parent` that contains `tokens`, which fill exactly one block.
    pub(crate) fn child(&self, parent: Parent, tokens: &[u32]) -> Option<NodeId> {
        let hash = self.hash(parent, tokens);
        let is_it = |node: &NodeId| self.nodes[index(*node)].parent == parent && self.tokens_of(*node) == tokens;
        self.children.find(hash, is_it).copied()
    }

    /// Returns the block with the keys and values of a node.
    pub(crate) fn block(&self, node: NodeId) -> BlockId {
        self.nodes[index(node)].block
    }

    /// Replaces the block of a node by another block, whose keys and values are complete at the end of `step`. Returns
    /// the old block, which must have no other user.
    pub(crate) fn replace_block(&mut self, node: NodeId, block: BlockId, step: u64) -> BlockId {
        let node = &mut self.nodes[index(node)];
        node.computed_in = step;
        std::mem::replace(&mut node.block, block)
    }

    /// The step that computes the keys and values of a node.
    pub(crate) fn computed_in(&self, node: NodeId) -> u64 {
        self.nodes[index(node)].computed_in
    }

    /// The number of sequences that refer to a node.
    pub(crate) fn num_references(&self, node: NodeId) -> u32 {
        self.nodes[index(node)].num_references
    }

    /// The number of nodes without references.
    pub(crate) fn num_idle(&self) -> u32 {
        // There are fewer than 2^32 nodes.
        (self.idle_leaves.len() + self.idle_inner.len()) as u32
    }

    /// True if a node is in the tree. False if it was evicted.
    pub(crate) fn has(&self, id: NodeId) -> bool {
        self.nodes[index(id)].name == Some(id.name)
    }

    /// Puts a block into the cache, with one reference. `step` is the step that computes the block's keys and values.
    /// The parent must have no child with the same tokens.
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
        if let Some(recorder) = &mut self.recorder {
            let start = index(id) * self.block_size;
            recorder.insert(id.index, parent.recorded(), &self.tokens[start..start + self.block_size]);
        }
        id
    }

    /// Adds a reference to a node.
    pub(crate) fn refer(&mut self, id: NodeId) {
        self.set_idle(id, false);
        self.nodes[index(id)].num_references += 1;
    }

    /// Drops a reference to a node. `step` is the current step.
    pub(crate) fn unrefer(&mut self, id: NodeId, step: u64) {
        let node = &mut self.nodes[index(id)];
        node.num_references = node.num_references.checked_sub(1).expect("each reference is taken back once");
        if node.num_references == 0 {
            node.last_used = if node.is_forgotten { 0 } else { step };
        }
        self.set_idle(id, true);
    }

    /// Hides a node from lookups, if it was not evicted. Afterwards another node with the same parent and tokens may be
    /// inserted.
    pub(crate) fn forget(&mut self, id: NodeId) {
        if self.has(id) {
            self.nodes[index(id)].is_forgotten = true;
            self.remove_from_children(id);
            self.record_removal(id);
        }
    }

    /// True if a node was forgotten and is still in the tree.
    pub(crate) fn is_forgotten(&self, id: NodeId) -> bool {
        self.has(id) && self.nodes[index(id)].is_forgotten
    }

    /// Evicts a node without references and returns its block: the leaf with the smallest `last_used` or, if no leaf is
    /// idle, the inner node with the largest.
    pub(crate) fn evict(&mut self) -> Option<BlockId> {
        let (_, id) = self.idle_leaves.pop_first().or_else(|| self.idle_inner.pop_last())?;
        let Node { block, parent, .. } = self.nodes[index(id)];
        self.remove_from_children(id);
        self.record_removal(id);
        self.nodes[index(id)] = Node::UNUSED;
        self.unused.push(id.index);
        self.count_child(parent, -1);
        Some(block)
    }

    /// Adds `change` to the parent's number of children, if the parent was not evicted.
    fn count_child(&mut self, parent: Parent, change: i32) {
        let Parent::Node(parent) = parent else { return };
        if self.has(parent) {
            self.set_idle(parent, false);
            let node = &mut self.nodes[index(parent)];
            node.num_children = node.num_children.checked_add_signed(change).expect("each child is counted once");
            self.set_idle(parent, true);
        }
    }

    /// Adds a node to the nodes that can be evicted (if `is_idle`), or removes it from them. A no-op for nodes with
    /// references.
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

    /// Removes a node from the lookup table. A no-op for a node that was forgotten before.
    fn remove_from_children(&mut self, id: NodeId) {
        let hash = self.hash(self.nodes[index(id)].parent, self.tokens_of(id));
        if let Ok(entry) = self.children.find_entry(hash, |other| *other == id) {
            entry.remove();
        }
    }

    fn record_removal(&mut self, id: NodeId) {
        if let Some(recorder) = &mut self.recorder {
            recorder.remove(id.index, self.nodes[index(id)].parent.recorded());
        }
    }

    fn tokens_of(&self, node: NodeId) -> &[u32] {
        &self.tokens[index(node) * self.block_size..][..self.block_size]
    }

    fn hash(&self, parent: Parent, tokens: &[u32]) -> u64 {
        self.hash_builder.hash_one((parent, tokens))
    }
}

impl Parent {
    fn recorded(self) -> RecordedParent {
        match self {
            Self::Root(PrefixScope::SHARED) => RecordedParent::Root,
            Self::Root(_) => RecordedParent::Scope,
            Self::Node(node) => RecordedParent::Node(node.index),
        }
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

#[cfg(test)]
impl PrefixTree {
    /// Returns the tokens from the start of the prompt to the end of each node that a prompt without tenant and salt
    /// finds.
    pub(crate) fn shared_prefixes(&self) -> BTreeSet<Vec<u32>> {
        let ids = self.nodes.iter().zip(0..).filter_map(|(node, index)| Some(NodeId { name: node.name?, index }));
        ids.filter_map(|id| self.shared_prefix(id)).collect()
    }

    fn shared_prefix(&self, id: NodeId) -> Option<Vec<u32>> {
        if !self.has(id) || self.is_forgotten(id) {
            return None;
        }
        let mut prefix = match self.nodes[index(id)].parent {
            Parent::Root(scope) => (scope == PrefixScope::SHARED).then(Vec::new)?,
            Parent::Node(parent) => self.shared_prefix(parent)?,
        };
        prefix.extend(self.tokens_of(id));
        Some(prefix)
    }
}
