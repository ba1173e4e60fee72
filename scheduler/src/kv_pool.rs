//! The blocks of the KV cache. Each block is free, owned by one sequence, or in the prefix cache with a reference
//! count.
//!
//! Entry points: [`KvPool::lookup`] and [`KvPool::open`] for a sequence that is admitted, [`KvPool::grow`] while it
//! runs, [`KvPool::cache`] when some of its blocks are full, [`KvPool::drop_first`] when its window has moved past some
//! blocks, [`KvPool::close`] when it leaves its slot. A sequence that needs a block gets a free block or, if none is
//! free, an idle block of the prefix cache.
//!
//! ```text
//! free ──open, grow──▶ owned ──cache──▶ cached, referred to ◀──open─── cached, idle ──evicted──▶ owned by another
//!   ▲────────close───────┘                        └──────────close─────────▲
//! ```
//!
//! A forgotten block ([`KvPool::forget`]) passes through the same states, but no lookup finds it.

use crate::PrefixScope;
use crate::block_events::BlockEvent;
use crate::prefix_tree::{BlockId, NodeId, Parent, PrefixTree};
use crate::tokens::Tokens;

/// All blocks of the KV cache.
#[derive(Debug)]
pub(crate) struct KvPool {
    block_size: u32,
    free: Vec<BlockId>,
    is_free: Vec<bool>,
    /// `None` if prefixes are not cached.
    tree: Option<PrefixTree>,
    /// The number of the current step. A row cannot read blocks that another row computes in the same step, so every
    /// cached block has the number of the step that computes it.
    step: u64,
    num_returns: u64,
}

/// The blocks of one sequence, and their nodes in the prefix cache.
#[derive(Debug)]
pub(crate) struct BlockTable {
    /// The blocks, in order of position.
    blocks: Vec<BlockId>,
    /// The nodes of the sequence's tokens in the prefix cache, from the first block on. If the cache already had a node
    /// for the same tokens, that node holds another sequence's block instead of this sequence's own. The two blocks are
    /// twins.
    path: Vec<NodeId>,
    /// The number of blocks at the start of the table that the sequence does not hold, because they are before its
    /// window. They stay in the table, but may belong to another sequence, and their nodes may have been evicted.
    num_dead: u32,
    scope: PrefixScope,
    /// The number of the sequence's own blocks that have a twin.
    num_twins: u32,
}

/// The part of a prompt that is in the prefix cache.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    scope: PrefixScope,
    pub(crate) nodes: Vec<NodeId>,
    /// The number of nodes at the start of `nodes` that no token after the prefix reads.
    pub(crate) num_dead: u32,
    /// True if the block after the prefix is computed in the current step, so that it can be read only from the next
    /// step on.
    pub(crate) is_being_read: bool,
}

impl Prefix {
    /// Returns an empty prefix in this scope.
    pub(crate) fn nothing(scope: PrefixScope) -> Self {
        Self { scope, nodes: Vec::new(), num_dead: 0, is_being_read: false }
    }

    /// Returns the nodes that tokens after the prefix read.
    fn live_nodes(&self) -> &[NodeId] {
        &self.nodes[self.num_dead as usize..]
    }
}

impl BlockTable {
    /// Returns the blocks in order of position.
    pub(crate) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }
}

impl KvPool {
    /// Creates a pool of the blocks `0..num_blocks`, all free.
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

    /// Records changes of the prefix cache from now on. The cache must be empty.
    pub(crate) fn record_events(&mut self) {
        self.tree.iter_mut().for_each(PrefixTree::record_events);
    }

    /// Returns the recorded changes of the prefix cache since the last call, in order.
    pub(crate) fn take_events(&mut self) -> Vec<BlockEvent> {
        self.tree.as_mut().map_or(Vec::new(), PrefixTree::take_events)
    }

    /// Begins the next step: from here on, blocks that earlier steps compute can be read.
    pub(crate) fn begin_step(&mut self) {
        self.step += 1;
    }

    /// Returns the longest prefix of the first `num_tokens` tokens, in whole blocks, that the cache has in this scope
    /// and that earlier steps compute.
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

    /// Returns a number that grows whenever blocks may have become available.
    pub(crate) fn num_returns(&self) -> u64 {
        self.num_returns
    }

