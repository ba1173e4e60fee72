//! Modules of real compilers, whose reads and collectives were also counted by hand. The tests need the plugins of TPUs
//! and of XLA-CPU, but no TPU.
//!
//! libtpu reads its environment once, so each test with libtpu runs its body in a child process with the environment
//! set.

use std::sync::Arc;

use devices::Device;
use devices::plugins::testing::{self, plugin_path};
use pjrt::{Client, CompileOptions, Plugin, Topology, Value};
use prost::Message as _;

use super::super::{Assumed, Collectives, HloModule, proto};

/// `c + a b`; the result takes over the memory of `c`.
const MATMUL: &str = "module @matmul { func.func @main(%a: tensor<256x512xbf16>, %b: tensor<512x128xbf16>,
      %c: tensor<256x128xf32> {tf.aliasing_output = 0 : i32}) -> tensor<256x128xf32> {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<256x512xbf16>, tensor<512x128xbf16>) -> tensor<256x128xf32>
    %1 = stablehlo.add %0, %c : tensor<256x128xf32>
    return %1 : tensor<256x128xf32> } }";
/// Bytes of the arguments of [`MATMUL`].
const MATMUL_BYTES: u64 = 256 * 512 * 2 + 512 * 128 * 2 + 256 * 128 * 4;

/// Rows of int8 times a matrix of int8, with f32 results.
const INT8_MATMUL: &str = "module @int8_matmul { func.func @main(%x: tensor<64x512xi8>, %w: tensor<256x512xi8>,
      %scale: tensor<256xf32>) -> tensor<64x256xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<64x512xi8>, tensor<256x512xi8>) -> tensor<64x256xi32>
    %1 = stablehlo.convert %0 : (tensor<64x256xi32>) -> tensor<64x256xf32>
    %2 = stablehlo.broadcast_in_dim %scale, dims = [1] : (tensor<256xf32>) -> tensor<64x256xf32>
    %3 = stablehlo.multiply %1, %2 : tensor<64x256xf32>
    return %3 : tensor<64x256xf32> } }";
/// Bytes of the arguments of [`INT8_MATMUL`].
const INT8_MATMUL_BYTES: u64 = 64 * 512 + 256 * 512 + 256 * 4;
/// `PrimitiveType` of int8.
const S8: i32 = 2;

/// Gathers 4 blocks of a cache in each of `n` iterations, and returns the sum over the iterations.
const GATHER_LOOP: &str = "module @gather_loop { func.func @main(%cache: tensor<1024x16x128xbf16>,
      %blocks: tensor<64x4xi32>, %n: tensor<i32>) -> tensor<4x16x128xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %zeros = stablehlo.constant dense<0.0> : tensor<4x16x128xf32>
    %r:2 = stablehlo.while(%i = %zero, %sum = %zeros) : tensor<i32>, tensor<4x16x128xf32>
    cond {
      %go = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %chunk = stablehlo.dynamic_slice %blocks, %i, %zero, sizes = [1, 4]
        : (tensor<64x4xi32>, tensor<i32>, tensor<i32>) -> tensor<1x4xi32>
      %ids = stablehlo.reshape %chunk : (tensor<1x4xi32>) -> tensor<4x1xi32>
      %taken = \"stablehlo.gather\"(%cache, %ids) <{dimension_numbers = #stablehlo.gather<offset_dims = [1, 2],
        collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 16, 128>}>
        : (tensor<1024x16x128xbf16>, tensor<4x1xi32>) -> tensor<4x16x128xbf16>
      %wide = stablehlo.convert %taken : (tensor<4x16x128xbf16>) -> tensor<4x16x128xf32>
      %next = stablehlo.add %sum, %wide : tensor<4x16x128xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %j, %next : tensor<i32>, tensor<4x16x128xf32>
    }
    return %r#1 : tensor<4x16x128xf32> } }";

