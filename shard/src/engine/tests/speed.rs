//! How fast the demo model runs, without a socket or a router in between.
//!
//! It measures and proves nothing, so it is not part of the tests:
//! `cargo test --release -p shard speed -- --ignored --nocapture`.

use std::time::Instant;

use proto::{Decode, DecodeRow, Prefill, PromptChunk, SamplingParams, Warmup};

use super::{args, load};
use crate::args::Device;

const PROMPT_LEN: usize = 512;
const NUM_STEPS: usize = 100;

#[test]
#[ignore = "measures, proves nothing"]
fn speed_of_the_demo_model() {
    for num_rows in [1, 8, 32] {
        let mut engine = load(&args("demo", Device::Cpu), &mut |_, _, _| ()).unwrap();
        engine.warmup(&Warmup::default(), &mut |_, _, _| ()).unwrap();
        let vocab_size = engine.info().vocab_size;
        let start = Instant::now();
        for slot in 0..num_rows {
            let chunk = PromptChunk {
                slot,
                position: 0,
                token_ids: (0..PROMPT_LEN as u32).map(|i| (i * 7 + slot) % vocab_size).collect(),
                new_blocks: (0..64).map(|block| slot * 64 + block).collect(),
                sampling: Some(SamplingParams::greedy()),
                samples_token: true,
            };
            engine.prefill(&Prefill { chunks: vec![chunk], rows: vec![] }).unwrap();
        }
        let prefill = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for step in 0..NUM_STEPS {
            let position = (PROMPT_LEN + step) as u32;
            let rows = (0..num_rows).map(|slot| DecodeRow { slot, position, new_blocks: vec![] }).collect();
            engine.decode(&Decode { rows }).unwrap();
        }
        let decode = start.elapsed().as_secs_f64();
        let prompt_tokens = f64::from(num_rows) * PROMPT_LEN as f64;
        let tokens = f64::from(num_rows) * NUM_STEPS as f64;
        println!(
            "{num_rows} rows: prefill {:.0} tokens/s, decode {:.0} tokens/s, {:.3} ms a step",
            prompt_tokens / prefill,
            tokens / decode,
            1e3 * decode / NUM_STEPS as f64
        );
    }
}
