//! The frames of a step of 64 rows: the command as the router writes it and the shard reads it, the reply likewise.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use proto::{
    Command, Decode, DecodeRow, HEADER_BYTES, Prefill, PromptChunk, Reply, SampledToken, SamplingParams, StepReply,
    command, frame, reply,
};

const NUM_ROWS: u32 = 64;
const PROMPT_TOKENS: u32 = 1024;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    measure(&mut criterion, "decode of 64 rows", &decode());
    measure(&mut criterion, "prefill of 1024 tokens", &prefill());
    measure(&mut criterion, "reply of 64 tokens", &reply());
    criterion.final_summary();
}

fn measure<M: prost::Message + Default>(criterion: &mut Criterion, name: &str, message: &M) {
    let mut encoded = Vec::new();
    frame::encode(message, &mut encoded).expect("a step fits in a frame");
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Bytes(encoded.len() as u64));
    group.bench_function("encode", |bencher| {
        let mut buffer = Vec::new();
        bencher.iter(|| {
            buffer.clear();
            frame::encode(black_box(message), &mut buffer)
        });
    });
    group.bench_function("decode", |bencher| {
        bencher.iter(|| frame::decode::<M>(black_box(&encoded[HEADER_BYTES..])));
    });
    group.finish();
}

fn rows() -> Vec<DecodeRow> {
    // One row in sixteen fills a block.
    let new_blocks = |slot: u32| if slot.is_multiple_of(16) { vec![slot + 1000] } else { Vec::new() };
    (0..NUM_ROWS)
        .map(|slot| DecodeRow { slot, position: 300 + slot, new_blocks: new_blocks(slot), ..DecodeRow::default() })
        .collect()
}

fn decode() -> Command {
    Command { sequence_number: 1_000_000, kind: Some(command::Kind::Decode(Decode { rows: rows() })) }
}

fn prefill() -> Command {
    let chunk = PromptChunk {
        slot: NUM_ROWS,
        position: 0,
        token_ids: (0..PROMPT_TOKENS).map(|i| i * 31 % 32_000).collect(),
        new_blocks: (0..PROMPT_TOKENS / 16).collect(),
        sampling: Some(SamplingParams::greedy()),
        samples_token: true,
        ..PromptChunk::default()
    };
    let prefill = Prefill { chunks: vec![chunk], rows: rows() };
    Command { sequence_number: 1_000_000, kind: Some(command::Kind::Prefill(prefill)) }
}

fn reply() -> Reply {
    let token = |slot| SampledToken { slot, token_id: slot * 499, logprob: -0.25, ..SampledToken::default() };
    let tokens = (0..NUM_ROWS).map(token).collect();
    let step = StepReply { tokens, forward_ns: 5_000_000, fingerprint: u64::MAX / 3, ..StepReply::default() };
    Reply { sequence_number: 1_000_000, kind: Some(reply::Kind::Step(step)) }
}
