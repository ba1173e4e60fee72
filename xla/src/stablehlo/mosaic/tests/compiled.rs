//! Programs with the kernel, compiled by libtpu for five kinds of TPUs. No test needs a TPU.

use std::path::Path;
use std::sync::Arc;

use devices::plugins::testing::with_libtpu;
use devices::{DecodeAttention, DecodeLoop, Device, tpu};
use model::graph::{AttentionSpec, DType, Graph, StateSpec};
use numbers::FloatType;
use pjrt::{CompiledMemoryStats, Plugin, Topology, Value};

use super::*;
use crate::hlo::{Assumed, HloModule};
use crate::platform::Platform;
use crate::stablehlo::attention::{self, Batch};
use crate::stablehlo::emitter::Emitter;
use crate::stablehlo::inputs::{RowInputs, Sizes};
use crate::stablehlo::kv_cache::{self, Cache, CachedValues};
use crate::stablehlo::tensor::{Tensor, Type};
use crate::stablehlo::{Layout, Parameter, module};
use crate::step_input::StepShape;

/// A chip or a host of each kind.
const TOPOLOGIES: [(&str, [i64; 3], &str); 5] = [
    ("v4:2x2x1", [2, 2, 1], "megacore"),
    ("v5e:1x1", [1, 1, 1], "default"),
    ("v5p:2x2x1", [2, 2, 1], "legacy"),
    ("v6e:1x1", [1, 1, 1], "megachip_tccontrol"),
    ("tpu7x:2x2x1", [2, 2, 1], "default"),
];
const ROWS: usize = 64;

/// An attention layer of one rank of a model.
#[derive(Debug, Clone, Copy)]
struct Layer {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<Window>,
    soft_cap: Option<f32>,
    has_sinks: bool,
    blocks_per_row: usize,
}

const LLAMA_1B: Layer =
    Layer { heads: 32, kv_heads: 8, head_dim: 64, window: None, soft_cap: None, has_sinks: false, blocks_per_row: 256 };
/// One rank of Llama-3.1-8B over 8 chips, with block tables that are too large for scalar memory.
const LLAMA_8B_PART: Layer = Layer { heads: 4, kv_heads: 1, head_dim: 128, blocks_per_row: 2048, ..LLAMA_1B };
const GEMMA: Layer = Layer {
    heads: 8,
    kv_heads: 4,
    head_dim: 256,
    window: Some(Window::Sliding(1024)),
    soft_cap: Some(50.0),
    ..LLAMA_1B
};
/// A layer of gpt-oss-20b, with a window as long as the contexts for which reads are counted.
const GPT_OSS: Layer = Layer { heads: 64, window: Some(Window::Sliding(1024)), has_sinks: true, ..LLAMA_1B };
/// One rank of Llama 4 Scout over 8 chips, in a layer of the type `chunked_attention`.
const LLAMA_4_PART: Layer =
    Layer { heads: 5, kv_heads: 1, head_dim: 128, window: Some(Window::Chunked(8192)), ..LLAMA_1B };
/// One rank of gpt-oss-20b over 8 chips.
const GPT_OSS_PART: Layer = Layer { heads: 8, kv_heads: 1, window: None, ..GPT_OSS };

/// A program that writes the keys and values of a step and attends to the contexts.
struct Program {
    text: String,
    /// The bytes of keys and values, with their padding to whole vectors.
    cache_bytes: u64,
}

