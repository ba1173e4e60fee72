//! One row's sampler on the CPU, by vocabulary and by what the row asks for.
//!
//! A row that asks for nothing pays for the softmax of its log-probability only.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use proto::SamplingParams;
use shard::bench::SamplerRun;

fn main() {
    let mut criterion = Criterion::default().measurement_time(Duration::from_secs(3)).configure_from_args();
    let greedy = SamplingParams::greedy();
    let drawn = SamplingParams { is_greedy: false, temperature: 0.8, seed: 5, ..greedy.clone() };
    let top_p = SamplingParams { top_p: 0.95, ..drawn.clone() };
    let everything = SamplingParams {
        top_k: 50,
        min_p: 0.01,
        typical_p: 0.95,
        repetition_penalty: 1.1,
        frequency_penalty: 0.2,
        presence_penalty: 0.2,
        top_n_tokens: 5,
        ..top_p.clone()
    };
    let mut group = criterion.benchmark_group("sampler");
    for (name, params) in [("greedy", greedy), ("drawn", drawn), ("top_p", top_p), ("everything", everything)] {
        for vocab_size in [32_000, 128_000] {
            let run = SamplerRun::new(logits(vocab_size), params.clone());
            group.bench_function(BenchmarkId::new(name, vocab_size), |bencher| {
                bencher.iter(|| black_box(&run).token_id())
            });
        }
    }
    group.finish();
    criterion.final_summary();
}

/// Scores like a model's: most far below a few.
fn logits(vocab_size: usize) -> Vec<f32> {
    let uniform = |i: usize| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 24) as f32;
    (0..vocab_size).map(|i| -2.0 * (uniform(i) + 1e-6).ln() * uniform(i + 1)).collect()
}
