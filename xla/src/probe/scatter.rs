//! A write of rows into a donated KV cache, which must not copy the cache.

use std::time::Instant;

use model::graph::DType;
use numbers::FloatType;
use pjrt::{Argument, Buffer, LoadedExecutable};

use super::page::{Failure, Page, bytes, ensure};
use super::rig::{Rig, Times, integer_bytes, launch, result};
use crate::stablehlo::{Type, probes};

/// Blocks, tokens of a block, elements of a token: 32 MiB of bf16.
const DIMS: [usize; 3] = [16384, 16, 64];
/// The number of rows that one launch writes.
const NUM_ROWS: usize = 64;
const MAX_REPEATS: usize = 100;
/// The byte that fills the written rows. All others are 0.
const WRITTEN: u8 = 0x3f;

/// Adds a line that says if the cache stays in place, and lines with the time of a launch and with the layout, the
/// bytes and the content of the cache.
pub(super) fn in_place(rig: &Rig, page: &mut Page<'_>) -> Result<(), Failure> {
    let dtype = rig.platform.form.kv_dtype.unwrap_or(DType::Float(FloatType::Bf16));
    let ty = Type::new(DIMS, dtype);
    let size = usize::try_from(ty.size_bytes())?;
    let program = rig.compile(&probes::scattered(&ty, NUM_ROWS))?;
    page.result("scatter in place", stays(&program, size).map(|text| format!("{text}; {ty}")));
    let indices: Vec<i32> = (0..NUM_ROWS).flat_map(|row| place(row).map(|index| index as i32)).collect();
    let indices = rig.upload_to_first(&Type::new([NUM_ROWS, 2], DType::I32), &integer_bytes(indices))?;
    let rows = Type::new([NUM_ROWS, DIMS[2]], dtype);
    let row_bytes = usize::try_from(rows.size_bytes())? / NUM_ROWS;
    let rows = rig.upload_to_first(&rows, &vec![WRITTEN; row_bytes * NUM_ROWS])?;
    let mut cache = Some(rig.upload_to_first(&ty, &vec![0; size])?);
    let times = Times::measure(MAX_REPEATS, || {
        let given = cache.take().ok_or_else(|| Failure("the launch before returned no cache".to_owned()))?;
        let arguments = vec![vec![Argument::Donate(given), Argument::Keep(&indices), Argument::Keep(&rows)]];
        let start = Instant::now();
        cache = Some(result(launch(&program, arguments)?)?);
        Ok(start.elapsed())
    })?;
    page.line("time of the scatter", times.text());
    let cache = cache.ok_or_else(|| Failure("the last launch returned no cache".to_owned()))?;
    page.offered("layout of the cache", cache.layout().map(|layout| layout.to_string()));
    page.line("bytes of the cache", format!("{} on the device, {size} without padding", cache.size_in_bytes()?));
    check(&cache, row_bytes)?;
    page.line("content of the cache", "as expected");
    Ok(())
}

/// Returns the block to which a row is written, and the token in the block.
fn place(row: usize) -> [usize; 2] {
    [(row * 251) % DIMS[0], row % DIMS[1]]
}

fn stays(program: &LoadedExecutable, size: usize) -> Result<String, Failure> {
    let stats = match program.executable().memory_stats() {
        Err(error) if error.is_unimplemented() => return Ok(format!("unknown: {error}")),
        stats => stats?,
    };
    let [alias, temp] = [stats.alias_bytes, stats.temp_bytes].map(|bytes| u64::try_from(bytes).unwrap_or(0));
    ensure(alias >= size as u64, || format!("only {alias} of {size} donated bytes stay in place"))?;
    Ok(format!("yes, {} of {size} bytes; scratch {}", alias, bytes(temp)))
}

fn check(cache: &Buffer, row_bytes: usize) -> Result<(), Failure> {
    let found = cache.to_host()?.wait()?;
    let mut expected = vec![0; found.len()];
    for [block, token] in (0..NUM_ROWS).map(place) {
        let start = (block * DIMS[1] + token) * row_bytes;
        expected[start..start + row_bytes].fill(WRITTEN);
    }
    let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
    wrong.map_or(Ok(()), |index| Err(Failure(format!("wrong content of the cache at byte {index}"))))
}
