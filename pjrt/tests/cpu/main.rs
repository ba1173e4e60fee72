//! Tests of the wrapper with the XLA-CPU plugin, which `plugins` finds.

mod execution;
mod futures;
#[path = "../plugins/mod.rs"]
mod plugins;
mod programs;
mod transfers;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pjrt::{
    Argument, Buffer, Client, CompileOptions, Device, Download, ElementType, ExecuteOptions, HostSlice,
    LoadedExecutable, Plugin, Value,
};

const PLUGIN: plugins::Wanted = plugins::Wanted { variable: "HILO_XLA_CPU_PLUGIN", file_name: "xla_cpu_pjrt.so" };
/// The time limit for waiting, generous for slow machines.
const PATIENCE: Duration = Duration::from_secs(60);

fn plugin() -> Option<Arc<Plugin>> {
    let path = plugins::path(PLUGIN)?;
    Some(Plugin::open(&path).expect("the plugin opens"))
}

/// Returns a client with two devices, which all tests share. `None` without the plugin.
fn client() -> Option<Client> {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    let plugin = plugin()?;
    Some(CLIENT.get_or_init(|| new_client(&plugin)).clone())
}

fn new_client(plugin: &Arc<Plugin>) -> Client {
    Client::new(plugin, &[("cpu_device_count", Value::I64(2))]).expect("a client")
}

fn upload(device: &Device, element_type: ElementType, dims: &[usize], bytes: &[u8]) -> Buffer {
    let host = HostSlice::new(element_type, dims, bytes).expect("the right length");
    device.client().upload(host, device).expect("an upload")
}

fn upload_f32(device: &Device, values: &[f32]) -> Buffer {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    upload(device, ElementType::F32, &[values.len()], &bytes)
}

fn download(buffer: &Buffer) -> Vec<u8> {
    buffer.to_host().and_then(Download::wait).expect("the bytes")
}

fn download_f32(buffer: &Buffer) -> Vec<f32> {
    download(buffer).as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

fn run(program: &LoadedExecutable, arguments: Vec<Argument<'_>>) -> Vec<Buffer> {
    let options = ExecuteOptions { reports_end: true, ..ExecuteOptions::default() };
    let execution = program.execute(vec![arguments], &options).expect("an execution");
    test_support::watched("the end of an execution", || execution.done[0].wait()).expect("it ends well");
    execution.outputs.into_iter().next().expect("one device")
}

/// Compiles `a op b`. The output reuses the memory of `a`.
fn add(client: &Client, shape: &str, op: &str) -> LoadedExecutable {
    let text = format!(
        "module @add {{ func.func @main(%a: tensor<{shape}> {{tf.aliasing_output = 0 : i32}}, %b: tensor<{shape}>) \
         -> tensor<{shape}> {{ %0 = stablehlo.{op} %a, %b : tensor<{shape}> return %0 : tensor<{shape}> }} }}"
    );
    client.compile(text.as_bytes(), &CompileOptions::default()).expect("a program")
}

/// Compiles a program that takes a while, because it computes a matrix product 300 times.
fn slow(client: &Client) -> LoadedExecutable {
    let text = b"module @slow { func.func @main(%x: tensor<256x256xf32>) -> tensor<256x256xf32> {
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<256x256xf32>
          cond {
            %end = stablehlo.constant dense<300> : tensor<i32>
            %c = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %c : tensor<i1>
          } do {
            %one = stablehlo.constant dense<1> : tensor<i32>
            %j = stablehlo.add %i, %one : tensor<i32>
            %p = stablehlo.dot_general %y, %x, contracting_dims = [1] x [0]
              : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
            stablehlo.return %j, %p : tensor<i32>, tensor<256x256xf32>
          }
        return %r#1 : tensor<256x256xf32> } }";
    client.compile(text, &CompileOptions::default()).expect("a program")
}

fn identity_matrix(device: &Device) -> Buffer {
    let value = |index: usize| if index.is_multiple_of(257) { 1.0_f32 } else { 0.0 };
    let bytes: Vec<u8> = (0..256 * 256).flat_map(|index| value(index).to_le_bytes()).collect();
    upload(device, ElementType::F32, &[256, 256], &bytes)
}
