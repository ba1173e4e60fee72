//! Benchmarks of one step of the scheduler, and of the admission of a prompt that is in the prefix cache. Both call
//! only the scheduler's public methods.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::Criterion;
use proto::{RowReply, SampledToken, SamplingParams, StepReply};
use scheduler::{Limits, Pace, PrefixScope, Prompt, PromptWants, Scheduler, SequenceSpec, Step, Tenant};

const BLOCK_SIZE_TOKENS: u32 = 16;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    for num_rows in [32, 256] {
        // With 4096 tokens hardly any sequence ends. With 50, about five of 256 rows end and five are admitted in each
        // step.
        for (name, max_new_tokens) in [("decode", 4096), ("decode and admit", 50)] {
            let mut rows = Rows::new(num_rows, 64, max_new_tokens);
            criterion.bench_function(&format!("step of {num_rows} rows, {name}"), |bencher| {
                bencher.iter_custom(|num_steps| (0..num_steps).map(|_| rows.step()).sum::<Duration>());
            });
        }
    }
    let mut cached = CachedPrompt::new(65_536, 4096);
    assert_eq!(cached.visit(), 4096);
    criterion.bench_function("prefix lookup of 4096 tokens", |bencher| bencher.iter(|| black_box(&mut cached).visit()));
    criterion.final_summary();
}

/// A scheduler with one running sequence in every row, and the shape of the sequences that replace finished ones.
struct Rows {
    scheduler: Scheduler,
    prompt_len: u32,
    max_new_tokens: u32,
    next_token_id: u32,
}

impl Rows {
    /// Returns a scheduler with `num_rows` sequences that have read prompts of `prompt_len` tokens. Each generates
    /// `max_new_tokens` tokens; then a new sequence replaces it.
    fn new(num_rows: u32, prompt_len: u32, max_new_tokens: u32) -> Self {
        let blocks_per_row = (prompt_len + max_new_tokens).div_ceil(BLOCK_SIZE_TOKENS) + 1;
        // The KV cache has room for twice as many sequences, so blocks of finished ones stay in the prefix cache until
        // new blocks evict them.
        let scheduler = Scheduler::new(limits(num_rows, num_rows * prompt_len, 2 * num_rows * blocks_per_row));
        let mut rows = Self { scheduler, prompt_len, max_new_tokens, next_token_id: 1 };
        // One sequence is submitted per step, so that the sequences do not all end in the same step.
        for _ in 0..num_rows {
            rows.submit();
            rows.step();
        }
        rows
    }

    fn submit(&mut self) {
        self.next_token_id += self.prompt_len;
        let prompt: Arc<[u32]> = (self.next_token_id..self.next_token_id + self.prompt_len).collect();
        self.scheduler.submit(spec(prompt, self.max_new_tokens), Instant::now()).expect("there is room for it");
    }

    /// Runs one step from schedule to events. Returns the time that the scheduler took. The time to build the shard's
    /// reply is not included.
    fn step(&mut self) -> Duration {
        let start = Instant::now();
        let step = self.scheduler.schedule(start, &Pace::default()).expect("there is work");
        let scheduled = start.elapsed();
        let reply = reply(&step);
        let start = Instant::now();
        let events = self.scheduler.apply(reply).expect("the reply fits the step");
        let applied = start.elapsed();
        let num_ended = events.iter().filter(|event| event.kind.is_terminal()).count();
        (0..num_ended).for_each(|_| self.submit());
        scheduled + applied
    }
}

/// A prefix cache with one long prompt in it.
struct CachedPrompt {
    scheduler: Scheduler,
    /// The cached tokens, then one more token, which is always read.
    prompt: Arc<[u32]>,
}

impl CachedPrompt {
    /// Returns a cache of `num_blocks` blocks that contains `num_cached` tokens of the prompt. Other prompts fill half
    /// of the remaining blocks.
    fn new(num_blocks: u32, num_cached: u32) -> Self {
        let mut scheduler = Scheduler::new(limits(1, num_cached + 1, num_blocks));
        let prompt: Arc<[u32]> = (0..=num_cached).collect();
        let num_others = (num_blocks - num_cached / BLOCK_SIZE_TOKENS) / 2 / 4;
        let other_len = 4 * BLOCK_SIZE_TOKENS;
        let first_ids = (1..=num_others).map(|other| num_cached + other * other_len);
        let others = first_ids.map(|first_id| (first_id..first_id + other_len).collect());
        for prompt in others.chain([Arc::clone(&prompt)]) {
            scheduler.submit(spec(prompt, 1), Instant::now()).expect("there is room for it");
            let step = scheduler.schedule(Instant::now(), &Pace::default()).expect("there is work");
            scheduler.apply(reply(&step)).expect("the reply fits the step");
        }
        Self { scheduler, prompt }
    }

    /// Submits the prompt, schedules it and cancels it. Returns the number of the prompt's tokens that are in the
    /// cache.
    fn visit(&mut self) -> usize {
        let now = Instant::now();
        let id = self.scheduler.submit(spec(Arc::clone(&self.prompt), 1), now).expect("there is room for it");
        let step = self.scheduler.schedule(now, &Pace::default()).expect("there is work");
        self.scheduler.cancel(id);
        self.scheduler.apply(reply(&step)).expect("the reply fits the step");
        step.rows.iter().filter_map(|row| Some(row.opening.as_ref()?.cached_token_ids.len())).sum()
    }
}

fn limits(max_batch_size: u32, max_batch_prefill_tokens: u32, num_blocks: u32) -> Limits {
    Limits {
        max_batch_size,
        max_batch_prefill_tokens,
        num_blocks,
        block_size_tokens: BLOCK_SIZE_TOKENS,
        eos_token_ids: vec![0],
        window: None,
        caches_prefixes: true,
        max_step_bytes: proto::MAX_STEP_BYTES,
    }
}

fn spec(token_ids: Arc<[u32]>, max_new_tokens: u32) -> SequenceSpec {
    SequenceSpec {
        prompt: Prompt { token_ids, scope: PrefixScope::SHARED },
        sampling: SamplingParams::greedy(),
        wants: PromptWants::default(),
        max_new_tokens,
        ignores_eos: true,
        deadline: None,
        is_masked: false,
        tenant: Tenant::default(),
    }
}

/// Returns a reply with a token for every row that asks for one.
fn reply(step: &Step) -> StepReply {
    let sampled = step.rows.iter().filter(|row| row.token.is_some()).map(|row| row.slot);
    let token = |slot| Some(SampledToken { token_id: 7 + slot, ..SampledToken::default() });
    let rows = sampled.map(|slot| RowReply { slot, token: token(slot), ..RowReply::default() }).collect();
    StepReply { rows, ..StepReply::default() }
}
