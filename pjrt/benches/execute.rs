//! One launch on eight devices, with as many arguments and outputs as a decoder like Llama-3.1-8B: 65 donated states,
//! 291 kept arrays, 68 outputs. Each is one float, and the program computes nothing. The fake plugin shows the cost of
//! the wrapper with little of a plugin; XLA-CPU, if `HILO_XLA_CPU_PLUGIN` has the path of its plugin, adds that of a
//! real one.
//!
//! ```text
//! cargo bench -p pjrt --features testing
//! ```

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use pjrt::testing::{Slice, SliceDevice, control};
use pjrt::{
    Argument, Buffer, Client, CompileOptions, Device, ElementType, ExecuteOptions, HostSlice, LoadedExecutable, Plugin,
    Value,
};

const NUM_DEVICES: i64 = 8;
const NUM_STATES: usize = 65;
const NUM_KEPT: usize = 291;
/// The outputs beside the states.
const NUM_RESULTS: usize = 3;

/// Returns a program that returns its states and some other arguments.
fn program() -> String {
    let parameter = |index: usize| {
        let alias = format!(" {{tf.aliasing_output = {index} : i32}}");
        format!("%arg{index}: tensor<1xf32>{}", if index < NUM_STATES { &alias } else { "" })
    };
    let parameters: Vec<String> = (0..NUM_STATES + NUM_KEPT).map(parameter).collect();
    let outputs: Vec<String> = (0..NUM_STATES + NUM_RESULTS).map(|index| format!("%arg{index}")).collect();
    let types = vec!["tensor<1xf32>"; outputs.len()].join(", ");
    format!(
        "module @decoder attributes {{mhlo.num_partitions = {NUM_DEVICES} : i32, mhlo.num_replicas = 1 : i32}} {{\n  \
         func.func public @main({}) -> ({types}) {{\n    return {} : {types}\n  }}\n}}",
        parameters.join(", "),
        outputs.join(", ")
    )
}

fn fake_client() -> Client {
    let device = |id| SliceDevice {
        id,
        process_index: 0,
        kind: "TPU v5 lite".to_owned(),
        coords: [i64::from(id), 0, 0],
        bytes_limit: None,
    };
    let devices = (0..NUM_DEVICES as i32).map(device).collect();
    control().set_slice(Slice { devices, ..Slice::default() });
    pjrt::testing::client()
}

fn xla_cpu_client() -> Option<Client> {
    let path = PathBuf::from(std::env::var_os("HILO_XLA_CPU_PLUGIN")?);
    let plugin = Plugin::open(&path).expect("the plugin opens");
    Some(Client::new(&plugin, &[("cpu_device_count", Value::I64(NUM_DEVICES))]).expect("a client"))
}

fn upload(device: &Device, num: usize) -> Vec<Buffer> {
    let host = HostSlice::new(ElementType::F32, &[1], &[0; 4]).expect("one float");
    (0..num).map(|_| device.client().upload(host, device).expect("an upload")).collect()
}

fn launch(program: &LoadedExecutable, states: Vec<Vec<Buffer>>, kept: &[Vec<Buffer>], options: &ExecuteOptions) {
    let donated = states.into_iter().map(|states| states.into_iter().map(Argument::Donate));
    let kept = kept.iter().map(|kept| kept.iter().map(Argument::Keep));
    let arguments = donated.zip(kept).map(|(donated, kept)| donated.chain(kept).collect()).collect();
    black_box(program.execute(arguments, options).expect("an execution"));
}

fn launches(criterion: &mut Criterion) {
    let clients = [("fake", Some(fake_client())), ("xla-cpu", xla_cpu_client())];
    let lean = ExecuteOptions { aliased: Some(0..NUM_STATES), ..ExecuteOptions::default() };
    let with_lists = ExecuteOptions { reports_end: true, ..ExecuteOptions::default() };
    for (name, client) in clients {
        let Some(client) = client else { continue };
        let ids: Vec<i64> = (0..NUM_DEVICES).collect();
        let program = client.compile(program().as_bytes(), &CompileOptions::partitioned(&ids)).expect("a program");
        let devices = program.addressable_devices();
        let kept: Vec<Vec<Buffer>> = devices.iter().map(|device| upload(device, NUM_KEPT)).collect();
        let mut group = criterion.benchmark_group(format!("launch/{name}"));
        for (what, options) in [("lists and events", &with_lists), ("neither", &lean)] {
            let states = || {
                control().clear_executions();
                devices.iter().map(|device| upload(device, NUM_STATES)).collect()
            };
            let run = |states| launch(&program, states, &kept, options);
            group.bench_function(what, |bencher| bencher.iter_batched(states, run, BatchSize::PerIteration));
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(5));
    targets = launches
}
criterion_main!(benches);
