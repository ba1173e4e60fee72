//! Tests of donation, of execution on several devices, and of execution on several threads.

use pjrt::{Argument, CompileOptions, Device, ExecuteOptions};
use test_support::{join, watched};

use super::{add, client, download_f32, run, upload_f32};

#[test]
fn donated_memory_is_reused_and_kept_memory_is_not() {
    let Some(client) = client() else { return };
    let device = &client.addressable_devices()[0];
    let program = add(&client, "4xf32", "add");
    let stats = program.executable().memory_stats().expect("reported");
    assert_eq!((stats.argument_bytes, stats.output_bytes, stats.alias_bytes), (32, 16, 16));
    let (a, b) = (upload_f32(device, &[1.0; 4]), upload_f32(device, &[2.0; 4]));
    let kept = run(&program, vec![Argument::Keep(&a), Argument::Keep(&b)]);
    assert_eq!(download_f32(&a), [1.0; 4]);
    assert_eq!(download_f32(&kept[0]), [3.0; 4]);
    // The program's only alias is argument 0.
    let options = ExecuteOptions { aliased: Some(0..1), ..ExecuteOptions::default() };
    let arguments = vec![vec![Argument::Keep(&a), Argument::Keep(&b)]];
    let execution = program.execute(arguments, &options).expect("an execution");
    assert_eq!((download_f32(&execution.outputs[0][0]), download_f32(&a)), (vec![3.0; 4], vec![1.0; 4]));
    let mut state = a;
    for step in 0..5_u8 {
        let mut outputs = run(&program, vec![Argument::Donate(state), Argument::Keep(&b)]);
        state = outputs.swap_remove(0);
        assert_eq!(download_f32(&state), [3.0 + 2.0 * f32::from(step); 4]);
    }
    let pending = state.to_host().expect("a download");
    drop(run(&program, vec![Argument::Donate(state), Argument::Keep(&b)]));
    let bytes = watched("a download", || pending.wait()).expect("started before");
    assert_eq!(bytes, 11.0_f32.to_le_bytes().repeat(4));
}

#[test]
fn two_devices_reduce_in_one_program() {
    let Some(client) = client() else { return };
    let text = b"module @sum attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
        func.func @main(%x: tensor<2xf32>, %own: tensor<1xf32>) -> (tensor<2xf32>, tensor<1xf32>) {
          %0 = \"stablehlo.all_reduce\"(%x) ({
            ^bb0(%a: tensor<f32>, %b: tensor<f32>):
              %s = stablehlo.add %a, %b : tensor<f32>
              stablehlo.return %s : tensor<f32>
          }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids,
              channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>} : (tensor<2xf32>) -> tensor<2xf32>
          return %0, %own : tensor<2xf32>, tensor<1xf32> } }";
    for ids in [[0, 1], [1, 0]] {
        let program = client.compile(text, &CompileOptions::partitioned(&ids)).expect("a program");
        let executable = program.executable();
        assert_eq!((executable.num_replicas().unwrap(), executable.num_partitions().unwrap()), (1, 2));
        let devices = program.addressable_devices();
        assert_eq!(devices.iter().map(Device::id).collect::<Vec<_>>(), ids);
        for step in 1..=3_i16 {
            let own = |device: &Device| if device.id() == 0 { 5.0 } else { 6.0 };
            let share = |device: &Device| {
                let (shared, own) = (upload_f32(device, &[f32::from(step), 10.0]), upload_f32(device, &[own(device)]));
                vec![Argument::Donate(shared), Argument::Donate(own)]
            };
            let options = ExecuteOptions { launch_id: step.into(), reports_end: true, ..ExecuteOptions::default() };
            let execution = program.execute(devices.iter().map(share).collect(), &options).expect("an execution");
            assert_eq!(execution.done.len(), 2);
            execution
                .done
                .iter()
                .for_each(|done| watched("the end of an execution", || done.wait()).expect("it ends well"));
            for (outputs, device) in execution.outputs.iter().zip(devices) {
                assert_eq!(download_f32(&outputs[0]), [2.0 * f32::from(step), 20.0]);
                assert_eq!(download_f32(&outputs[1]), [own(device)]);
                assert_eq!(outputs[0].device(), device);
            }
        }
    }
}

#[test]
fn a_portable_executable_runs_where_it_is_told() {
    let Some(client) = client() else { return };
    let text = b"module @neg { func.func @main(%x: tensor<1xf32>) -> tensor<1xf32> {
        %0 = stablehlo.negate %x : tensor<1xf32> return %0 : tensor<1xf32> } }";
    let options = CompileOptions { compile_portable_executable: true, ..CompileOptions::default() };
    let program = client.compile(text, &options).expect("a program");
    for device in client.addressable_devices() {
        let x = upload_f32(&device, &[1.5]);
        let options = ExecuteOptions { device: Some(device.clone()), ..ExecuteOptions::default() };
        let execution = program.execute(vec![vec![Argument::Keep(&x)]], &options).expect("an execution");
        assert_eq!(download_f32(&execution.outputs[0][0]), [-1.5]);
        assert_eq!(execution.outputs[0][0].device(), &device);
    }
}

#[test]
fn two_threads_compile_and_run_at_once() {
    let Some(client) = client() else { return };
    let work = |(device, shape): (Device, &'static str)| {
        let client = client.clone();
        std::thread::spawn(move || {
            let options = CompileOptions::partitioned(&[device.id()]);
            let text = format!(
                "module {{ func.func @main(%x: tensor<{shape}>) -> tensor<{shape}> {{ \
                 %0 = stablehlo.add %x, %x : tensor<{shape}> return %0 : tensor<{shape}> }} }}"
            );
            let program = client.compile(text.as_bytes(), &options).expect("a program");
            let x = upload_f32(&device, &[4.0; 4]);
            for _ in 0..20 {
                assert_eq!(download_f32(&run(&program, vec![Argument::Keep(&x)])[0]), [8.0; 4]);
            }
        })
    };
    let threads: Vec<_> = client.addressable_devices().into_iter().zip(["4xf32"; 2]).map(work).collect();
    threads.into_iter().for_each(|thread| join(thread, "a thread that runs a program"));
}
