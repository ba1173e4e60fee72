//! The scheduler as the benches see it: whole steps, and the parts that could be slow.
//!
//! Doors: [`SchedulerBench`], which does nothing that the batcher does not do, and [`KvPoolBench`]. Clocks are arguments here too.

use std::time::{Duration, Instant};

use proto::{SampledToken, SamplingParams, StepReply};

use crate::kv_pool::KvPool;
use crate::{CacheScope, Limits, Scheduler, SequenceSpec, Tenant};

const BLOCK_SIZE_TOKENS: u32 = 16;

/// A scheduler whose rows all make tokens.
#[derive(Debug)]
pub struct SchedulerBench {
    scheduler: Scheduler,
    prompt_len: u32,
    max_new_tokens: u32,
    next_token_id: u32,
    clock: fn() -> Instant,
}

impl SchedulerBench {
    /// `num_rows` sequences that have read prompts of `prompt_len` tokens. Each makes `max_new_tokens`; then another comes.
    pub fn new(num_rows: u32, prompt_len: u32, max_new_tokens: u32, clock: fn() -> Instant) -> Self {
        let blocks_per_row = (prompt_len + max_new_tokens).div_ceil(BLOCK_SIZE_TOKENS) + 1;
        let limits = Limits {
            max_batch_size: num_rows,
            max_batch_prefill_tokens: num_rows * prompt_len,
            // Room for twice as many, so that the prefix cache is full and something is evicted all the time.
            num_blocks: 2 * num_rows * blocks_per_row,
            block_size_tokens: BLOCK_SIZE_TOKENS,
            eos_token_ids: vec![0],
            caches_prefixes: true,
            max_step_bytes: proto::MAX_STEP_BYTES,
        };
        let mut bench = Self { scheduler: Scheduler::new(limits), prompt_len, max_new_tokens, next_token_id: 1, clock };
        // One after the other, so that they do not all end in the same step.
        for _ in 0..num_rows {
            bench.submit();
            bench.step();
        }
        bench
    }

    fn submit(&mut self) {
        let prompt_len = self.prompt_len;
        self.next_token_id += prompt_len;
        let spec = SequenceSpec {
            prompt: (self.next_token_id..self.next_token_id + prompt_len).collect(),
            sampling: SamplingParams::greedy(),
            max_new_tokens: self.max_new_tokens,
            ignores_eos: true,
            deadline: None,
            is_masked: false,
            tenant: Tenant::default(),
            cache_scope: CacheScope::default(),
        };
        self.scheduler.submit(spec, (self.clock)()).expect("there is room for it");
    }

    /// One step from schedule to events; how long the scheduler took, without the shard's answer.
    ///
    /// # Panics
    /// When there is no work left, or the answer is refused.
    pub fn step(&mut self) -> Duration {
        let start = (self.clock)();
        let step = self.scheduler.schedule(start).expect("there is work");
        let scheduled = (self.clock)() - start;
        let sampled = step.chunks.iter().filter(|chunk| chunk.samples_token).map(|chunk| chunk.slot);
        let slots: Vec<u32> = sampled.chain(step.rows.iter().map(|row| row.slot)).collect();
        let token = |slot| SampledToken { slot, token_id: 7 + slot, ..SampledToken::default() };
        let reply = StepReply { tokens: slots.into_iter().map(token).collect(), ..StepReply::default() };
        let start = (self.clock)();
        let events = self.scheduler.apply(reply).expect("the answer fits the step");
        let applied = (self.clock)() - start;
        let num_ended = events.iter().filter(|event| event.kind.is_terminal()).count();
        (0..num_ended).for_each(|_| self.submit());
        scheduled + applied
    }
}

/// The KV blocks with one long prompt in the prefix cache.
#[derive(Debug)]
pub struct KvPoolBench {
    pool: KvPool,
    prompt: Vec<u32>,
}

impl KvPoolBench {
    /// A cache of `num_blocks` blocks with a prompt of `prompt_len` tokens in it, and half of the rest filled with others.
    ///
    /// # Panics
    /// When that does not fit.
    pub fn new(num_blocks: u32, prompt_len: u32) -> Self {
        let mut pool = KvPool::new(num_blocks, BLOCK_SIZE_TOKENS, true);
        let prompt: Vec<u32> = (0..prompt_len).collect();
        let num_others = (num_blocks - prompt_len / BLOCK_SIZE_TOKENS) / 2 / 4;
        let others = (1..=num_others).map(|other| (0..4 * BLOCK_SIZE_TOKENS).map(|i| (1 << 20) * other + i).collect());
        for tokens in others.chain([prompt.clone()]) {
            let tokens: Vec<u32> = tokens;
            pool.begin_step();
            let num_new = tokens.len() as u32 / BLOCK_SIZE_TOKENS;
            let prefix = pool.lookup(CacheScope::default(), &tokens);
            let mut table = pool.open(prefix, num_new).expect("it fits");
            pool.cache(&mut table, &tokens);
            pool.close(table);
        }
        pool.begin_step();
        Self { pool, prompt }
    }

    /// Looks the whole prompt up, and answers how many of its blocks were found.
    pub fn lookup(&self) -> usize {
        self.pool.lookup(CacheScope::default(), &self.prompt).nodes.len()
    }

    /// Gives a sequence `num_blocks` blocks, and takes them back.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn open_and_close(&mut self, num_blocks: u32) {
        let table = self.pool.open(crate::kv_pool::Prefix::default(), num_blocks).expect("there are enough");
        self.pool.close(table);
    }
}
