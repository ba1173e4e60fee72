//! The device `xla-cpu`: the CPU of this machine through XLA. It runs programs like those for TPUs and GPUs on machines
//! that have neither.

use crate::platform::{CHUNK_BYTES, QUIET};
use crate::plugins::{Plugin, Wheel};
use crate::{
    BackendKind, ClientOption, DecodeLoop, Device, DeviceSpec, HeadForm, KvCacheForm, PlatformSpec, Quantize, Ranks,
};

impl Device {
    /// The CPU of this machine, through XLA.
    pub const XLA_CPU: Self = Self::new(&DeviceSpec {
        name: "xla-cpu",
        aliases: &[],
        help: "This machine's CPU, through XLA",
        is_hidden: false,
        backend: BackendKind::Plugin(&PLATFORM),
        hardware: None,
        ranks: Ranks::OneProcess,
        quantizations: &[Quantize::Int8, Quantize::Int4, Quantize::Fp8],
        takes_kv_cache_dtype: false,
        uses_host_memory: true,
    });
}

/// The plugin, clients and programs of the CPU through XLA.
pub const PLATFORM: PlatformSpec = PlatformSpec {
    plugin: Plugin {
        name: "cpu",
        help: "This machine's CPU, through XLA",
        file_name: "xla_cpu_pjrt.so",
        package: "xla-cpu-pjrt",
        version: "0.0.1",
        wheel: Wheel {
            file_name: "xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl",
            sha256: "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc",
            size_bytes: 63_461_052,
            platform: "manylinux_2_27_x86_64",
            python_version: "3.11",
            implementation: "py",
            abi: "none",
        },
        path_in_wheel: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
        libraries: None,
        own_variable: None,
        licence_note: None,
    },
    // The plugin presents the CPU as this number of devices.
    client_options: &[("cpu_device_count", ClientOption::NumDevices)],
    compiler_flags: &[],
    // With one row, XLA's CPU compiler generates slow products and scatters.
    min_decode_rows: 2,
    decode_heads: HeadForm::Split,
    decode_loop: DecodeLoop::EveryRow,
    has_mosaic: false,
    chunk_bytes: CHUNK_BYTES,
    lanes: 1,
    fixed_contexts: &[],
    kinds: &[],
    // With a narrower type, compiled programs would convert the whole cache in every step.
    kv_cache: KvCacheForm::F32,
    variables: &[QUIET],
};