    /// Returns the number of available blocks: free blocks, and idle blocks of the prefix cache.
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

    /// The number of blocks that stay available if a sequence takes the live nodes of `prefix`.
    pub(crate) fn num_available_beside(&self, prefix: &Prefix) -> u32 {
        let Some(tree) = &self.tree else { return self.num_available() };
        self.num_available() - count(prefix.live_nodes().iter().filter(|node| tree.num_references(**node) == 0).count())
    }

    /// Opens the table of a sequence: the blocks of `prefix`, then `num_new` new blocks. Returns `None` and changes
    /// nothing if not enough blocks are available.
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

    /// Adds a block to a table and returns it. Returns `None` if no block is available. That cannot happen if no other
    /// sequence has blocks and the cache is large enough for this sequence.
    pub(crate) fn grow(&mut self, table: &mut BlockTable) -> Option<BlockId> {
        if self.num_available() == 0 {
            self.free_twins(table);
        }
        let block = self.take()?;
        table.blocks.push(block);
        Some(block)
    }

    /// Puts the full blocks of the first `num_tokens` tokens of a table into the prefix cache. The steps scheduled so
    /// far write the keys and values of these tokens.
    pub(crate) fn cache(&mut self, table: &mut BlockTable, tokens: &Tokens, num_tokens: u32) {
        let Some(tree) = &mut self.tree else { return };
        let (num_cached, num_full) = (count(table.path.len()), num_tokens / self.block_size);
        // A block that the sequence gave up before its tokens were known leaves a gap. No lookup would find a block
        // after a gap or after an evicted node.
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

    /// Hides the blocks of a table, and all nodes after them, in the prefix cache, so that no lookup finds them.
    /// Sequences that refer to the blocks keep them.
    pub(crate) fn forget(&mut self, table: &BlockTable) {
        if let Some(tree) = &mut self.tree {
            table.path.iter().for_each(|node| tree.forget(*node));
        }
    }

    /// True if any cached block of a table was forgotten.
    pub(crate) fn is_forgotten(&self, table: &BlockTable) -> bool {
        let Some(tree) = &self.tree else { return false };
        table.path.iter().any(|node| tree.is_forgotten(*node))
    }

    /// Gives up those of the first `num_dead` blocks of a table that the sequence still holds. The steps scheduled from
    /// here on must not read them. Blocks in the prefix cache stay there until they are evicted.
    pub(crate) fn drop_first(&mut self, table: &mut BlockTable, num_dead: u32) {
        if num_dead > table.num_dead {
            for index in table.num_dead as usize..num_dead as usize {
                self.give_back(table.blocks[index], table.path.get(index).copied());
            }
            table.num_dead = num_dead;
            self.num_returns += 1;
        }
    }

    /// Ends a table. Its blocks that are not in the prefix cache become free; the others lose a reference.
    pub(crate) fn close(&mut self, table: BlockTable) {
        let BlockTable { blocks, path, num_dead, scope: _, num_twins: _ } = table;
        self.num_returns += 1;
        for (index, block) in blocks.into_iter().enumerate().skip(num_dead as usize).rev() {
            self.give_back(block, path.get(index).copied());
        }
    }

    /// Takes a block back from a table. `node` is the node at the block's index, if the block's tokens are in the
    /// prefix cache.
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

    /// Frees those twins of a table's blocks to which no other sequence refers: the table's own blocks replace them in
    /// the prefix cache.
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

    /// Frees a block. Panics if the block is already free: otherwise this defect would give the block to two sequences.
    fn release(&mut self, block: BlockId) {
        let was_free = std::mem::replace(&mut self.is_free[block.0 as usize], true);
        assert!(!was_free, "block {} released twice", block.0);
        self.free.push(block);
    }
}

/// Returns the parent of the block that follows a path.
fn parent(scope: PrefixScope, path: &[NodeId]) -> Parent {
    path.last().map_or(Parent::Root(scope), |node| Parent::Node(*node))
}

fn count(len: usize) -> u32 {
    // There are fewer than 2^32 blocks.
    len as u32
}

#[cfg(test)]
impl KvPool {
    /// The prefix cache, if prefixes are cached.
    pub(crate) fn tree(&self) -> Option<&PrefixTree> {
        self.tree.as_ref()
    }
}
