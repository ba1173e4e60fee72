//! Transfers between host and device: every element type, the rate of a large array, and the times of small ones.

use std::time::{Duration, Instant};

use model::graph::DType;
use numbers::FloatType;
use pjrt::{Device, ElementType, HostSlice};

use super::page::{Failure, Page, duration, ensure, rate};
use super::rig::{Rig, Times};
use crate::stablehlo::Type;

/// Dimensions that are no multiples of a tile, so that padding is tried too.
const DIMS: [usize; 3] = [3, 33, 130];
/// Elements of the large array, 64 MiB of bf16.
const LARGE: [usize; 2] = [8192, 4096];
/// Bytes of small uploads, such as packed steps with few and with many blocks.
const STEPS: [usize; 3] = [4 << 10, 64 << 10, 512 << 10];
/// Bytes of a small download: the tokens of 64 rows and their log-probabilities.
const REPORT: usize = 512;
const MAX_REPEATS: usize = 200;

/// Adds a line for each element type: its bytes must come back as they were.
pub(super) fn element_types(rig: &Rig, page: &mut Page<'_>) -> Result<(), Failure> {
    let device = rig.first()?;
    for element_type in ElementType::all() {
        page.result(format!("upload and download of {element_type}"), round_trip(rig, element_type, device));
    }
    Ok(())
}

fn round_trip(rig: &Rig, element_type: ElementType, device: &Device) -> Result<String, Failure> {
    let mask = match element_type {
        ElementType::Pred => 1,
        ElementType::S4 => 15,
        _ => u8::MAX,
    };
    let len = DIMS.iter().product::<usize>() * element_type.host_bytes();
    let pattern: Vec<u8> = pattern(len).map(|byte| byte & mask).collect();
    let buffer = rig.client.upload(HostSlice::new(element_type, &DIMS, &pattern)?, device)?;
    let found = buffer.to_host()?.wait()?;
    ensure(found.len() == len, || format!("{} bytes came back, not {len}", found.len()))?;
    // The upper half of a 4-bit integer's byte may repeat the sign bit.
    let is_wrong = |(found, sent): &(&u8, &u8)| *found & mask != **sent;
    let wrong = found.iter().zip(&pattern).enumerate().find(|(_, pair)| is_wrong(pair));
    match wrong {
        Some((index, (found, sent))) => {
            Err(Failure(format!("byte {index} of {len} came back as {found:#04x}, but was {sent:#04x}")))
        }
        None => Ok(format!("{len} bytes equal, {} on the device", buffer.size_in_bytes()?)),
    }
}

/// Returns `len` bytes that repeat only after a long time.
fn pattern(len: usize) -> impl Iterator<Item = u8> {
    let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    std::iter::successors(Some(1_u32), next).map(|state| state.to_le_bytes()[3]).take(len)
}

/// Adds the rates of an upload and a download of a large array.
pub(super) fn large(rig: &Rig, page: &mut Page<'_>) -> Result<(), Failure> {
    let ty = Type::new(LARGE, DType::Float(FloatType::Bf16));
    let sent: Vec<u8> = pattern(usize::try_from(ty.size_bytes())?).collect();
    let len = sent.len();
    let name = |direction: &str| format!("{direction} of {} MiB", len >> 20);
    let times = Times::measure(5, || {
        let start = Instant::now();
        rig.upload_to_first(&ty, &sent)?;
        Ok(start.elapsed())
    })?;
    page.line(name("upload"), format!("{}, {}", rate(len, times.median()), times.text()));
    let buffer = rig.upload_to_first(&ty, &sent)?;
    let times = Times::measure(5, || {
        let start = Instant::now();
        let found = buffer.to_host()?.wait()?;
        let time = start.elapsed();
        ensure(found == sent, || "other bytes came back".to_owned())?;
        Ok(time)
    })?;
    page.line(name("download"), format!("{}, {}", rate(len, times.median()), times.text()));
    Ok(())
}

/// Adds the times of uploads and of a download like those of a step.
pub(super) fn small(rig: &Rig, page: &mut Page<'_>) -> Result<(), Failure> {
    for len in STEPS {
        let sent: Vec<u8> = pattern(len).collect();
        let ty = Type::new([len / 4], DType::I32);
        let device = rig.first()?;
        let mut in_call = Duration::ZERO;
        let times = Times::measure(MAX_REPEATS, || {
            let start = Instant::now();
            let buffer = rig.upload(&ty, &sent, device)?;
            in_call = start.elapsed();
            buffer.ready()?.wait()?;
            Ok(start.elapsed())
        })?;
        let text = format!("{}; the last call returned after {}", times.text(), duration(in_call));
        page.line(format!("upload of {} KiB", len >> 10), text);
    }
    let buffer = rig.upload_to_first(&Type::new([REPORT / 4], DType::I32), &pattern(REPORT).collect::<Vec<_>>())?;
    let times = Times::measure(MAX_REPEATS, || {
        let start = Instant::now();
        buffer.to_host()?.wait()?;
        Ok(start.elapsed())
    })?;
    page.line(format!("download of {REPORT} bytes"), times.text());
    Ok(())
}
