//! The device `tpu`: Google's TPUs. `chips.rs` finds their chips.
//!
//! Entry point: [`find`] returns the chips of this machine.

mod chips;

use std::path::Path;

pub use chips::{Chip, Chips, Generation, find};

use crate::platform::{CHUNK_BYTES, QUIET};
use crate::plugins::{Plugin, Wheel};
use crate::{
    BackendKind, ChildVariable, CompilerFlag, DecodeLoop, Device, DeviceKind, DeviceSpec, Hardware, HeadForm,
    KvCacheForm, PlatformSpec, Presence, Quantize, Ranks,
};

impl Device {
    /// Google's TPUs.
    pub const TPU: Self = Self::new(&DeviceSpec {
        name: "tpu",
        aliases: &[],
        help: "Google's TPU",
        is_hidden: false,
        backend: BackendKind::Plugin(&PLATFORM),
        hardware: Some(Hardware { name: "TPU", article: "a", absence: "no TPU chip on the bus", find: presence }),
        ranks: Ranks::Slice,
        quantizations: &[Quantize::Int8, Quantize::Int4, Quantize::Fp8],
        takes_kv_cache_dtype: false,
        uses_host_memory: false,
    });
}

/// The TPU's plugin, clients and programs.
pub const PLATFORM: PlatformSpec = PlatformSpec {
    plugin: Plugin {
        name: "tpu",
        help: "Google's TPU",
        file_name: "libtpu.so",
        package: "libtpu",
        version: "0.0.51",
        wheel: Wheel {
            file_name: "libtpu-0.0.51-cp311-cp311-manylinux_2_31_x86_64.whl",
            sha256: "ba67ddbfdbac61c8da1fafc26cd51b93e9fe4d298016e2882eb986b1718cba34",
            size_bytes: 204_805_508,
            platform: "manylinux_2_31_x86_64",
            python_version: "3.11",
            implementation: "cp",
            abi: "cp311",
        },
        path_in_wheel: "libtpu/libtpu.so",
        libraries: None,
        own_variable: Some("TPU_LIBRARY_PATH"),
        licence_note: Some("libtpu is Google's: its terms, in the wheel's LICENSE, apply to its use"),
    },
    client_options: &[],
    compiler_flags: &[
        // If a SparseCore gathered the keys and values, it would leave them in HBM, from where they would be read
        // again.
        ("xla_tpu_offload_gather_to_sparsecore", CompilerFlag::Bool(false)),
        // The same for what a SparseCore scatters, such as the results of the attention loop.
        ("xla_tpu_enable_offloading_scatter_to_sparsecore", CompilerFlag::Bool(false)),
        // Otherwise programs for tpu7x multiply experts in tiles of 16 rows, while weights are stored in tiles of 8.
        // Each step would first copy all experts of every layer.
        ("xla_tpu_control_large_2nd_minor_layout_for_x16", CompilerFlag::Bool(false)),
        // Without this optimisation, the compiler's cost estimates of the programs stay the same, and prefill programs
        // compile faster.
        ("xla_tpu_autofdo", CompilerFlag::Bool(false)),
        // Otherwise the compiler copies an array into fast memory before each run: as the largest that fits, the whole
        // embedding table of a small model, of which a step reads a few rows.
        ("xla_max_cross_program_prefetches", CompilerFlag::Number(0)),
        // Equal layers are stored once, so a program is smaller.
        ("xla_tpu_enable_deduplicated_calls", CompilerFlag::Name("ENABLED")),
    ],
    min_decode_rows: 2,
    decode_heads: HeadForm::Wide,
    decode_loop: DecodeLoop::List { many: 32, few: 8 },
    has_mosaic: true,
    chunk_bytes: CHUNK_BYTES,
    lanes: 128,
    fixed_contexts: &[],
    kinds: &[
        // v5p: each chip is used as two devices (docs/tpu-attention.md). For each device, libtpu reports the memory of
        // the whole chip.
        DeviceKind { name: "TPU v5", chunk_bytes: CHUNK_BYTES, shares_memory: true },
        // The fast memory of this generation is half as large as that of v5e and v6e.
        DeviceKind { name: "TPU7x", chunk_bytes: CHUNK_BYTES / 2, shares_memory: false },
    ],
    kv_cache: KvCacheForm::OfWeights,
    variables: &[
        ChildVariable {
            name: "TPU_LOG_DIR",
            value: "disabled",
            reason: "libtpu would fill /tmp/tpu_logs, which nobody empties",
        },
        ChildVariable { name: "TPU_MIN_LOG_LEVEL", value: "3", reason: "what fails comes back as an error anyway" },
        QUIET,
    ],
};

/// Returns the number and the generation of the chips that have a device node. If there are none, returns those of the
/// PCI functions without a node.
fn presence(root: &Path) -> Presence {
    let Chips { usable, without_node } = find(root);
    match (usable.first(), without_node.first()) {
        (Some(chip), _) => Presence::Here(format!("{} TPU {} chip(s)", usable.len(), chip.generation.name())),
        (None, Some((generation, address))) => Presence::Closed(format!(
            "{} TPU {} chip(s) on the bus (the first is {address}), but no device node: give the container /dev/vfio or \
             /dev/accel*",
            without_node.len(),
            generation.name(),
        )),
        (None, None) => Presence::Absent,
    }
}
