//! A sum over all devices of this process.

use std::time::Instant;

use pjrt::{Argument, Buffer, Device, LoadedExecutable};

use super::page::{Failure, Page, bytes};
use super::rig::{Rig, Times, expect, float_bytes, float_vector, floats, launch, wait};
use crate::stablehlo::probes;

/// Numbers of elements: the activations of one row, and of 64 rows, of a hidden size of 4096.
const LENS: [usize; 2] = [4096, 64 * 4096];
const MAX_REPEATS: usize = 100;

/// Adds the times of sums over all devices, each after a check of its result.
pub(super) fn all_reduce(rig: &Rig, page: &mut Page<'_>) -> Result<(), Failure> {
    let num_devices = rig.devices.len();
    for len in LENS {
        let options = rig.platform.compile_options(&ids(rig));
        let program = rig.client.compile(probes::summed(len, num_devices).as_bytes(), &options)?;
        let inputs = inputs(rig, len)?;
        check(&program, &inputs)?;
        let times = Times::measure(MAX_REPEATS, || {
            let start = Instant::now();
            wait(&launch(&program, arguments(&inputs))?)?;
            Ok(start.elapsed())
        })?;
        let name = format!("all-reduce of {}", bytes(4 * len as u64));
        page.line(name, format!("correct result on {num_devices} device(s); {}", times.text()));
    }
    Ok(())
}

/// The ids of the devices of this process, in ascending order.
pub(super) fn ids(rig: &Rig) -> Vec<i64> {
    rig.devices.iter().map(Device::id).collect()
}

/// Returns an array for each device: all elements of the device with index n are n + 1.
pub(super) fn inputs(rig: &Rig, len: usize) -> Result<Vec<Buffer>, Failure> {
    let input = |(index, device): (usize, &Device)| {
        rig.upload(&float_vector(len), &float_bytes(vec![(index + 1) as f32; len]), device)
    };
    rig.devices.iter().enumerate().map(input).collect()
}

/// Runs the program and checks the sum on every device.
pub(super) fn check(program: &LoadedExecutable, inputs: &[Buffer]) -> Result<(), Failure> {
    let execution = launch(program, arguments(inputs))?;
    wait(&execution)?;
    let sum = (inputs.len() * (inputs.len() + 1) / 2) as f32;
    for buffer in execution.outputs.iter().flatten() {
        let found = floats(buffer)?;
        expect(&found, &vec![sum; inputs[0].dims().iter().product()])
            .map_err(|Failure(reason)| Failure(format!("device {}: {reason}", buffer.device().id())))?;
    }
    Ok(())
}

fn arguments(inputs: &[Buffer]) -> Vec<Vec<Argument<'_>>> {
    inputs.iter().map(|input| vec![Argument::Keep(input)]).collect()
}