impl Program {
    fn new(layer: Layer, decode_attention: DecodeAttention) -> Self {
        let Layer { heads, kv_heads, head_dim, window, soft_cap, has_sinks, blocks_per_row } = layer;
        let shape = StepShape { rows: ROWS, tokens_per_row: 1, blocks_per_row };
        let sizes = Sizes {
            rows: ROWS,
            tokens_per_row: 1,
            blocks_per_row,
            num_slots: ROWS,
            max_total_tokens: blocks_per_row * BLOCK_SIZE,
            top_tokens: 1,
            num_devices: 1,
            decode_heads: HeadForm::Wide,
            decode_loop: DecodeLoop::EveryRow,
            decode_attention,
            context: None,
            chunk_bytes: 8 << 20,
        };
        let [bf16, f32] = [FloatType::Bf16, FloatType::F32].map(DType::Float);
        let array = Type::new([4096, BLOCK_SIZE, kv_heads * head_dim], bf16);
        let vectors = |heads: usize| Type::new([ROWS, heads, head_dim], f32);
        let types = [array.clone(), array.clone(), Type::new([shape.len()], DType::I32)];
        let types = types.into_iter().chain([vectors(heads), vectors(kv_heads), vectors(kv_heads)]);
        let types = types.chain([Type::new([heads], f32)]);
        let parameter = |(index, ty): (usize, Type)| match index {
            0 | 1 => Parameter { layout: Layout::RowMajor, ..Parameter::donated(ty, index) },
            _ => Parameter::kept(ty),
        };
        let parameters: Vec<Parameter> = types.enumerate().map(parameter).collect();
        let arguments: Vec<Tensor> =
            parameters.iter().enumerate().map(|(index, of)| Emitter::argument(index, of.ty.clone())).collect();
        let [keys, values, packed, q, k, v, sinks] = &arguments[..] else { panic!("seven arguments") };
        let mut graph = Graph::default();
        let states = ["keys", "values"]
            .map(|name| graph.state(&StateSpec::of_tokens(name, &[kv_heads, head_dim], window.map(Window::num_keys))));
        let spec =
            AttentionSpec { keys: states[0], values: states[1].into(), scale: 0.1, window, soft_cap, slopes: None };
        let mut emitter = Emitter::default();
        let (rows, _) = RowInputs::unpack(&mut emitter, packed, shape);
        let batch = Batch { rows: &rows, sizes: &sizes };
        let cache = Cache { keys: keys.clone(), values: CachedValues::Array(values.clone()) };
        let cache = kv_cache::write(&mut emitter, &cache, (k, Some(v)), batch);
        let output = attention::attend(&mut emitter, (q, has_sinks.then_some(sinks)), &cache, batch, &spec);
        let values = cache.values.array().unwrap().clone();
        let text = module("decode", 1, &parameters, emitter, (&[cache.keys, values, output], &[Layout::RowMajor; 2]));
        let padded = Type { dims: vec![4096, BLOCK_SIZE, (kv_heads * head_dim).next_multiple_of(LANES)], ..array };
        Self { text, cache_bytes: 2 * padded.size_bytes() }
    }

    /// Compiles the program, and returns its memory and the bytes that it reads.
    fn compile(
        &self,
        plugin: &Arc<Plugin>,
        (name, bounds, config): (&str, [i64; 3], &str),
    ) -> (CompiledMemoryStats, u64) {
        let options = [
            ("chips_per_host_bounds", Value::I64List(bounds.to_vec())),
            ("num_slices", Value::I64(1)),
            ("chip_config_name", Value::String(config.to_owned())),
        ];
        let topology = Topology::new(plugin, name, &options).unwrap();
        let id = topology.device_descriptions().unwrap()[0].id;
        let options = Platform::new(Device::TPU, &tpu::PLATFORM).compile_options(&[id]);
        let executable =
            topology.compile(self.text.as_bytes(), &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (format, bytes) = executable.optimized_program().unwrap();
        let reads = HloModule::parse(&format, &bytes).unwrap().reads(Assumed::ONCE);
        (executable.memory_stats().unwrap(), reads)
    }
}

fn check(test: &str, layer: Layer) {
    with_libtpu(module_path!(), test, |path: &Path| {
        let plugin = Plugin::open(path).unwrap();
        let program = Program::new(layer, DecodeAttention::Mosaic);
        assert!(program.text.contains("@tpu_custom_call"), "there is a kernel for {layer:?}");
        for topology in TOPOLOGIES {
            let (memory, reads) = program.compile(&plugin, topology);
            println!("{}: {memory:?}, reads {reads}", topology.0);
            assert_eq!(memory.alias_bytes as u64, program.cache_bytes, "{topology:?}: caches stay in place");
            assert_eq!(memory.temp_bytes, 0, "{topology:?}: no scratch");
            // The caches have as many tokens as the contexts for which reads are counted.
            let ratio = reads as f64 / program.cache_bytes as f64;
            assert!((1.0..1.05).contains(&ratio), "{topology:?}: caches are read {ratio} times");
        }
    });
}

#[test]
fn heads_of_64() {
    check("heads_of_64", LLAMA_1B);
}

#[test]
fn heads_of_128_with_tables_in_main_memory() {
    check("heads_of_128_with_tables_in_main_memory", LLAMA_8B_PART);
}

#[test]
fn heads_of_256_with_a_window_and_a_cap() {
    check("heads_of_256_with_a_window_and_a_cap", GEMMA);
}

#[test]
fn heads_of_128_with_a_chunked_window() {
    check("heads_of_128_with_a_chunked_window", LLAMA_4_PART);
}

#[test]
fn sinks_with_a_window() {
    check("sinks_with_a_window", GPT_OSS);
}

#[test]
fn sinks_of_one_rank() {
    check("sinks_of_one_rank", GPT_OSS_PART);
}

/// The default is the loop, and the text of the programs tells the two forms apart in the cache.
#[test]
fn only_the_kernel_is_a_custom_call() {
    let [with_loop, with_kernel] =
        [DecodeAttention::default(), DecodeAttention::Mosaic].map(|attention| Program::new(LLAMA_1B, attention).text);
    assert!(!with_loop.contains("custom_call"));
    assert!(with_kernel.contains("@tpu_custom_call"));
    let narrow = Layer { head_dim: 96, ..LLAMA_1B };
    assert!(!Program::new(narrow, DecodeAttention::Mosaic).text.contains("custom_call"), "there is no kernel for 96");
}
