//! The open client, programs on it, and the measurement of times.

use std::time::{Duration, Instant};

use model::graph::DType;
use numbers::FloatType;
use pjrt::{Argument, Buffer, Client, Device, ExecuteOptions, Execution, HostSlice, LoadedExecutable};

use super::page::{Failure, duration, ensure};
use crate::launch_id;
use crate::platform::Platform;
use crate::stablehlo::Type;
use crate::weights::element_type;

/// After this time, a measurement begins no further repetition.
const BUDGET: Duration = Duration::from_secs(5);
/// The number of repetitions before those that are counted: the first ones also allocate and warm up.
const NUM_WARMUPS: usize = 3;

/// An open client, and the devices of this process in ascending order of their ids.
#[derive(Debug)]
pub(super) struct Rig {
    pub(super) platform: Platform,
    pub(super) client: Client,
    pub(super) devices: Vec<Device>,
}

impl Rig {
    /// Returns a rig with all devices of this process.
    pub(super) fn new(platform: Platform, client: Client) -> Self {
        let mut devices = client.addressable_devices();
        devices.sort_by_key(Device::id);
        Self { platform, client, devices }
    }

    /// Returns the first device, on which most probes run.
    pub(super) fn first(&self) -> Result<&Device, Failure> {
        self.devices.first().ok_or_else(|| Failure("the client has no device that this process can use".to_owned()))
    }

    /// Compiles a program for the first device.
    pub(super) fn compile(&self, text: &str) -> Result<LoadedExecutable, Failure> {
        let options = self.platform.compile_options(&[self.first()?.id()]);
        Ok(self.client.compile(text.as_bytes(), &options)?)
    }

    /// Copies an array to `device`.
    pub(super) fn upload(&self, ty: &Type, bytes: &[u8], device: &Device) -> Result<Buffer, Failure> {
        let slice = HostSlice::new(element_type(ty.dtype), &ty.dims, bytes)?;
        Ok(self.client.upload(slice, device)?)
    }

    /// Copies an array to the first device, and waits until it is there.
    pub(super) fn upload_to_first(&self, ty: &Type, bytes: &[u8]) -> Result<Buffer, Failure> {
        let buffer = self.upload(ty, bytes, self.first()?)?;
        buffer.ready()?.wait()?;
        Ok(buffer)
    }
}

/// Starts a program on its devices, with a list of arguments for each.
pub(super) fn launch(program: &LoadedExecutable, arguments: Vec<Vec<Argument<'_>>>) -> Result<Execution, Failure> {
    let options = ExecuteOptions { launch_id: launch_id::next(), reports_end: true, ..ExecuteOptions::default() };
    Ok(program.execute(arguments, &options)?)
}

/// Waits until a program has ended on all devices.
pub(super) fn wait(execution: &Execution) -> Result<(), Failure> {
    Ok(execution.done.iter().try_for_each(pjrt::Event::wait)?)
}

/// Waits for a program on one device, and returns its results.
pub(super) fn results(execution: Execution) -> Result<Vec<Buffer>, Failure> {
    wait(&execution)?;
    execution.outputs.into_iter().next().ok_or_else(|| Failure("the launch has no list of results".to_owned()))
}

/// Returns the only result of a program on one device.
pub(super) fn result(execution: Execution) -> Result<Buffer, Failure> {
    results(execution)?.pop().ok_or_else(|| Failure("the program returned nothing".to_owned()))
}

/// Copies an array of 32-bit floats to the host.
pub(super) fn floats(buffer: &Buffer) -> Result<Vec<f32>, Failure> {
    Ok(words(buffer)?.into_iter().map(f32::from_le_bytes).collect())
}

/// Copies an array of 32-bit integers to the host.
pub(super) fn integers(buffer: &Buffer) -> Result<Vec<i32>, Failure> {
    Ok(words(buffer)?.into_iter().map(i32::from_le_bytes).collect())
}

fn words(buffer: &Buffer) -> Result<Vec<[u8; 4]>, Failure> {
    let bytes = buffer.to_host()?.wait()?;
    Ok(bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]).collect())
}

/// Returns a failure unless the program returned the right numbers.
pub(super) fn expect<T: PartialEq + std::fmt::Display>(found: &[T], expected: &[T]) -> Result<(), Failure> {
    ensure(found.len() == expected.len(), || {
        format!("the result has {} elements, not {}", found.len(), expected.len())
    })?;
    let wrong = found.iter().zip(expected).enumerate().find(|(_, (found, expected))| found != expected);
    wrong.map_or(Ok(()), |(index, (found, expected))| {
        Err(Failure(format!("wrong result: element {index} is {found}, not {expected}")))
    })
}

/// The type of `[len]` f32.
pub(super) fn float_vector(len: usize) -> Type {
    Type::new([len], DType::Float(FloatType::F32))
}

/// Returns the little-endian bytes of floats.
pub(super) fn float_bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// Returns the little-endian bytes of integers.
pub(super) fn integer_bytes(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_le_bytes).collect()
}

/// The durations of a measurement's repetitions, ascending.
#[derive(Debug)]
pub(super) struct Times(Vec<Duration>);

impl Times {
    /// After the warm-ups, repeats `once`, which returns the time to count, at most `max_count` times.
    pub(super) fn measure(
        max_count: usize,
        mut once: impl FnMut() -> Result<Duration, Failure>,
    ) -> Result<Self, Failure> {
        let start = Instant::now();
        for _ in 0..NUM_WARMUPS {
            once()?;
        }
        let mut times = vec![once()?];
        while times.len() < max_count && start.elapsed() < BUDGET {
            times.push(once()?);
        }
        times.sort_unstable();
        Ok(Self(times))
    }

    /// The median.
    pub(super) fn median(&self) -> Duration {
        self.0[self.0.len() / 2]
    }

    /// Returns the median, the number of repetitions, and the time below which nine of ten are.
    pub(super) fn text(&self) -> String {
        let slow = self.0[self.0.len() * 9 / 10];
        format!("{} (median of {}, 90 % below {})", duration(self.median()), self.0.len(), duration(slow))
    }
}
