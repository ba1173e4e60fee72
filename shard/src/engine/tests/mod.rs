//! Tests of the engine on tiny checkpoints, on the demo model and on the mock.
//!
//! Entry point: [`Rig`], a warm engine with the lengths and block tables that the router keeps. `xla` compares XLA-CPU
//! with the CPU backend.

mod candle;
mod configs;
mod corrupted;
mod failures;
mod families;
mod gguf;
mod independence;
mod kv_cache;
mod limits;
mod quantized;
mod ranks;
mod references;
mod slots;
mod steps;
mod unknown;
mod windows;
mod xla;

use std::path::PathBuf;

use backend::BLOCK_SIZE;
use devices::plugins::testing::plugin_path;
use devices::{Asked, DecodeAttention, Device};
use proto::{
    GivenTokens, Logprobs, Opening, Release, Row, Sample, SampledToken, SamplingParams, Step, StepReply, Warmup,
};

use super::load;
use crate::args::{KvCacheDtype, ModelArgs, ShardArgs};
use ranks::Engines;

pub(crate) const FIXTURES: [&str; 5] =
    ["tiny-llama-gqa-untied", "tiny-llama-tied", "tiny-llama3-rope", "tiny-llama-bf16", "tiny-llama-f16"];

/// The maximum number of tokens of a row in these tests.
const MAX_TOTAL_TOKENS: u32 = 128;
const NUM_SLOTS: u32 = 8;

/// Returns `rounded` for bf16 weights if the processor's kernels multiply bf16 with activations rounded to bf16, else
/// `exact`.
pub(super) fn tolerance(is_bf16: bool, exact: f64, rounded: f64) -> f64 {
    if is_bf16 && kernels::isa::active().rounds_to_bf16() { rounded } else { exact }
}

/// Returns a folder of `integration-tests/fixtures`; a checkpoint with its weights.
pub(crate) fn fixture(name: &str) -> PathBuf {
    checkpoints::folder(name)
}

/// The folder below the target directory where tests share compiled programs.
fn shared_programs() -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    executable.ancestors().nth(3).expect("tests lie in target/<profile>/deps").join("test-programs")
}

pub(crate) fn args(model_id: &str, device: Device) -> ShardArgs {
    ShardArgs {
        model: ModelArgs {
            model_id: model_id.to_owned(),
            revision: None,
            dtype: None,
            quantize: None,
            kv_cache_dtype: KvCacheDtype::Auto,
            device: Asked::Device(device),
            plugin_path: None,
            program_cache: Some(shared_programs()),
            threads: None,
            cpu_isa: None,
            attention: DecodeAttention::Loop,
            mock_step_us: None,
        },
        uds_path: endpoint::Endpoint::Unix(PathBuf::new()),
        shard: 0,
        num_shards: 1,
        devices_per_shard: 1,
        shards_on_host: None,
        collective_path: None,
        peer_sockets: None,
        json_output: false,
        log_level: "info".to_owned(),
    }
}

/// A warm engine, with the lengths and block tables that the router keeps.
pub(super) struct Rig {
    pub(super) engine: Engines,
    /// The number of tokens in the KV cache, by slot.
    lens: Vec<usize>,
    /// The block tables, by slot.
    tables: Vec<Vec<u32>>,
}

impl Rig {
    pub(super) fn new(model_id: &str, device: Device) -> Self {
        Self::warm(Engines::load(&[args(model_id, device)]).unwrap())
    }

    pub(super) fn warm(engine: Engines) -> Self {
        Self::warm_for(engine, NUM_SLOTS)
    }

    /// Warms up with `num_slots` slots. Fewer slots need fewer compiled programs.
    pub(super) fn warm_for(mut engine: Engines, num_slots: u32) -> Self {
        let warmup = Warmup {
            max_total_tokens: Some(MAX_TOTAL_TOKENS),
            max_batch_prefill_tokens: Some(MAX_TOTAL_TOKENS),
            max_batch_total_tokens: Some(MAX_TOTAL_TOKENS * NUM_SLOTS),
            max_batch_size: Some(num_slots),
            ..Warmup::default()
        };
        engine.warmup(&warmup).unwrap();
        Self { engine, lens: vec![0; num_slots as usize], tables: vec![Vec::new(); num_slots as usize] }
    }

    pub(crate) fn fixture(name: &str) -> Self {
        Self::new(fixture(name).to_str().unwrap(), Device::CPU)
    }

    /// Returns a rig on the CPU with keys and values of type `kv_cache_dtype`.
    pub(super) fn fixture_with(name: &str, kv_cache_dtype: KvCacheDtype) -> Self {
        let mut args = args(fixture(name).to_str().unwrap(), Device::CPU);
        args.model.kv_cache_dtype = kv_cache_dtype;
        Self::warm(Engines::load(&[args]).unwrap())
    }

    /// Returns a rig on XLA-CPU. If there is no plugin, prints that and returns `None`.
    pub(super) fn xla_fixture(name: &str) -> Option<Self> {
        Self::xla_fixture_for(name, NUM_SLOTS)
    }

    /// As [`Self::xla_fixture`], with `num_slots` slots. Fewer slots need fewer compiled programs.
    pub(super) fn xla_fixture_for(name: &str, num_slots: u32) -> Option<Self> {
        plugin_path(Device::XLA_CPU)?;
        let args = args(fixture(name).to_str().unwrap(), Device::XLA_CPU);
        Some(Self::warm_for(Engines::load(&[args]).unwrap(), num_slots))
    }