/// Replaces 8 rows of a cache.
const SCATTER: &str =
    "module @scatter { func.func @main(%cache: tensor<1024x16x128xbf16> {tf.aliasing_output = 0 : i32},
      %places: tensor<8x2xi32>, %rows: tensor<8x128xbf16>) -> tensor<1024x16x128xbf16> {
    %0 = \"stablehlo.scatter\"(%cache, %places, %rows) <{scatter_dimension_numbers = #stablehlo.scatter<
      update_window_dims = [1], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1],
      index_vector_dim = 1>, unique_indices = true}> ({
      ^bb0(%old: tensor<bf16>, %new: tensor<bf16>): stablehlo.return %new : tensor<bf16>
    }) : (tensor<1024x16x128xbf16>, tensor<8x2xi32>, tensor<8x128xbf16>) -> tensor<1024x16x128xbf16>
    return %0 : tensor<1024x16x128xbf16> } }";

/// One all-gather, and an all-reduce in each of 12 iterations.
const COLLECTIVES: &str =
    "module @collectives attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<16x256xf32>, %w: tensor<256x256xf32>) -> tensor<64x256xf32> {
    %0 = \"stablehlo.all_gather\"(%x) {all_gather_dim = 0 : i64, use_global_device_ids,
        replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>}
      : (tensor<16x256xf32>) -> tensor<64x256xf32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %r:3 = stablehlo.while(%i = %zero, %y = %0, %v = %w) : tensor<i32>, tensor<64x256xf32>, tensor<256x256xf32>
    cond {
      %n = stablehlo.constant dense<12> : tensor<i32>
      %go = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %d = stablehlo.dot_general %y, %v, contracting_dims = [1] x [0]
        : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
      %s = \"stablehlo.all_reduce\"(%d) ({
          ^bb0(%p: tensor<f32>, %q: tensor<f32>):
            %t = stablehlo.add %p, %q : tensor<f32>
            stablehlo.return %t : tensor<f32>
        }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids,
            channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>}
        : (tensor<64x256xf32>) -> tensor<64x256xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %j, %s, %v : tensor<i32>, tensor<64x256xf32>, tensor<256x256xf32>
    }
    return %r#1 : tensor<64x256xf32> } }";

/// Opens the plugin of `device`, or returns `None` if it is not on this machine. Panics if the plugin is missing and
/// `HILO_REQUIRE_PLUGINS=1` is set.
fn open(device: Device) -> Option<Arc<Plugin>> {
    plugin_path(device).map(|path| Plugin::open(&path).expect("the plugin opens"))
}

/// Runs `body` in a child process that runs this one test.
fn with_libtpu(test: &str, body: impl FnOnce(&Arc<Plugin>)) {
    testing::with_libtpu(module_path!(), test, |path| body(&Plugin::open(path).expect("the plugin opens")));
}

/// Compiles `text` for `topology` on the devices `ids`, and returns the format and the bytes of the optimised module.
fn optimised(plugin: &Arc<Plugin>, topology: &str, ids: &[i64], text: &str) -> (String, Vec<u8>) {
    let topology = Topology::new(plugin, topology, &[]).expect("a topology");
    let executable = topology.compile(text.as_bytes(), &CompileOptions::partitioned(ids)).expect("a program");
    executable.optimized_program().expect("a module")
}

fn compiled(plugin: &Arc<Plugin>, topology: &str, ids: &[i64], text: &str) -> HloModule {
    let (format, bytes) = optimised(plugin, topology, ids, text);
    HloModule::parse(&format, &bytes).expect("readable")
}

/// Returns the element types of the two factors of each product, including those inside fusions.
fn factor_types(module: &proto::Module) -> Vec<[i32; 2]> {
    let mut types = Vec::new();
    for computation in &module.computations {
        let of = |id: &i64| {
            let factor = computation.instructions.iter().find(|instruction| instruction.id == *id);
            factor.and_then(|factor| factor.shape.as_ref()).map_or(0, |shape| shape.element_type)
        };
        let is_product = |opcode: &str| ["convolution", "dot"].contains(&opcode);
        let products = computation.instructions.iter().filter(|instruction| is_product(&instruction.opcode));
        types.extend(products.map(|product| [of(&product.operand_ids[0]), of(&product.operand_ids[1])]));
    }
    types
}

