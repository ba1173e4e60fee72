//! Tests of the wrapper with libtpu on a machine without a TPU: topologies and compilation. They need libtpu, which
//! `plugins` finds.
//!
//! libtpu reads its environment only once, so each test runs its body in a child process with the variables in
//! `ENVIRONMENT`.

mod plugins;

use std::process::Command;
use std::sync::Arc;

use pjrt::{
    Client, CompileOptions, EffortLevel, ElementType, Error, Executable, ExtensionKind, OptionValue, Plugin, Topology,
    Value,
};

const PLUGIN: plugins::Wanted = plugins::Wanted { variable: "HILO_TPU_PLUGIN", file_name: "libtpu.so" };
/// The environment variable that is set in the child processes.
const CHILD: &str = "PJRT_TEST_CHILD";
/// Environment variables that keep libtpu quiet and quick on a machine without a TPU.
const ENVIRONMENT: [(&str, &str); 5] = [
    ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
    ("TPU_SKIP_MDS_QUERY", "1"),
    ("TPU_LOG_DIR", "disabled"),
    ("TPU_ACCELERATOR_TYPE", "v5litepod-4"),
    ("TPU_WORKER_HOSTNAMES", "localhost"),
];

/// Runs `body` with the opened plugin in a child process, which runs only the test `test`. Returns what the child
/// printed. Without libtpu, `body` does not run, and `None` is returned, as in the child.
fn with_plugin(test: &str, body: impl FnOnce(&Arc<Plugin>)) -> Option<String> {
    let path = plugins::path(PLUGIN)?;
    if std::env::var_os(CHILD).is_some() {
        body(&Plugin::open(&path).expect("the plugin opens"));
        return None;
    }
    let executable = std::env::current_exe().expect("this test has a path");
    let arguments = [test, "--exact", "--nocapture"];
    let child = test_support::output(Command::new(executable).args(arguments).env(CHILD, "1").envs(ENVIRONMENT));
    let [stdout, stderr] = [&child.stdout, &child.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(child.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("1 passed"), "the child ran no test: {stdout}");
    assert_eq!(stderr, "", "libtpu is not quiet");
    Some(stdout.into_owned())
}

fn topology(plugin: &Arc<Plugin>, name: &str) -> Topology {
    Topology::new(plugin, name, &[]).expect("a topology")
}

/// A sum over eight devices.
const ALL_REDUCE_OF_8: &[u8] = b"module @sum attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
    func.func @main(%x: tensor<8x128xf32>) -> tensor<8x128xf32> {
      %0 = \"stablehlo.all_reduce\"(%x) ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %s = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %s : tensor<f32>
      }) {replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids,
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>}
        : (tensor<8x128xf32>) -> tensor<8x128xf32>
      return %0 : tensor<8x128xf32> } }";

/// Compiles `c + a b`, where `a b` is a matrix product. The output reuses the memory of `c`.
fn matmul(topology: &Topology, options: &CompileOptions) -> Result<Executable, Error> {
    let text = b"module @mm { func.func @main(%a: tensor<256x512xbf16>, %b: tensor<512x128xbf16>,
        %c: tensor<256x128xf32> {tf.aliasing_output = 0 : i32}) -> tensor<256x128xf32> {
          %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
            : (tensor<256x512xbf16>, tensor<512x128xbf16>) -> tensor<256x128xf32>
          %1 = stablehlo.add %0, %c : tensor<256x128xf32>
          return %1 : tensor<256x128xf32> } }";
    topology.compile(text, options)
}

#[test]
fn topologies_tell_their_devices() {
    with_plugin("topologies_tell_their_devices", |plugin| {
        assert!(plugin.api_version() >= (0, 90));
        assert!(plugin.extensions().contains(&ExtensionKind::TpuTopology));
        let topology = topology(plugin, "v5e:2x2");
        assert_eq!(topology.platform_name().expect("reported"), "tpu");
        assert!(topology.platform_version().expect("reported").contains("TPU"));
        let devices = topology.device_descriptions().expect("reported");
        let coords: Vec<_> = devices.iter().map(|device| device.coords().expect("reported").to_vec()).collect();
        assert_eq!(coords, [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]]);
        assert!(devices.iter().all(|device| device.kind == "TPU v5 lite"));
        let attributes = topology.attributes().expect("reported");
        let memory = attributes.iter().find(|(name, _)| name == "device_memory_bytes_limit").map(|(_, value)| value);
        assert!(memory.and_then(Value::as_i64).is_some_and(|bytes| bytes > 15 << 30), "{attributes:?}");
        assert_eq!(topology.default_layout(ElementType::Bf16, &[256, 512]).unwrap().to_string(), "{1,0:T(8,128)(2,1)}");
        let other = Topology::new(plugin, "v5e:2x4", &[("num_slices", Value::I64(1))]).expect("a topology");
        assert_ne!(topology.fingerprint().expect("reported"), other.fingerprint().expect("reported"));
        assert_ne!(topology.serialize().expect("reported"), other.serialize().expect("reported"));
        let error = Topology::new(plugin, "v5e:1x3", &[]).expect_err("no such slice");
        assert!(error.to_string().contains("v5e:1x3"), "{error}");
    });
}

