//! Executables: their fingerprints and memory, and the way from a topology through serialized bytes to the devices.

use std::time::Instant;

use pjrt::{Code, CompiledMemoryStats, Executable, LoadedExecutable};

use super::collectives;
use super::page::{Failure, Page, bytes, duration, ensure, readable};
use super::rig::{Rig, expect, float_bytes, float_vector, floats, launch, result};
use crate::stablehlo::probes;

/// The number of elements of the small program's arrays.
const LEN: usize = 1024;

/// Compiles and runs a small program, and checks its result. Adds the compile time, the fingerprint and the memory.
pub(super) fn small_program(rig: &Rig, page: &mut Page<'_>) -> Result<(), Failure> {
    let start = Instant::now();
    let program = rig.compile(&probes::doubled(LEN))?;
    page.line("small program compiled", duration(start.elapsed()));
    page.result("small program, fingerprint", fingerprint(program.executable()));
    page.offered("small program, memory", program.executable().memory_stats().map(stats));
    check_doubled(rig, &program)?;
    page.line("small program, result", "as expected");
    Ok(())
}

fn stats(stats: CompiledMemoryStats) -> String {
    let CompiledMemoryStats { generated_code_bytes, argument_bytes, output_bytes, alias_bytes, temp_bytes, .. } = stats;
    let peak = stats.peak_bytes.map_or_else(|| "not reported".to_owned(), |bytes| bytes.to_string());
    format!(
        "code {generated_code_bytes}, arguments {argument_bytes}, results {output_bytes}, in place {alias_bytes}, \
         scratch {temp_bytes}, peak {peak} bytes"
    )
}

fn check_doubled(rig: &Rig, program: &LoadedExecutable) -> Result<(), Failure> {
    let numbers = || (0..LEN).map(|index| index as f32);
    let x = rig.upload_to_first(&float_vector(LEN), &float_bytes(numbers()))?;
    let found = floats(&result(launch(program, vec![vec![pjrt::Argument::Keep(&x)]])?)?)?;
    expect(&found, &numbers().map(|x| x + x).collect::<Vec<_>>())
}

/// Compiles the small program through the topology if that has a compiler, and loads and runs it.
pub(super) fn ahead_of_one(rig: &Rig, page: &mut Page<'_>) -> Result<(), Failure> {
    ahead(rig, &probes::doubled(LEN), &[rig.first()?.id()], page, check_doubled)
}

/// Compiles a sum over all devices through the topology if that has a compiler, and loads and runs it.
pub(super) fn ahead_of_all(rig: &Rig, page: &mut Page<'_>) -> Result<(), Failure> {
    let ids = collectives::ids(rig);
    let text = probes::summed(LEN, ids.len());
    ahead(rig, &text, &ids, page, |rig, program| collectives::check(program, &collectives::inputs(rig, LEN)?))
}

/// Compiles a program through the topology, or else through the client, serializes, loads and runs it. Compares the
/// fingerprints of this executable, of the loaded one and of the one that the client compiles.
fn ahead(
    rig: &Rig,
    text: &str,
    ids: &[i64],
    page: &mut Page<'_>,
    check: impl Fn(&Rig, &LoadedExecutable) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let name = |what: &str| format!("ahead of time, {} device(s), {what}", ids.len());
    let options = rig.platform.compile_options(ids);
    let here = rig.client.compile(text.as_bytes(), &options)?;
    let start = Instant::now();
    let compiled = rig.client.topology().and_then(|topology| topology.compile(text.as_bytes(), &options));
    let compiled = match compiled {
        Ok(executable) => {
            page.line(name("compiled"), format!("by the topology, {}", duration(start.elapsed())));
            Some(executable)
        }
        // Some plugins have topologies, but no compiler for them.
        Err(error) if error.is_unimplemented() || error.code() == Some(Code::NotFound) => {
            page.line(name("compiled"), format!("by the client, because the topology cannot: {error}"));
            None
        }
        Err(error) => {
            page.failed(name("compiled"), format!("by the client, because the topology cannot: {error}"));
            None
        }
    };
    let executable = compiled.as_ref().unwrap_or_else(|| here.executable());
    let serialized = executable.serialize()?;
    page.line(name("serialized"), bytes(serialized.len() as u64));
    let start = Instant::now();
    let loaded = rig.client.load(&serialized, None)?;
    let time = start.elapsed();
    check(rig, &loaded)?;
    page.line(name("loaded"), format!("{}, result as expected", duration(time)));
    page.result(name("fingerprints"), compare(executable, &loaded, &here));
    Ok(())
}

fn compare(ahead: &Executable, loaded: &LoadedExecutable, here: &LoadedExecutable) -> Result<String, Failure> {
    let [ahead, loaded, here] =
        [fingerprint(ahead)?, fingerprint(loaded.executable())?, fingerprint(here.executable())?];
    let text = format!("compiled ahead {ahead}, loaded {loaded}, compiled here {here}");
    ensure(loaded == here, || format!("what was loaded differs: {text}"))?;
    // The CUDA plugin gives an executable another fingerprint when it is loaded.
    Ok(if ahead == here { format!("equal: {here}") } else { text })
}

/// Returns the plugin's fingerprint of an executable as text.
pub(super) fn fingerprint(executable: &Executable) -> Result<String, Failure> {
    Ok(executable.fingerprint()?.map_or_else(|| "not offered".to_owned(), |bytes| readable(&bytes)))
}
