//! `cargo bench -p kernels --bench linear [-- ISA [TYPE [ROWS]]]`: speed of a linear layer against machine limits.
//!
//! ISA is a value of `HILO_CPU_ISA`. TYPE is int4, int8, bf16, f16, f32, mxfp4 or a type of blocks, such as Q4_K. ROWS
//! is the number of rows of x. The calls use copies of the weight in turn. The copies have at least one GiB in all, so
//! that the weight comes from memory, as in a model with many layers. The fastest of many calls is reported. Compare
//! shares of the read bandwidth that the same run measures, not absolute times.

mod measure;

use std::io::{self, Write};
use std::ops::Range;
use std::time::Instant;

use kernels::isa;
use kernels::linear::{PackedWeight, WeightType, linear};
use kernels::memory::read_bandwidth;
use measure::best_seconds;
use numbers::FloatType;
use numbers::blocks::BlockType;

const NUM_OUTPUTS: usize = 8192;
const NUM_INPUTS: usize = 2048;
/// The minimum size of all copies of the weight together, in bytes: more than the caches of most processors hold.
const WEIGHTS_BYTES: usize = 1 << 30;
const ROWS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 512];
const TYPES: [(&str, WeightType); 6] = [
    ("int4", WeightType::Int4),
    ("int8", WeightType::Int8),
    ("bf16", WeightType::Bf16),
    ("f16", WeightType::F16),
    ("f32", WeightType::F32),
    ("mxfp4", WeightType::Mxfp4),
];

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let isa = isa::select(arguments.next().as_deref()).map_err(io::Error::other)?;
    let (dtype, rows) = (arguments.next(), arguments.next());
    let rows = rows.map(|rows| rows.parse().map_err(|_| io::Error::other(format!("{rows} is not a number of rows"))));
    let rows = rows.transpose()?.map_or_else(|| ROWS.to_vec(), |rows| vec![rows]);
    let mut out = io::stdout().lock();
    let bandwidth = read_bandwidth(WEIGHTS_BYTES);
    writeln!(out, "{isa}, {} threads, reads {bandwidth:.1} GB/s", rayon::current_num_threads())?;
    writeln!(out, "y[m, {NUM_OUTPUTS}] = x[m, {NUM_INPUTS}] · Wᵀ")?;
    let is_asked = |name: &str| dtype.as_deref().is_none_or(|dtype| dtype == name);
    for (_, dtype) in TYPES.iter().filter(|(name, _)| is_asked(name)) {
        let values = (0..NUM_OUTPUTS * NUM_INPUTS).map(|i| ((i * 7919) % 1009) as f32 / 1009.0 - 0.5);
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        let rows_of_floats = rows_of(&bytes, NUM_INPUTS * size_of::<f32>());
        let pack = || PackedWeight::pack([NUM_OUTPUTS, NUM_INPUTS], FloatType::F32, *dtype, &rows_of_floats);
        measure(&mut out, (&format!("{dtype:?}"), &pack), &rows, bandwidth)?;
    }
    for kind in BlockType::ALL.into_iter().filter(|kind| is_asked(&format!("{kind:?}"))) {
        // Small bytes are small numbers, heads included.
        let row_bytes = NUM_INPUTS / kind.block_len() * kind.block_bytes();
        let bytes: Vec<u8> = (0..NUM_OUTPUTS * row_bytes).map(|i| (i * 7919 % 61) as u8).collect();
        let pack = || PackedWeight::of_blocks([NUM_OUTPUTS, NUM_INPUTS], kind, &rows_of(&bytes, row_bytes));
        measure(&mut out, (&format!("{kind:?}"), &pack), &rows, bandwidth)?;
    }
    Ok(())
}

/// A function that takes rows.
type Take<'a> = dyn FnMut(&[u8]) + 'a;

/// Returns a function that passes rows of `row_bytes` bytes.
fn rows_of(bytes: &[u8], row_bytes: usize) -> impl Fn(Range<usize>, &mut Take<'_>) + Sync {
    move |rows, take| take(&bytes[rows.start * row_bytes..rows.end * row_bytes])
}

fn measure(
    out: &mut impl Write,
    (name, pack): (&str, &dyn Fn() -> PackedWeight),
    rows: &[usize],
    bandwidth: f64,
) -> io::Result<()> {
    let begin = Instant::now();
    let mut layers = vec![pack()];
    let seconds = begin.elapsed().as_secs_f64();
    writeln!(out, "{name} packed at {:.0} million weights/s", (NUM_OUTPUTS * NUM_INPUTS) as f64 / 1e6 / seconds)?;
    while layers.iter().map(PackedWeight::size_bytes).sum::<usize>() < WEIGHTS_BYTES {
        layers.push(pack());
    }
    for rows in rows.iter().copied() {
        let x: Vec<f32> = (0..rows * NUM_INPUTS).map(|i| ((i * 31) % 127) as f32 / 127.0 - 0.5).collect(); // [rows, inputs]
        let mut y = vec![0.0; rows * NUM_OUTPUTS]; // [rows, outputs]
        let mut turns = layers.iter().cycle();
        let seconds = best_seconds(|| linear(&x, turns.next().unwrap_or(&layers[0]), None, &mut y));
        let gigabytes = layers[0].size_bytes() as f64 / 1e9 / seconds;
        let gigaflops = (2 * rows * NUM_OUTPUTS * NUM_INPUTS) as f64 / 1e9 / seconds;
        let share = 100.0 * gigabytes / bandwidth;
        writeln!(out, "{name} m={rows:<4} {gigabytes:6.1} GB/s ({share:3.0} %) {gigaflops:7.1} GFLOP/s")?;
    }
    Ok(())
}
