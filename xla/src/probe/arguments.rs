//! A launch with about as many arguments and results as a decoding step of Llama-3.1-8B on one device has.

use std::time::Instant;

use model::graph::DType;
use pjrt::{Argument, Buffer, LoadedExecutable};

use super::page::{Failure, Page, duration};
use super::rig::{Rig, Times, expect, integer_bytes, integers, launch, results};
use crate::stablehlo::{Type, probes};

/// The number of caches, with the history of tokens.
const NUM_DONATED: usize = 65;
/// The number of weights, with the packed step.
const NUM_KEPT: usize = 291;
/// The number of elements of each array.
const LEN: usize = 128;
const MAX_REPEATS: usize = 200;

/// Adds the time of a launch with 356 arguments, 65 of them donated, and 66 results.
pub(super) fn many(rig: &Rig, page: &mut Page<'_>) -> Result<(), Failure> {
    let program = rig.compile(&probes::many_arguments(NUM_DONATED, NUM_KEPT, LEN))?;
    let array = |value: usize| {
        let value = i32::try_from(value).unwrap_or(i32::MAX);
        rig.upload_to_first(&Type::new([LEN], DType::I32), &integer_bytes([value; LEN]))
    };
    let mut states = (0..NUM_DONATED).map(array).collect::<Result<Vec<_>, _>>()?;
    let kept = (0..NUM_KEPT).map(array).collect::<Result<Vec<_>, _>>()?;
    let mut calls = Vec::new();
    let mut sum = None;
    let times = Times::measure(MAX_REPEATS, || {
        let start = Instant::now();
        let execution = launch(&program, vec![arguments(std::mem::take(&mut states), &kept)])?;
        calls.push(start.elapsed());
        states = results(execution)?;
        let time = start.elapsed();
        sum = states.pop();
        Ok(time)
    })?;
    check(&states, sum.as_ref(), calls.len())?;
    calls.sort_unstable();
    let call = duration(calls[calls.len() / 2]);
    page.line("launch with 356 arguments", format!("{}; the call returns after {call}", times.text()));
    page.line("its caches stay in place", in_place(&program)?);
    Ok(())
}

fn arguments(states: Vec<Buffer>, kept: &[Buffer]) -> Vec<Argument<'_>> {
    states.into_iter().map(Argument::Donate).chain(kept.iter().map(Argument::Keep)).collect()
}

/// Checks the results after `num_launches`, each of which adds 1 to every state.
fn check(states: &[Buffer], sum: Option<&Buffer>, num_launches: usize) -> Result<(), Failure> {
    let number = |value: usize| i32::try_from(value).unwrap_or(i32::MAX);
    for (index, state) in states.iter().enumerate() {
        expect(&integers(state)?, &[number(index + num_launches); LEN])?;
    }
    let sum = sum.ok_or_else(|| Failure("the program returned no sum".to_owned()))?;
    expect(&integers(sum)?, &[number(NUM_KEPT * (NUM_KEPT - 1) / 2); LEN])
}

fn in_place(program: &LoadedExecutable) -> Result<String, Failure> {
    let expected = NUM_DONATED * LEN * size_of::<i32>();
    match program.executable().memory_stats() {
        Ok(stats) if stats.alias_bytes >= i64::try_from(expected)? => {
            Ok(format!("yes, {} of {expected} bytes", stats.alias_bytes))
        }
        Ok(stats) => Err(Failure(format!("only {} of {expected} donated bytes stay in place", stats.alias_bytes))),
        Err(error) if error.is_unimplemented() => Ok(format!("unknown: {error}")),
        Err(error) => Err(error.into()),
    }
}
