//! The cost of a launch, and of two launches that depend on each other.

use std::time::{Duration, Instant};

use model::graph::DType;
use numbers::FloatType;
use pjrt::{Argument, Buffer, LoadedExecutable};

use super::page::{Failure, Page, duration, ensure};
use super::rig::{Rig, Times, expect, float_bytes, floats, integers, launch, result, wait};
use crate::stablehlo::{Type, probes};

const MAX_REPEATS: usize = 200;
/// The result of the empty program.
const CONSTANT: i32 = 7;
/// Sizes of matrices. The first whose program runs long enough to tell launches apart is used, or else the last.
const SIZES: [usize; 5] = [256, 512, 1024, 2048, 4096];
/// The number of products of a program.
const NUM_PRODUCTS: usize = 8;
/// The time that a program must run so that launches can be told apart.
const LONG_ENOUGH: Duration = Duration::from_millis(2);

/// Adds the time of a launch of a program without arguments.
pub(super) fn empty(rig: &Rig, page: &mut Page<'_>) -> Result<(), Failure> {
    let program = rig.compile(&probes::constant(CONSTANT))?;
    expect(&integers(&result(launch(&program, vec![Vec::new()])?)?)?, &[CONSTANT])?;
    let mut calls = Vec::new();
    let times = Times::measure(MAX_REPEATS, || {
        let start = Instant::now();
        let execution = launch(&program, vec![Vec::new()])?;
        calls.push(start.elapsed());
        wait(&execution)?;
        Ok(start.elapsed())
    })?;
    calls.sort_unstable();
    let call = duration(calls[calls.len() / 2]);
    page.line("empty launch", format!("{}; the call returns after {call}", times.text()));
    Ok(())
}

/// Adds the times of two launches of which the second needs the result of the first, with one wait and with two. The
/// difference is what a step gains if it is launched before the step before it has ended.
pub(super) fn back_to_back(rig: &Rig, page: &mut Page<'_>) -> Result<(), Failure> {
    let (program, size, one) = long_program(rig)?;
    page.line("one launch", format!("{one}; {NUM_PRODUCTS} products of {size} × {size} f32"));
    let mut x = Some(matrix(rig, size)?);
    let mut num_overlapping = 0;
    let mut calls = Vec::new();
    let together = Times::measure(20, || {
        let start = Instant::now();
        let first = launch(&program, donated(&mut x)?)?;
        calls.push(start.elapsed());
        let mut between = first.outputs.into_iter().next().and_then(|mut outputs| outputs.pop());
        let second = launch(&program, donated(&mut between)?)?;
        num_overlapping += usize::from(first.done.iter().any(|done| !done.is_ready()));
        x = Some(result(second)?);
        Ok(start.elapsed())
    })?;
    calls.sort_unstable();
    let call = duration(calls[calls.len() / 2]);
    page.line("two launches, one wait", format!("{}; the first call returns after {call}", together.text()));
    let apart = Times::measure(20, || {
        let start = Instant::now();
        let mut between = Some(result(launch(&program, donated(&mut x)?)?)?);
        x = Some(result(launch(&program, donated(&mut between)?)?)?);
        Ok(start.elapsed())
    })?;
    page.line("two launches, two waits", apart.text());
    let gain = apart.median().as_secs_f64() - together.median().as_secs_f64();
    page.line("gain of one wait less", format!("{:.1} µs", gain * 1e6));
    page.line(
        "second launched while the first runs",
        format!("{num_overlapping} of {} times (the call of the second returned before the first ended)", calls.len()),
    );
    let x = x.ok_or_else(|| Failure("the last launch has no result".to_owned()))?;
    expect(&floats(&x)?, &vec![element(size); size * size])
}

/// Compiles programs with larger and larger matrices, until one runs long enough. Returns the last program with the
/// size of its matrices and its time.
fn long_program(rig: &Rig) -> Result<(LoadedExecutable, usize, String), Failure> {
    let mut found = None;
    for size in SIZES {
        let program = rig.compile(&probes::squared(size, NUM_PRODUCTS))?;
        let mut x = Some(matrix(rig, size)?);
        let times = Times::measure(10, || {
            let start = Instant::now();
            x = Some(result(launch(&program, donated(&mut x)?)?)?);
            Ok(start.elapsed())
        })?;
        let is_long = times.median() >= LONG_ENOUGH;
        found = Some((program, size, times.text()));
        if is_long {
            break;
        }
    }
    found.ok_or_else(|| Failure("there is no size to try".to_owned()))
}

/// The elements of a matrix that is its own square.
fn element(size: usize) -> f32 {
    1.0 / size as f32
}

/// Returns a matrix that is its own square, on the first device.
fn matrix(rig: &Rig, size: usize) -> Result<Buffer, Failure> {
    let ty = Type::new([size, size], DType::Float(FloatType::F32));
    rig.upload_to_first(&ty, &float_bytes(std::iter::repeat_n(element(size), size * size)))
}

/// Takes the buffer to give it away as the only argument of a launch.
fn donated(buffer: &mut Option<Buffer>) -> Result<Vec<Vec<Argument<'static>>>, Failure> {
    ensure(buffer.is_some(), || "the launch before returned no result".to_owned())?;
    Ok(vec![buffer.take().map(Argument::Donate).into_iter().collect()])
}
