//! The blocks of the KV cache: free, owned by one sequence, or in the prefix cache with a count of references.
//!
//! Doors: [`KvPool::lookup`] and [`KvPool::open`] for a sequence that is admitted, [`KvPool::grow`] while it runs,
//! [`KvPool::cache`] when blocks of it are full, [`KvPool::drop_first`] when its windows have passed some,
//! [`KvPool::close`] at its end. A block that is needed is a free one, else one of the prefix cache.
//!
//! ```text
//! free ──open, grow──▶ owned ──cache──▶ cached, referred to ◀──open──▶ cached, idle ──evicted──▶ owned by another
//!   ▲────────close───────┘                        └──────────close─────────▲
//! ```
//!
//! A block that is forgotten ([`KvPool::forget`]) goes the same way, but no sequence finds it.

use crate::PrefixScope;
use crate::prefix_tree::{BlockId, NodeId, Parent, PrefixTree};
use crate::tokens::Tokens;

/// All blocks.
#[derive(Debug)]
pub(crate) struct KvPool {
    block_size: u32,
    free: Vec<BlockId>,
    is_free: Vec<bool>,
    /// `None` where prompts are never shared.
    tree: Option<PrefixTree>,
    /// Counts steps: what is computed in this one cannot be read by other rows of it.
    step: u64,
    num_returns: u64,
}

/// The blocks of one sequence.
#[derive(Debug)]
pub(crate) struct BlockTable {
    /// In order of position.
    blocks: Vec<BlockId>,
    /// The sequence's tokens in the prefix cache, from the first block on. Where another sequence has computed the same
    /// tokens at the same time, a node has another block than this one: a twin of it.
    path: Vec<NodeId>,
    /// Blocks, the first of all, that were given back. They keep their places, but may be anybody's, and their nodes
    /// may have been evicted.
    num_dead: u32,
    scope: PrefixScope,
    num_twins: u32,
}

/// The part of a prompt that the prefix cache has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    scope: PrefixScope,
    pub(crate) nodes: Vec<NodeId>,
    /// Nodes, the first of all, that nobody who begins behind the prefix reads.
    pub(crate) num_dead: u32,
    /// The next block is being computed in this very step.
    pub(crate) is_being_read: bool,
}

impl Prefix {
    /// Nothing of a sequence of this scope.
    pub(crate) fn nothing(scope: PrefixScope) -> Self {
        Self { scope, nodes: Vec::new(), num_dead: 0, is_being_read: false }
    }

    /// Nodes that are read.
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

    /// From here on it is another step.
    pub(crate) fn begin_step(&mut self) {
        self.step += 1;
    }

    /// The longest prefix in whole blocks of the first `num_tokens` tokens that the cache has in this scope.
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

    /// Times that blocks were given back so far. Until the next time, no more of them can be had.
    pub(crate) fn num_returns(&self) -> u64 {
        self.num_returns
    }

    /// Blocks that could be had: free ones, and those of the cache that nobody refers to.
    pub(crate) fn num_available(&self) -> u32 {
        count(self.free.len()) + self.num_idle()
    }

    /// Blocks of the prefix cache that nobody refers to.
    pub(crate) fn num_idle(&self) -> u32 {
        self.tree.as_ref().map_or(0, PrefixTree::num_idle)
    }

    /// Blocks that sequences own or refer to.
    pub(crate) fn num_used(&self) -> u32 {
        count(self.is_free.len()) - self.num_available()
    }

    /// Blocks that could be had beside those of `prefix`.
    pub(crate) fn num_available_beside(&self, prefix: &Prefix) -> u32 {
        let Some(tree) = &self.tree else { return self.num_available() };
        self.num_available() - count(prefix.live_nodes().iter().filter(|node| tree.num_references(**node) == 0).count())
    }

    /// The table of a sequence: `prefix`, then `num_new` blocks of its own. `None`, and no change, when there are not
    /// enough.
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

    /// Adds a block to a table. `None` when there is none left: never where no other sequence has blocks, and all that
    /// this one needs fit in the cache.
    pub(crate) fn grow(&mut self, table: &mut BlockTable) -> Option<BlockId> {
        if self.num_available() == 0 {
            self.free_twins(table);
        }
        let block = self.take()?;
        table.blocks.push(block);
        Some(block)
    }

    /// Puts the full blocks of a table into the prefix cache. Keys and values of the first `num_tokens` of its tokens
    /// are written by the steps scheduled so far.
    pub(crate) fn cache(&mut self, table: &mut BlockTable, tokens: &Tokens, num_tokens: u32) {
        let Some(tree) = &mut self.tree else { return };
        let (num_cached, num_full) = (count(table.path.len()), num_tokens / self.block_size);
        // A block that was given back before its tokens were known leaves a gap. Behind a gap, or a node that was
        // evicted, nobody would find the next one.
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

    /// Takes the blocks of a table, and all that follows them, out of the prefix cache: nobody finds them any more.
    /// Those who refer to them keep them.
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

    /// Gives back the first `num_dead` blocks of a table, as far as they have not been: the steps scheduled from here
    /// on do not read them. Those in the prefix cache stay there until they are needed.
    pub(crate) fn drop_first(&mut self, table: &mut BlockTable, num_dead: u32) {
        if num_dead > table.num_dead {
            for index in table.num_dead as usize..num_dead as usize {
                self.give_back(table.blocks[index], table.path.get(index).copied());
            }
            table.num_dead = num_dead;
            self.num_returns += 1;
        }
    }

    /// Ends a table. What is not in the prefix cache is free again.
    pub(crate) fn close(&mut self, table: BlockTable) {
        let BlockTable { blocks, path, num_dead, scope: _, num_twins: _ } = table;
        self.num_returns += 1;
        for (index, block) in blocks.into_iter().enumerate().skip(num_dead as usize).rev() {
            self.give_back(block, path.get(index).copied());
        }
    }

    /// Takes a block of a table back, which is in the place of `node` if its tokens are in the prefix cache.
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

    /// Gives back the twins of a table's blocks that nobody else refers to: its own block takes their place in the
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

    /// Giving a block back twice is a defect and panics, before two sequences share it.
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
