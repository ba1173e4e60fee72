//! The device `cuda`: NVIDIA's GPUs. `libraries.rs` lists the libraries of NVIDIA that its plugin needs.

mod libraries;

use std::path::Path;

use crate::platform::QUIET;
use crate::plugins::{Plugin, Wheel};
use crate::{
    BackendKind, ClientOption, DecodeLoop, Device, DeviceSpec, Hardware, HeadForm, KvCacheForm, PlatformSpec, Presence,
    Quantize, Ranks,
};

/// Either path shows that there is a GPU: the driver's folder for GPUs, or the device node of the first GPU, which
/// containers may have without that folder.
const PLACES: [&str; 2] = ["proc/driver/nvidia/gpus", "dev/nvidia0"];

/// Chunks of a loop are large, because each iteration launches several kernels and a chunk need not fit into fast
/// memory.
const CHUNK_BYTES: usize = 128 << 20;

impl Device {
    /// NVIDIA's GPUs.
    pub const CUDA: Self = Self::new(&DeviceSpec {
        name: "cuda",
        aliases: &["gpu"],
        help: "NVIDIA's GPU",
        is_hidden: false,
        backend: BackendKind::Plugin(&PLATFORM),
        hardware: Some(Hardware { name: "NVIDIA GPU", article: "an", absence: "no NVIDIA GPU", find }),
        ranks: Ranks::OneProcess,
        // Programs with FP8 or 4-bit weights were never tried with a GPU's compiler.
        quantizations: &[Quantize::Int8],
        takes_kv_cache_dtype: false,
        uses_host_memory: false,
    });
}

const PLATFORM: PlatformSpec = PlatformSpec {
    plugin: Plugin {
        name: "cuda13",
        help: "NVIDIA's GPUs, CUDA 13",
        file_name: "xla_cuda_plugin.so",
        package: "jax-cuda13-pjrt",
        version: "0.12.0.1",
        wheel: Wheel {
            file_name: "jax_cuda13_pjrt-0.12.0.1-py3-none-manylinux_2_27_x86_64.whl",
            sha256: "5899bb6177eda86ea532afb9a26794f2bdd04966f6a01f9028266b16c2b6cf90",
            size_bytes: 134_922_808,
            platform: "manylinux_2_27_x86_64",
            python_version: "3.11",
            implementation: "py",
            abi: "none",
        },
        path_in_wheel: "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
        libraries: Some(libraries::LIBRARIES),
        own_variable: None,
        licence_note: Some(
            "NVIDIA's libraries are NVIDIA's: its terms, in the License.txt of each wheel, apply to their use",
        ),
    },
    // Without `visible_devices`, each process would have a context on every GPU. CUDA_VISIBLE_DEVICES selects other
    // GPUs than the first.
    client_options: &[
        ("visible_devices", ClientOption::FirstDevices),
        ("preallocate", ClientOption::Bool(false)),
        ("memory_fraction", ClientOption::Float(0.95)),
    ],
    compiler_flags: &[],
    // On an H100, a step of eight rows takes about as long as a step of two, so smaller programs would only take time
    // to compile.
    min_decode_rows: 8,
    decode_heads: HeadForm::Split,
    decode_loop: DecodeLoop::EveryRow,
    has_mosaic: false,
    chunk_bytes: CHUNK_BYTES,
    lanes: 1,
    fixed_contexts: &[256, 512, 1024, 2048, 4096],
    kinds: &[],
    kv_cache: KvCacheForm::OfWeights,
    variables: &[QUIET],
};

fn find(root: &Path) -> Presence {
    let is_here = PLACES.iter().any(|place| root.join(place).exists());
    if is_here { Presence::Here("an NVIDIA GPU".to_owned()) } else { Presence::Absent }
}