#[test]
fn programs_compile_without_a_device() {
    with_plugin("programs_compile_without_a_device", |plugin| {
        let topology = topology(plugin, "v5e:2x2");
        let executable = matmul(&topology, &CompileOptions::partitioned(&[0])).expect("a program");
        drop(topology);
        let stats = executable.memory_stats().expect("reported");
        assert_eq!((stats.argument_bytes, stats.output_bytes, stats.alias_bytes), (524_288, 131_072, 131_072));
        assert!(stats.peak_bytes.is_some_and(|bytes| bytes >= stats.argument_bytes));
        assert!(stats.generated_code_bytes > 0 && executable.size_of_generated_code().expect("reported") > 0);
        let cost = executable.cost_analysis().expect("reported");
        let flops = cost.iter().find(|(name, _)| name == "flops");
        assert!(matches!(flops, Some((_, Value::F32(flops))) if *flops > 2.0 * 256.0 * 512.0 * 128.0), "{cost:?}");
        let shapes = executable.outputs().expect("reported");
        assert_eq!(shapes.iter().map(ToString::to_string).collect::<Vec<_>>(), ["256x128xf32"]);
        assert_eq!((executable.name().expect("reported").as_str(), executable.num_parameters()), ("mm", Some(3)));
        assert!(executable.serialize().expect("bytes").len() > 1000);
        let (format, bytes) = executable.optimized_program().expect("reported");
        assert!(format.starts_with("hlo") && !bytes.is_empty());
        assert!(executable.fingerprint().expect("reported").is_some());
    });
}

#[test]
fn partitioned_programs_and_options_compile() {
    with_plugin("partitioned_programs_and_options_compile", |plugin| {
        let topology = topology(plugin, "v5e:2x2");
        let text = b"module @sum attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
            func.func @main(%x: tensor<8x128xf32>) -> tensor<8x128xf32> {
              %0 = \"stablehlo.all_reduce\"(%x) ({
                ^bb0(%a: tensor<f32>, %b: tensor<f32>):
                  %s = stablehlo.add %a, %b : tensor<f32>
                  stablehlo.return %s : tensor<f32>
              }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids,
                  channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>}
                : (tensor<8x128xf32>) -> tensor<8x128xf32>
              return %0 : tensor<8x128xf32> } }";
        let options = CompileOptions::partitioned(&[0, 1, 2, 3]);
        let executable = topology.compile(text, &options).expect("a program");
        assert_eq!(
            (executable.num_replicas().expect("reported"), executable.num_partitions().expect("reported")),
            (1, 4)
        );
        let quick = CompileOptions { optimization_level: Some(EffortLevel::O1), ..CompileOptions::partitioned(&[0]) };
        assert!(matmul(&topology, &quick).is_ok());
        let with_flag = |name: &str, value| CompileOptions {
            env_option_overrides: [(name.to_owned(), value)].into(),
            ..CompileOptions::partitioned(&[0])
        };
        let known = with_flag("xla_tpu_scoped_vmem_limit_kib", OptionValue::I64(32_768));
        assert!(matmul(&topology, &known).is_ok());
        let error =
            matmul(&topology, &with_flag("xla_tpu_no_such_flag", OptionValue::Bool(true))).expect_err("unknown");
        assert!(error.to_string().contains("xla_tpu_no_such_flag"), "{error}");
    });
}

#[test]
fn a_missing_tpu_and_a_broken_program_are_errors() {
    with_plugin("a_missing_tpu_and_a_broken_program_are_errors", |plugin| {
        let error = Client::new(plugin, &[]).expect_err("no TPU");
        assert!(matches!(error, Error::Pjrt { function: "PJRT_Client_Create", .. }), "{error}");
        let error = topology(plugin, "v5e:2x2").compile(b"module {", &CompileOptions::partitioned(&[0]));
        assert!(matches!(error.expect_err("cut off"), Error::Pjrt { function: "PJRT_Compile", .. }));
    });
}

/// A program that is compiled ahead of time serves every host of a slice, whether one process drives all chips of the
/// host or each chip has its own.
#[test]
fn hosts_of_a_slice_do_not_change_its_executables() {
    with_plugin("hosts_of_a_slice_do_not_change_its_executables", |plugin| {
        let compile = |name: &str, hosts: [i64; 3]| {
            let options = [("chips_per_host_bounds", Value::I64List(hosts.to_vec())), ("num_slices", Value::I64(1))];
            let topology = Topology::new(plugin, name, &options).expect("a topology");
            let executable = topology.compile(ALL_REDUCE_OF_8, &CompileOptions::partitioned(&[0, 1, 2, 3, 4, 5, 6, 7]));
            let executable = executable.expect("a program");
            let fingerprint = executable.fingerprint().expect("reported").expect("libtpu has fingerprints");
            (topology.fingerprint().expect("reported"), fingerprint)
        };
        let [(by_chip, first), (by_four, second), (whole, third)] =
            [[1, 1, 1], [2, 2, 1], [2, 4, 1]].map(|hosts| compile("v5e:2x4", hosts));
        assert!(first == second && second == third, "{first:?}, {second:?}, {third:?}");
        assert!(by_chip != by_four && by_four != whole, "the hosts were not taken into account");
    });
}

/// Each host may compile a program on its own, because every process gets the same bytes.
#[test]
fn two_processes_compile_the_same_bytes() {
    let compile = || {
        with_plugin("two_processes_compile_the_same_bytes", |plugin| {
            let executable = matmul(&topology(plugin, "v6e:1x1"), &CompileOptions::partitioned(&[0]));
            let bytes = executable.expect("a program").serialize().expect("bytes");
            let hash = bytes.iter().fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte)));
            println!("compiled {} bytes: {hash}", bytes.len());
        })
    };
    let (Some(first), Some(second)) = (compile(), compile()) else { return };
    let compiled = |output: &str| output.lines().find(|line| line.contains("compiled")).map(str::to_owned);
    assert!(compiled(&first).is_some(), "{first}");
    assert_eq!(compiled(&first), compiled(&second));
}
