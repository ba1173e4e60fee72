//! XLA-CPU for the tests: one client with two devices per test process, which compiles StableHLO text and runs it.
//!
//! Entry point: [`rig`]. If this machine lacks the plugin, a line is printed and the tests pass; with
//! `HILO_REQUIRE_PLUGINS=1` they fail.

use std::sync::OnceLock;

use cpu::oracle::{Array, Elements};
use devices::plugins::testing::plugin_path;
use devices::xla_cpu;
use half::{bf16, f16};
use model::graph::{DType, WeightSpec};
use numbers::{FloatType, floats};
use pjrt::{Argument, Buffer, Client, Device, ElementType, ExecuteOptions, HostSlice, Plugin, Value};

use crate::launch_id;
use crate::platform::Platform;
use crate::rounded_rows::RoundedRows;
use crate::stablehlo::Type;
use crate::weights::{arrays, element_type};

/// The number of devices of the client.
pub(super) const NUM_DEVICES: i64 = 2;

/// The client of this process.
#[derive(Debug)]
pub(super) struct Rig {
    client: Client,
}

/// A tensor that is copied to a device.
#[derive(Debug, Clone)]
pub(super) struct Upload {
    pub(super) ty: Type,
    pub(super) bytes: Vec<u8>,
}

/// Returns the rig, or `None` if this machine lacks the plugin.
pub(super) fn rig() -> Option<&'static Rig> {
    static RIG: OnceLock<Rig> = OnceLock::new();
    // Every test looks for the plugin, so that every test says that it is skipped.
    let path = plugin_path(devices::Device::XLA_CPU)?;
    let open = || {
        let plugin = Plugin::open(&path).unwrap();
        let client = Client::new(&plugin, &[("cpu_device_count", Value::I64(NUM_DEVICES))]).unwrap();
        Rig { client }
    };
    Some(RIG.get_or_init(open))
}

impl Rig {
    /// Compiles `text` for one device per list of arguments, runs it, and returns the results of each device. The first
    /// `num_donated` arguments are donated.
    pub(super) fn run(&self, text: &str, arguments: &[Vec<Upload>], num_donated: usize) -> Vec<Vec<Array>> {
        let devices = &self.client.addressable_devices()[..arguments.len()];
        let ids: Vec<i64> = devices.iter().map(Device::id).collect();
        let executable = self.client.compile(
            text.as_bytes(),
            &Platform::new(devices::Device::XLA_CPU, &xla_cpu::PLATFORM).compile_options(&ids),
        );
        let executable = executable.unwrap_or_else(|error| panic!("{error}\n{text}"));
        let upload = |upload: &Upload, device: &Device| {
            let slice = HostSlice::new(element_type(upload.ty.dtype), &upload.ty.dims, &upload.bytes).unwrap();
            self.client.upload(slice, device).unwrap()
        };
        let upload_all = |(uploads, device): (&Vec<Upload>, &Device)| {
            let mut kept: Vec<Buffer> = uploads.iter().map(|argument| upload(argument, device)).collect();
            let donated: Vec<Buffer> = kept.drain(..num_donated).collect();
            (donated, kept)
        };
        let (donated, kept): (Vec<_>, Vec<_>) = arguments.iter().zip(devices).map(upload_all).unzip();
        let lists = donated.into_iter().zip(&kept).map(|(donated, kept)| {
            donated.into_iter().map(Argument::Donate).chain(kept.iter().map(Argument::Keep)).collect()
        });
        let aliased = Some(0..num_donated);
        let options = ExecuteOptions { launch_id: launch_id::next(), aliased, ..ExecuteOptions::default() };
        let execution = executable.execute(lists.collect(), &options).unwrap();
        execution.outputs.iter().map(|outputs| outputs.iter().map(download).collect()).collect()
    }
}

impl Upload {
    /// Returns the upload of an array.
    pub(super) fn of(array: &Array) -> Self {
        let (dtype, bytes) = match &array.elements {
            Elements::F32(elements) => (DType::F32, elements.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Elements::I32(elements) => (DType::I32, elements.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Elements::U32(elements) => (DType::U32, elements.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Elements::Bool(elements) => (DType::Bool, elements.iter().map(|x| u8::from(*x)).collect()),
        };
        Self { ty: Type::new(array.dims.clone(), dtype), bytes }
    }

    /// Returns the uploads of a rank's part of a weight, quantized if `spec` says so. `values` are the floats of this
    /// part.
    pub(super) fn weight(spec: &WeightSpec, values: &[f32]) -> Vec<Self> {
        if spec.rounding.is_none() {
            return vec![Self::floats(values, Type::new(spec.local_shape(), DType::Float(spec.dtype)))];
        }
        let mut rounded = RoundedRows::new(spec);
        rounded.append(values);
        let arrays = arrays(spec).into_iter().zip(rounded.into_arrays());
        arrays.map(|((_, ty), bytes)| Self { ty, bytes }).collect()
    }

    /// Returns the upload of floats, converted to the type of `ty`.
    pub(super) fn floats(values: &[f32], ty: Type) -> Self {
        assert_eq!(values.len(), ty.len());
        let DType::Float(dtype) = ty.dtype else { panic!("{ty} has no floats") };
        Self { bytes: float_bytes(values, dtype), ty }
    }
}

/// Returns the bytes of floats in the type `dtype`, rounded to the nearest.
pub(super) fn float_bytes(values: &[f32], dtype: FloatType) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    floats::convert(&bytes, FloatType::F32, dtype).into_owned()
}

fn download(buffer: &Buffer) -> Array {
    let download = buffer.to_host().unwrap();
    let bytes = test_support::watched("a download", || download.wait()).unwrap();
    let words = || bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
    let halves = || bytes.chunks_exact(2).map(|half| [half[0], half[1]]);
    let elements = match buffer.element_type() {
        ElementType::F32 => Elements::F32(words().map(f32::from_le_bytes).collect()),
        ElementType::F16 => Elements::F32(halves().map(|half| f16::from_le_bytes(half).to_f32()).collect()),
        ElementType::Bf16 => Elements::F32(halves().map(|half| bf16::from_le_bytes(half).to_f32()).collect()),
        ElementType::S32 => Elements::I32(words().map(i32::from_le_bytes).collect()),
        ElementType::U32 => Elements::U32(words().map(u32::from_le_bytes).collect()),
        ElementType::Pred => Elements::Bool(bytes.iter().map(|byte| *byte != 0).collect()),
        other => panic!("no program returns {other:?}"),
    };
    Array { dims: buffer.dims().to_vec(), elements }
}
