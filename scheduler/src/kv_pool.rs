//! The blocks of the KV cache. Each is free, owned by one sequence, or in the prefix cache with a count of references.
//!
//! Doors: [`KvPool::lookup`] and [`KvPool::open`] for a sequence that is admitted, [`KvPool::grow`] while it runs,
//! [`KvPool::cache`] when some of its blocks are full, [`KvPool::drop_first`] when its window has passed some,
//! [`KvPool::close`] at its end. A sequence that needs a block gets a free one, else an idle one of the prefix cache.
//!
//! ```text
//! free ──open, grow──▶ owned ──cache──▶ cached, referred to ◀──open──▶ cached, idle ──evicted──▶ owned by another
//!   ▲────────close───────┘                        └──────────close─────────▲
//! ```
//!
//! A forgotten block ([`KvPool::forget`]) goes the same way, but no sequence finds it.

use crate::PrefixScope;
use crate::prefix_tree::{BlockId, NodeId, Parent, PrefixTree};
use crate::tokens::Tokens;

/// All blocks of the KV cache.
#[derive(Debug)]
pub(crate) struct KvPool {
    block_size: u32,
    free: Vec<BlockId>,
    is_free: Vec<bool>,
    /// `None` if prompts are never shared.
    tree: Option<PrefixTree>,
    /// Counts steps. Other rows of a step cannot read what the same step computes.
    step: u64,
    num_returns: u64,
}

/// The blocks of one sequence.
#[derive(Debug)]
pub(crate) struct BlockTable {
    /// The block table, in order of position.
    blocks: Vec<BlockId>,
    /// The nodes of the sequence's tokens in the prefix cache, from the first block on. If another sequence has
    /// computed the same tokens at the same time, the node holds its block instead of this sequence's own: a twin.
    path: Vec<NodeId>,
    /// The number of blocks at the start of the table that were given back. They keep their index, but may belong to
    /// another sequence, and their nodes may have been evicted.
    num_dead: u32,
    scope: PrefixScope,
    num_twins: u32,
}

/// The part of a prompt that the prefix cache has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    scope: PrefixScope,
    pub(crate) nodes: Vec<NodeId>,
    /// The number of nodes at the start of `nodes` that no token after the prefix reads.
    pub(crate) num_dead: u32,
    /// True if the next block is being computed in this very step.
    pub(crate) is_being_read: bool,
}

impl Prefix {
    /// The empty prefix of a sequence of this scope.
    pub(crate) fn nothing(scope: PrefixScope) -> Self {
        Self { scope, nodes: Vec::new(), num_dead: 0, is_being_read: false }
    }

    /// The nodes that are read.
    fn live_nodes(&self) -> &[NodeId] {
        &self.nodes[self.num_dead as usize..]
    }
}

impl BlockTable {
    /// Blocks in order of position.
    pub(crate) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }
}

impl KvPool {
    /// Blocks `0..num_blocks`, all free.
    pub(crate) fn new(num_blocks: u32, block_size_tokens: u32, caches_prefixes: bool) -> Self {
        Self {
            block_size: block_size_tokens,
            free: (0..num_blocks).rev().map(BlockId).collect(),
            is_free: vec![true; num_blocks as usize],
            tree: caches_prefixes.then(|| PrefixTree::new(num_blocks, block_size_tokens)),
            step: 0,
            num_returns: 0,
        }
    }

    /// Begins the next step.
    pub(crate) fn begin_step(&mut self) {
        self.step += 1;
    }

    /// Returns the longest prefix of the first `num_tokens` tokens, in whole blocks, that the cache has in this scope.
    pub(crate) fn lookup(&self, scope: PrefixScope, tokens: &Tokens, num_tokens: u32) -> Prefix {
        let mut prefix = Prefix::nothing(scope);
        let Some(tree) = &self.tree else { return prefix };
        for start in (0..num_tokens / self.block_size).map(|block| block * self.block_size) {
            let tokens = tokens.range(start..start + self.block_size);
            let Some(node) = tree.child(parent(scope, &prefix.nodes), &tokens) else { break };
            if tree.computed_in(node) == self.step {
                prefix.is_being_read = true;
                break;
            }
            prefix.nodes.push(node);
        }
        prefix
    }

    /// The number of times that blocks were given back. While it stays the same, no more blocks become available.
    pub(crate) fn num_returns(&self) -> u64 {
        self.num_returns
    }

    /// The number of available blocks: free ones, and idle ones of the prefix cache.
    pub(crate) fn num_available(&self) -> u32 {
        count(self.free.len()) + self.num_idle()
    }

    /// The number of blocks of the prefix cache that no sequence refers to.
    pub(crate) fn num_idle(&self) -> u32 {
        self.tree.as_ref().map_or(0, PrefixTree::num_idle)
    }

    /// The number of blocks that sequences own or refer to.
    pub(crate) fn num_used(&self) -> u32 {
        count(self.is_free.len()) - self.num_available()
    }

    /// The number of available blocks that are not in `prefix`.
    pub(crate) fn num_available_beside(&self, prefix: &Prefix) -> u32 {
        let Some(tree) = &self.tree else { return self.num_available() };
        self.num_available() - count(prefix.live_nodes().iter().filter(|node| tree.num_references(**node) == 0).count())
    }

