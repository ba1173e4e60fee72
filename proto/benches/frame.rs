//! Benchmarks of encoding and decoding frames: the command of a decode step of 64 rows, the command of the same step
//! with a prompt of 1024 tokens, and a reply with 64 tokens.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use proto::{
    Command, HEADER_BYTES, Opening, Reply, Row, RowReply, Sample, SampledToken, SamplingParams, Step, StepReply,
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

fn rows() -> Vec<Row> {
    // One row in sixteen needs a new block, as when blocks have 16 tokens.
    let new_blocks = |slot: u32| if slot.is_multiple_of(16) { vec![slot + 1000] } else { Vec::new() };
    let row = |slot| Row {
        slot,
        position: 300 + slot,
        new_blocks: new_blocks(slot),
        token: Some(Sample::default()),
        ..Row::default()
    };
    (0..NUM_ROWS).map(row).collect()
}

fn decode() -> Command {
    Command { sequence_number: 1_000_000, kind: Some(command::Kind::Step(Step { rows: rows() })) }
}

fn prefill() -> Command {
    let prompt = Row {
        slot: NUM_ROWS,
        position: 0,
        token_ids: (0..PROMPT_TOKENS).map(|i| i * 31 % 32_000).collect(),
        new_blocks: (0..PROMPT_TOKENS / 16).collect(),
        opening: Some(Box::new(Opening { sampling: Some(SamplingParams::greedy()), ..Opening::default() })),
        token: Some(Sample::default()),
        ..Row::default()
    };
    let step = Step { rows: rows().into_iter().chain([prompt]).collect() };
    Command { sequence_number: 1_000_000, kind: Some(command::Kind::Step(step)) }
}

fn reply() -> Reply {
    let token = |slot| SampledToken { token_id: slot * 499, logprob: -0.25, ..SampledToken::default() };
    let row = |slot| RowReply { slot, token: Some(token(slot)), ..RowReply::default() };
    let rows = (0..NUM_ROWS).map(row).collect();
    let step = StepReply { rows, forward_ns: 5_000_000, fingerprint: u64::MAX / 3, ..StepReply::default() };
    Reply { sequence_number: 1_000_000, kind: Some(reply::Kind::Step(step)) }
}