    pub(super) fn mock() -> Self {
        Self::new("demo", Device::MOCK)
    }

    /// Returns the first chunk of a prompt if `params` are given, else a later chunk.
    pub(super) fn chunk(&mut self, slot: u32, ids: &[u32], params: Option<SamplingParams>, is_last: bool) -> Row {
        let position = self.lens[slot as usize];
        let new_blocks = self.grow(slot, ids.len());
        Row {
            slot,
            position: position as u32,
            token_ids: ids.to_vec(),
            new_blocks,
            opening: params.map(|sampling| Box::new(Opening { sampling: Some(sampling), ..Opening::default() })),
            token: is_last.then(Sample::default),
            logprobs: None,
        }
    }

    /// Returns a row that opens `slot` with `ids`: it shares the full blocks of slot `from`, which has read the same
    /// tokens, reads the other tokens and samples. The last `num_generated` tokens of `ids` count as generated, not as
    /// prompt.
    pub(super) fn chunk_after_prefix(
        &mut self,
        (from, slot): (u32, u32),
        ids: &[u32],
        params: SamplingParams,
        num_generated: u32,
    ) -> Row {
        let num_shared = self.lens[from as usize].min(ids.len() - 1) / BLOCK_SIZE;
        let (cached, read) = ids.split_at(num_shared * BLOCK_SIZE);
        let mut new_blocks = self.tables[from as usize][..num_shared].to_vec();
        self.lens[slot as usize] = cached.len();
        self.tables[slot as usize].clone_from(&new_blocks);
        new_blocks.extend(self.grow(slot, read.len()));
        let opening =
            Opening { sampling: Some(params), cached_token_ids: cached.to_vec(), num_generated_tokens: num_generated };
        Row {
            slot,
            position: cached.len() as u32,
            token_ids: read.to_vec(),
            new_blocks,
            opening: Some(Box::new(opening)),
            token: Some(Sample::default()),
            logprobs: None,
        }
    }

    /// Returns the row that reads the token sampled in `slot` and samples the next.
    pub(super) fn row(&mut self, slot: u32) -> Row {
        let position = self.lens[slot as usize] as u32;
        let new_blocks = self.grow(slot, 1);
        Row { slot, position, new_blocks, token: Some(Sample::default()), ..Row::default() }
    }

    pub(super) fn step(&mut self, rows: Vec<Row>) -> StepReply {
        self.engine.step(&Step { rows }).unwrap()
    }

    pub(super) fn release(&mut self, slot: u32) {
        self.engine.release(&Release { slots: vec![slot] }).unwrap();
        self.lens[slot as usize] = 0;
        self.tables[slot as usize].clear();
    }

    /// Reads a prompt in one step and returns the first token.
    pub(super) fn start(&mut self, slot: u32, prompt: &[u32], params: SamplingParams) -> SampledToken {
        let chunk = self.chunk(slot, prompt, Some(params), true);
        tokens(&self.step(vec![chunk])).remove(0)
    }

    pub(super) fn next(&mut self, slot: u32) -> SampledToken {
        let row = self.row(slot);
        tokens(&self.step(vec![row])).remove(0)
    }

    /// Returns `num_tokens` tokens of a row that runs alone.
    pub(super) fn generate(
        &mut self,
        slot: u32,
        prompt: &[u32],
        params: SamplingParams,
        num_tokens: usize,
    ) -> Vec<SampledToken> {
        let mut tokens = vec![self.start(slot, prompt, params)];
        tokens.extend((1..num_tokens).map(|_| self.next(slot)));
        self.release(slot);
        tokens
    }

    /// Adds blocks for `num_tokens` more tokens to a slot's table, and returns them. The blocks of a slot are in
    /// descending order and not adjacent, so that a wrong table changes the tokens.
    fn grow(&mut self, slot: u32, num_tokens: usize) -> Vec<u32> {
        let len = &mut self.lens[slot as usize];
        let blocks = |len: usize| len.div_ceil(BLOCK_SIZE) as u32;
        let (before, after) = (blocks(*len), blocks(*len + num_tokens));
        *len += num_tokens;
        let blocks_per_slot = MAX_TOTAL_TOKENS / BLOCK_SIZE as u32;
        let new = (before..after).map(|block| (blocks_per_slot - 1 - block) * NUM_SLOTS + slot);
        let new: Vec<u32> = new.collect();
        self.tables[slot as usize].extend(&new);
        new
    }
}

/// Returns the tokens that a step sampled, in the order of its rows.
pub(super) fn tokens(reply: &StepReply) -> Vec<SampledToken> {
    reply.rows.iter().filter_map(|row| row.token.clone()).collect()
}

/// Returns `row` with a mask.
pub(super) fn masked(row: Row, allowed_tokens: Option<Vec<u8>>) -> Row {
    Row { token: Some(Sample { allowed_tokens }), ..row }
}

/// Returns `row` with a request for the log-probabilities of its tokens and of `next_token_id`, the token after them,
/// each with the `top_n_tokens` best tokens.
pub(super) fn reporting(row: Row, top_n_tokens: u32, next_token_id: Option<u32>) -> Row {
    Row { logprobs: Some(Logprobs { next_token_id, top_n_tokens }), ..row }
}

/// Returns the prompt log-probabilities of the row at `index` in a reply.
pub(super) fn report(reply: &StepReply, index: usize) -> &GivenTokens {
    reply.rows[index].logprobs.as_ref().unwrap()
}

pub(super) fn ids(tokens: &[SampledToken]) -> Vec<u32> {
    tokens.iter().map(|token| token.token_id).collect()
}