    /// Opens the table of a sequence: `prefix`, then `num_new` blocks of its own. Returns `None` and changes nothing if
    /// there are not enough blocks.
    pub(crate) fn open(&mut self, prefix: Prefix, num_new: u32) -> Option<BlockTable> {
        if num_new > self.num_available_beside(&prefix) {
            return None;
        }
        let mut blocks = Vec::new();
        if let Some(tree) = &mut self.tree {
            prefix.live_nodes().iter().for_each(|node| tree.refer(*node));
            blocks.extend(prefix.nodes.iter().map(|node| tree.block(*node)));
        }
        let Prefix { scope, nodes: path, num_dead, is_being_read: _ } = prefix;
        let mut table = BlockTable { blocks, path, num_dead, scope, num_twins: 0 };
        let new = std::iter::repeat_with(|| self.take()).take(num_new as usize);
        table.blocks.extend(new.flatten());
        Some(table)
    }

    /// Adds a block to a table. `None` if no block is left. This cannot happen if no other sequence has blocks and all
    /// that this one needs fit in the cache.
    pub(crate) fn grow(&mut self, table: &mut BlockTable) -> Option<BlockId> {
        if self.num_available() == 0 {
            self.free_twins(table);
        }
        let block = self.take()?;
        table.blocks.push(block);
        Some(block)
    }

    /// Puts the full blocks of a table into the prefix cache. The steps scheduled so far write the keys and values of
    /// the first `num_tokens` of its tokens.
    pub(crate) fn cache(&mut self, table: &mut BlockTable, tokens: &Tokens, num_tokens: u32) {
        let Some(tree) = &mut self.tree else { return };
        let (num_cached, num_full) = (count(table.path.len()), num_tokens / self.block_size);
        // A block that was given back before its tokens were known leaves a gap. No lookup would find a block after a
        // gap or after an evicted node.
        if num_full <= num_cached || table.num_dead > num_cached || !table.path.iter().all(|node| tree.has(*node)) {
            return;
        }
        for start in (num_cached..num_full).map(|block| block * self.block_size) {
            let tokens = tokens.range(start..start + self.block_size);
            let parent = parent(table.scope, &table.path);
            let own = table.blocks[table.path.len()];
            let node = if let Some(node) = tree.child(parent, &tokens) {
                tree.refer(node);
                table.num_twins += 1;
                node
            } else {
                tree.insert(parent, own, &tokens, self.step)
            };
            table.path.push(node);
        }
        self.free_twins(table);
    }

    /// Takes the blocks of a table, and all nodes after them, out of the prefix cache, so that no lookup finds them.
    /// Sequences that refer to them keep them.
    pub(crate) fn forget(&mut self, table: &BlockTable) {
        if let Some(tree) = &mut self.tree {
            table.path.iter().for_each(|node| tree.forget(*node));
        }
    }

    /// True if a block of a table was forgotten.
    pub(crate) fn is_forgotten(&self, table: &BlockTable) -> bool {
        let Some(tree) = &self.tree else { return false };
        table.path.iter().any(|node| tree.is_forgotten(*node))
    }

    /// Gives back those of the first `num_dead` blocks of a table that were not given back before. The steps scheduled
    /// from here on do not read them. Blocks in the prefix cache stay there until they are needed.
    pub(crate) fn drop_first(&mut self, table: &mut BlockTable, num_dead: u32) {
        if num_dead > table.num_dead {
            for index in table.num_dead as usize..num_dead as usize {
                self.give_back(table.blocks[index], table.path.get(index).copied());
            }
            table.num_dead = num_dead;
            self.num_returns += 1;
        }
    }

    /// Ends a table. Blocks that are not in the prefix cache become free.
    pub(crate) fn close(&mut self, table: BlockTable) {
        let BlockTable { blocks, path, num_dead, scope: _, num_twins: _ } = table;
        self.num_returns += 1;
        for (index, block) in blocks.into_iter().enumerate().skip(num_dead as usize).rev() {
            self.give_back(block, path.get(index).copied());
        }
    }

    /// Takes back a block of a table. `node` is the node at the block's index, if the block's tokens are in the prefix
    /// cache.
    fn give_back(&mut self, block: BlockId, node: Option<NodeId>) {
        let mut is_cached = false;
        if let (Some(node), Some(tree)) = (node, &mut self.tree) {
            tree.unrefer(node, self.step);
            is_cached = tree.block(node) == block;
        }
        if !is_cached {
            self.release(block);
        }
    }

    /// Frees the twins of a table's blocks that no other sequence refers to: the table's own blocks replace them in the
    /// cache.
    fn free_twins(&mut self, table: &mut BlockTable) {
        let Some(tree) = &mut self.tree else { return };
        if table.num_twins == 0 {
            return;
        }
        let (mut freed, mut num_twins) = (Vec::new(), 0);
        for (node, block) in table.path.iter().zip(&table.blocks).skip(table.num_dead as usize) {
            match (tree.block(*node) == *block, tree.num_references(*node)) {
                (true, _) => {}
                (false, 1) => freed.push(tree.replace_block(*node, *block, self.step)),
                (false, _) => num_twins += 1,
            }
        }
        table.num_twins = num_twins;
        self.num_returns += 1;
        freed.into_iter().for_each(|block| self.release(block));
    }

    fn take(&mut self) -> Option<BlockId> {
        let Some(block) = self.free.pop() else {
            return self.tree.as_mut()?.evict();
        };
        self.is_free[block.0 as usize] = false;
        Some(block)
    }

    /// Frees a block. Panics if it is free already, before two sequences could share it: that is a defect.
    fn release(&mut self, block: BlockId) {
        let was_free = std::mem::replace(&mut self.is_free[block.0 as usize], true);
        assert!(!was_free, "block {} released twice", block.0);
        self.free.push(block);
    }
}

/// The parent of the next block of a path.
fn parent(scope: PrefixScope, path: &[NodeId]) -> Parent {
    path.last().map_or(Parent::Root(scope), |node| Parent::Node(*node))
}

fn count(len: usize) -> u32 {
    // There are fewer than 2^32 blocks.
    len as u32
}
