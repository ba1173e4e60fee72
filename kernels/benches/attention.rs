//! `cargo bench -p kernels --bench attention [-- ISA [TYPE]]`: speed of attention for each type of KV cache.
//!
//! ISA is a name that `HILO_CPU_ISA` accepts, TYPE one of f32, f16, bf16 and int8. Rows that decode read each key and
//! value once, so memory bandwidth limits them. Their calls cycle through several KV caches, so that the data comes
//! from memory; compare their shares of the bandwidth, not absolute times. A prompt uses each key and value many times.

mod measure;

use std::io::{self, Write};

use kernels::attention::{AttentionRow, AttentionShape, HeadScores, KvCache, KvType, paged_attention, write_kv};
use kernels::isa;
use kernels::memory::read_bandwidth;
use measure::best_seconds;

const CONTEXT_LEN: usize = 4096;
const NUM_ROWS: usize = 4;
const NUM_LAYERS: usize = 4;
const PROMPT_LEN: usize = 512;
/// The number of bytes read to measure the bandwidth, more than the caches of most processors hold.
const READ_BYTES: usize = 1 << 30;
/// The numbers of heads and of key-value heads, and `head_dim`, of common models.
const HEADS: [(usize, usize, usize); 3] = [(32, 8, 64), (32, 8, 128), (16, 16, 64)];

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let isa = isa::select(arguments.next().as_deref()).map_err(io::Error::other)?;
    let chosen = arguments.next();
    let mut out = io::stdout().lock();
    let bandwidth = read_bandwidth(READ_BYTES);
    writeln!(out, "{isa}, {} threads, reads {bandwidth:.1} GB/s", rayon::current_num_threads())?;
    for (num_heads, num_kv_heads, head_dim) in HEADS {
        let scale = 1.0 / (head_dim as f32).sqrt();
        let shape = AttentionShape {
            num_heads,
            num_kv_heads,
            head_dim,
            value_dim: head_dim,
            block_size: 16,
            scale,
            window: None,
            soft_cap: None,
        };
        writeln!(out, "{num_heads} heads, {num_kv_heads} of keys, of {head_dim}")?;
        let types = [KvType::F32, KvType::F16, KvType::Bf16, KvType::Int8];
        for kv_type in types.into_iter().filter(|kv| chosen.as_ref().is_none_or(|name| *name == kv.to_string())) {
            decode(&mut out, &shape, kv_type, bandwidth)?;
            prefill(&mut out, &shape, kv_type)?;
        }
    }
    Ok(())
}

/// Measures rows that generate one token each.
fn decode(out: &mut impl Write, shape: &AttentionShape, kv_type: KvType, bandwidth: f64) -> io::Result<()> {
    let blocks_per_row = CONTEXT_LEN / shape.block_size;
    let tables: Vec<Vec<u32>> =
        (0..NUM_ROWS).map(|row| (0..blocks_per_row).map(|block| (block * NUM_ROWS + row) as u32).collect()).collect();
    let row =
        |(row, block_table)| AttentionRow { first_token: row, num_tokens: 1, context_len: CONTEXT_LEN, block_table };
    let rows: Vec<AttentionRow<'_>> = tables.iter().map(Vec::as_slice).enumerate().map(row).collect();
    let layers = (0..NUM_LAYERS).map(|_| filled(shape, kv_type, &tables)).collect::<io::Result<Vec<KvCache>>>()?;
    let q = numbers(NUM_ROWS * shape.q_width());
    let mut y = vec![0.0; q.len()];
    let mut turns = layers.iter().cycle();
    let seconds = best_seconds(|| {
        paged_attention(shape, &rows, (&q, HeadScores::default()), turns.next().unwrap_or(&layers[0]), &mut y)
    });
    let gigabytes = layers[0].size_bytes() as f64 / 1e9;
    let rate = gigabytes / seconds;
    let share = 100.0 * rate / bandwidth;
    writeln!(
        out,
        "{kv_type:<5} {NUM_ROWS} rows of {CONTEXT_LEN}: {:6.3} ms, {rate:5.1} GB/s ({share:3.0} %)",
        seconds * 1e3
    )
}

/// Measures one prompt that a single step reads.
fn prefill(out: &mut impl Write, shape: &AttentionShape, kv_type: KvType) -> io::Result<()> {
    let table: Vec<u32> = (0..(PROMPT_LEN / shape.block_size) as u32).collect();
    let row = AttentionRow { first_token: 0, num_tokens: PROMPT_LEN, context_len: PROMPT_LEN, block_table: &table };
    let cache = filled(shape, kv_type, std::slice::from_ref(&table))?;
    let q = numbers(PROMPT_LEN * shape.q_width());
    let mut y = vec![0.0; q.len()];
    let seconds = best_seconds(|| paged_attention(shape, &[row], (&q, HeadScores::default()), &cache, &mut y));
    // Each query attends to half of the keys on average.
    let gigaflops = (2 * PROMPT_LEN * PROMPT_LEN * shape.q_width()) as f64 / 1e9 / seconds;
    writeln!(out, "{kv_type:<5} prompt of {PROMPT_LEN}: {:6.2} ms, {gigaflops:6.1} GFLOP/s", seconds * 1e3)
}

/// Returns a KV cache of which every block is written.
fn filled(shape: &AttentionShape, kv_type: KvType, tables: &[Vec<u32>]) -> io::Result<KvCache> {
    let AttentionShape { num_kv_heads, block_size, head_dim, .. } = *shape;
    let num_blocks: usize = tables.iter().map(Vec::len).sum();
    let mut cache = KvCache::zeros(kv_type, [num_blocks, num_kv_heads, block_size], [head_dim, head_dim])?;
    let len = tables[0].len() * block_size;
    let kv = numbers(len * shape.key_width());
    for block_table in tables {
        let row = AttentionRow { first_token: 0, num_tokens: len, context_len: len, block_table };
        write_kv(shape, &[row], [&kv, &kv], &mut cache);
    }
    Ok(cache)
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919) % 1009) as f32 / 1009.0 - 0.5).collect()
}
