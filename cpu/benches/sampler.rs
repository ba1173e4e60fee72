//! Benchmark of one row's sampler on the CPU, by vocabulary and sampling parameters.
//!
//! A greedy row without options computes only the best token and the softmax for its log-probability. Each run includes
//! a copy of the logits.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use backend::{Batch, RowSampler, StateLayout};
use cpu::oracle::{Array, Elements, Oracle};
use criterion::{BenchmarkId, Criterion};
use model::sampling::Samplers;
use proto::SamplingParams;

/// The number of tokens in the context of the row; half of them count as generated.
const CONTEXT_TOKENS: usize = 512;

fn main() {
    let mut criterion = Criterion::default().measurement_time(Duration::from_secs(3)).configure_from_args();
    let greedy = SamplingParams::greedy();
    let drawn = SamplingParams { is_greedy: false, temperature: 0.8, seed: 5, ..greedy.clone() };
    let top_p = SamplingParams { top_p: 0.95, ..drawn.clone() };
    let everything = SamplingParams { top_n_tokens: 5, ..SamplingParams::every_processor() };
    let mut group = criterion.benchmark_group("sampler");
    for (name, params) in [("greedy", greedy), ("drawn", drawn), ("top_p", top_p), ("everything", everything)] {
        for vocab_size in [32_000, 128_000] {
            let row = SampledRow::new(logits(vocab_size), params.clone());
            group.bench_function(BenchmarkId::new(name, vocab_size), |bencher| {
                bencher.iter(|| black_box(&row).sample())
            });
        }
    }
    group.finish();
    criterion.final_summary();
}

/// A row that samples the same token each time.
struct SampledRow {
    sampler: Oracle,
    batch: Batch,
    /// `[1, vocab]`
    logits: Array,
}

impl SampledRow {
    fn new(logits: Vec<f32>, params: SamplingParams) -> Self {
        let vocab_size = logits.len();
        let graph = Samplers::new(vocab_size).graph(&params).expect("samplers fit any vocabulary");
        let layout = StateLayout {
            num_slots: 1,
            num_blocks: 1,
            max_total_tokens: CONTEXT_TOKENS + 1,
            max_batch_prefill_tokens: CONTEXT_TOKENS,
        };
        let sampler = Oracle::new(&graph, None, layout);
        let context: Vec<i32> = (0..CONTEXT_TOKENS).map(|i| (i * 7 % vocab_size) as i32).collect();
        let mut batch = Batch::default();
        let row = batch.push_row(0, 0, &context, &[0]);
        let row_sampler = RowSampler { params: Arc::new(params), graph, eos_token_ids: Arc::new([2]) };
        batch.push_sampled(row, CONTEXT_TOKENS / 2, &row_sampler);
        sampler.set_history(&[context, vec![0]].concat());
        Self { sampler, batch, logits: Array { dims: vec![1, vocab_size], elements: Elements::F32(logits) } }
    }

    fn sample(&self) -> Vec<Vec<Array>> {
        self.sampler.run_rows(&self.batch, std::slice::from_ref(&self.logits))
    }
}

/// Returns scores like those of a model: a few are far above the rest.
fn logits(vocab_size: usize) -> Vec<f32> {
    let uniform = |i: usize| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 24) as f32;
    (0..vocab_size).map(|i| -2.0 * (uniform(i) + 1e-6).ln() * uniform(i + 1)).collect()
}