#[test]
fn a_matmul_reads_its_arguments() {
    with_libtpu("a_matmul_reads_its_arguments", |plugin| {
        let module = compiled(plugin, "v5e:1x1", &[0], MATMUL);
        assert_eq!(module.reads(Assumed::ONCE), MATMUL_BYTES);
        assert_eq!(module.collectives(), Collectives::default());
    });
}

/// The product has integer factors: the compiler must not convert them to floats first.
#[test]
fn integers_are_read_and_multiplied_as_integers() {
    with_libtpu("integers_are_read_and_multiplied_as_integers", |plugin| {
        for topology in ["v5e:1x1", "v6e:1x1"] {
            let (format, bytes) = optimised(plugin, topology, &[0], INT8_MATMUL);
            assert_eq!(
                HloModule::parse(&format, &bytes).expect("readable").reads(Assumed::ONCE),
                INT8_MATMUL_BYTES,
                "{topology}"
            );
            let module = proto::ModuleWithConfig::decode(bytes.as_slice()).expect("a module");
            assert_eq!(factor_types(&module.hlo_module.unwrap_or_default()), [[S8; 2]], "{topology}");
        }
    });
}

#[test]
fn a_loop_reads_the_blocks_it_gathers() {
    with_libtpu("a_loop_reads_the_blocks_it_gathers", |plugin| {
        let module = compiled(plugin, "v5e:1x1", &[0], GATHER_LOOP);
        let [none, one, ten] = [0, 1, 10].map(|trips| module.reads(Assumed { trips_up: trips, ..Assumed::ONCE }));
        assert_eq!(ten - none, 10 * (one - none));
        // The table of blocks is read whole, 4 rows padded to 128 lanes; the other bytes are counters.
        let (blocks, table) = (4 * 16 * 128 * 2, 4 * 128 * 4);
        assert!((blocks + table..blocks + table + 100).contains(&(one - none)), "{none} {one}");
        assert!(none < 100, "{none}");
    });
}

#[test]
fn a_scatter_in_place_reads_its_updates() {
    with_libtpu("a_scatter_in_place_reads_its_updates", |plugin| {
        let module = compiled(plugin, "v5e:1x1", &[0], SCATTER);
        // The reads are the rows, the rows that they replace, and the indices, 2 rows padded to 128 lanes.
        assert_eq!(module.reads(Assumed::ONCE), 2 * 8 * 128 * 2 + 2 * 128 * 4);
    });
}

#[test]
fn collectives_of_a_slice_are_counted() {
    with_libtpu("collectives_of_a_slice_are_counted", |plugin| {
        let counts = compiled(plugin, "v5e:2x2", &[0, 1, 2, 3], COLLECTIVES).collectives();
        assert_eq!(counts, Collectives { all_reduce: 12, all_gather: 1, ..Collectives::default() });
    });
}

#[test]
fn modules_of_xla_cpu_are_read() {
    let Some(plugin) = open(Device::XLA_CPU) else { return };
    let client = Client::new(&plugin, &[("cpu_device_count", Value::I64(4))]).expect("a client");
    let compiled = |ids: &[i64], text: &str| {
        let loaded = client.compile(text.as_bytes(), &CompileOptions::partitioned(ids)).expect("a program");
        let (format, bytes) = loaded.executable().optimized_program().expect("a module");
        HloModule::parse(&format, &bytes).expect("readable")
    };
    // The compiler may write the product to memory, from which the addition reads it.
    let reads = compiled(&[0], MATMUL).reads(Assumed::ONCE);
    assert!((MATMUL_BYTES..=MATMUL_BYTES + 256 * 128 * 4).contains(&reads), "{reads}");
    let counts = compiled(&[0, 1, 2, 3], COLLECTIVES).collectives();
    assert_eq!(counts, Collectives { all_reduce: 12, all_gather: 1, ..Collectives::default() });
}
