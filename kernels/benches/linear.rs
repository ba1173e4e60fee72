//! `cargo bench -p kernels --bench linear [-- portable|avx2|avx512|avx512-vnni|avx512-bf16|amx]`: speed of a linear layer against the machine's limits.
//!
//! Several copies of the weight are used in turn, as the layers of a model are, so that it comes from memory. Figures
//! are the best of many calls. Compare shares of the read bandwidth measured in the same run, not absolute figures.

mod measure;

use std::io::{self, Write};
use std::ops::Range;

use kernels::floats::FloatType;
use kernels::isa;
use kernels::linear::{PackedWeight, WeightType, linear};
use kernels::memory::read_bandwidth;
use measure::best_seconds;

const NUM_OUTPUTS: usize = 8192;
const NUM_INPUTS: usize = 2048;
const NUM_LAYERS: usize = 6;
const ROWS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 512];

fn main() -> io::Result<()> {
    let name = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let isa = isa::select(name.as_deref()).map_err(io::Error::other)?;
    let mut out = io::stdout().lock();
    let bandwidth = read_bandwidth();
    writeln!(out, "{isa}, {} threads, reads {bandwidth:.1} GB/s", rayon::current_num_threads())?;
    writeln!(out, "y[m, {NUM_OUTPUTS}] = x[m, {NUM_INPUTS}] · Wᵀ")?;
    for dtype in [WeightType::Int4, WeightType::Int8, WeightType::Bf16, WeightType::F16, WeightType::F32] {
        measure(&mut out, dtype, bandwidth)?;
    }
    Ok(())
}

fn measure(out: &mut impl Write, dtype: WeightType, bandwidth: f64) -> io::Result<()> {
    let values = (0..NUM_OUTPUTS * NUM_INPUTS).map(|i| ((i * 7919) % 1009) as f32 / 1009.0 - 0.5);
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    let row_bytes = NUM_INPUTS * size_of::<f32>();
    let rows =
        |rows: Range<usize>, take: &mut dyn FnMut(&[u8])| take(&bytes[rows.start * row_bytes..rows.end * row_bytes]);
    let pack = || PackedWeight::pack([NUM_OUTPUTS, NUM_INPUTS], FloatType::F32, dtype, &rows);
    let layers: Vec<PackedWeight> = (0..NUM_LAYERS).map(|_| pack()).collect();
    for rows in ROWS {
        let x: Vec<f32> = (0..rows * NUM_INPUTS).map(|i| ((i * 31) % 127) as f32 / 127.0 - 0.5).collect(); // [rows, inputs]
        let mut y = vec![0.0; rows * NUM_OUTPUTS]; // [rows, outputs]
        let mut turns = layers.iter().cycle();
        let seconds = best_seconds(|| linear(&x, turns.next().unwrap_or(&layers[0]), None, &mut y));
        let gigabytes = layers[0].size_bytes() as f64 / 1e9 / seconds;
        let gigaflops = (2 * rows * NUM_OUTPUTS * NUM_INPUTS) as f64 / 1e9 / seconds;
        let share = 100.0 * gigabytes / bandwidth;
        writeln!(out, "{dtype:?} m={rows:<4} {gigabytes:6.1} GB/s ({share:3.0} %) {gigaflops:7.1} GFLOP/s")?;
    }
    Ok(())
}
