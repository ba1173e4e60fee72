//! Tests of execution, executables and topologies with the fake plugin.

use std::sync::atomic::Ordering;

use super::upload;
use crate::testing::{Kind, Seen, Table, client, control};
use crate::{
    Argument, Buffer, Client, Code, CompileOptions, Download, Error, ExecuteOptions, LoadedExecutable, Topology,
};

fn compile(client: &Client, program: &str) -> LoadedExecutable {
    client.compile(program.as_bytes(), &CompileOptions::default()).expect("a fake program")
}

fn bytes(buffer: &Buffer) -> Vec<u8> {
    buffer.to_host().and_then(Download::wait).expect("the bytes")
}

#[test]
fn donated_buffers_are_destroyed_and_kept_ones_are_named() {
    let client = client();
    let program = compile(&client, "2 1");
    let kept = [upload(&client, 0, &[1, 2]), upload(&client, 1, &[3, 4])];
    let given = [upload(&client, 0, &[0, 0]), upload(&client, 1, &[0, 0])];
    let arguments = kept.iter().zip(given).map(|(kept, given)| vec![Argument::Keep(kept), Argument::Donate(given)]);
    let options = ExecuteOptions { launch_id: 7, reports_end: true, ..ExecuteOptions::default() };
    let execution = program.execute(arguments.collect(), &options).expect("an execution");
    let seen = Seen { launch_id: 7, kept: vec![0], num_args: 2, has_events: true, ..Seen::default() };
    assert_eq!(control().executions(), [seen]);
    assert_eq!(control().alive(Kind::Buffer), 4);
    assert_eq!(execution.done.len(), 2);
    let got: Vec<_> = execution.outputs.iter().flatten().map(|out| (out.device().id(), bytes(out))).collect();
    assert_eq!(got, [(0, vec![2, 3]), (1, vec![4, 5])]);
    assert_eq!(bytes(&kept[0]), [1, 2]);
    drop((execution, kept, program, client));
    control().assert_clean();
}

#[test]
fn a_position_that_one_device_keeps_is_not_donated() {
    let client = client();
    let program = compile(&client, "1 1");
    let kept = upload(&client, 0, &[1]);
    let arguments = vec![vec![Argument::Keep(&kept)], vec![Argument::Donate(upload(&client, 1, &[2]))]];
    program.execute(arguments, &ExecuteOptions::default()).expect("an execution");
    assert_eq!(control().executions()[0].kept, [0]);
    assert_eq!(control().alive(Kind::Buffer), 1);
}

#[test]
fn the_plugin_only_gets_lists_that_it_needs() {
    let client = client();
    let program = compile(&client, "3 1");
    let buffers = [0, 1].map(|device| [1, 2, 3].map(|byte| upload(&client, device, &[byte])));
    for (aliased, expected) in [(None, &[0, 1, 2][..]), (Some(0..1), &[0]), (Some(2..9), &[2]), (Some(0..0), &[])] {
        control().clear_executions();
        let arguments = buffers.iter().map(|list| list.iter().map(Argument::Keep).collect()).collect();
        let options = ExecuteOptions { aliased: aliased.clone(), ..ExecuteOptions::default() };
        let execution = program.execute(arguments, &options).expect("an execution");
        let seen = &control().executions()[0];
        assert_eq!((&seen.kept[..], seen.has_events, execution.done.len()), (expected, false, 0), "{aliased:?}");
    }
}

#[test]
fn arguments_that_do_not_fit_are_errors() {
    let client = client();
    let program = compile(&client, "1 1");
    let (a, b) = (upload(&client, 0, &[1]), upload(&client, 1, &[2]));
    let refused = |arguments, options: &ExecuteOptions| match program.execute(arguments, options) {
        Err(Error::Arguments(message)) => message,
        other => panic!("not refused: {other:?}"),
    };
    let all = ExecuteOptions::default();
    insta::assert_snapshot!(
        refused(vec![vec![Argument::Keep(&a)]], &all),
        @"there are 1 argument list(s) for 2 device(s); each device needs one list"
    );
    let missing = vec![vec![Argument::Keep(&a)], Vec::new()];
    insta::assert_snapshot!(refused(missing, &all), @"device 1 has 0 arguments; the program needs 1");
    let swapped = vec![vec![Argument::Keep(&b)], vec![Argument::Keep(&a)]];
    insta::assert_snapshot!(refused(swapped, &all), @"argument 0 is on device 1, but must be on device 0");
    let other = client_again();
    let foreign = upload(&other, 0, &[1]);
    let of_other = vec![vec![Argument::Keep(&foreign)], vec![Argument::Keep(&b)]];
    insta::assert_snapshot!(refused(of_other, &all), @"argument 0 belongs to another client than the program");
    let elsewhere = ExecuteOptions { device: Some(other.devices()[0].clone()), ..ExecuteOptions::default() };
    insta::assert_snapshot!(
        refused(vec![vec![Argument::Keep(&a)]], &elsewhere),
        @"the device to run on belongs to another client"
    );
    assert_eq!(control().executions(), []);
}

#[test]
fn an_older_plugin_counts_the_arguments_itself() {
    control().hides_parameters.store(true, Ordering::SeqCst);
    let client = client();
    let program = compile(&client, "2 1");
    let (a, b) = (upload(&client, 0, &[1]), upload(&client, 1, &[2]));
    let uneven = vec![vec![Argument::Keep(&a)], vec![Argument::Keep(&b), Argument::Keep(&b)]];
    assert!(matches!(program.execute(uneven, &ExecuteOptions::default()), Err(Error::Arguments(_))));
    let arguments = vec![vec![Argument::Keep(&a)], vec![Argument::Donate(b)]];
    let error = program.execute(arguments, &ExecuteOptions::default()).expect_err("one is missing");
    assert_eq!(error.code(), Some(Code::InvalidArgument));
    assert_eq!(control().alive(Kind::Buffer), 1, "donated buffers are destroyed even if the execution fails");
    drop((a, program, client));
    control().assert_clean();
}

#[test]
fn one_device_of_several_can_be_launched() {
    let client = client();
    let program = compile(&client, "1 2");
    let options = ExecuteOptions { device: Some(client.devices()[1].clone()), ..ExecuteOptions::default() };
    let arguments = vec![vec![Argument::Donate(upload(&client, 1, &[1]))]];
    let execution = program.execute(arguments, &options).expect("an execution");
    assert!(control().executions()[0].is_on_one_device);
    assert_eq!(execution.outputs[0].iter().map(|out| out.device().id()).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn everything_may_be_dropped_in_any_order() {
    for first in 0..4 {
        let client = client();
        let program = compile(&client, "1 1");
        let (a, b) = (upload(&client, 0, &[1]), upload(&client, 1, &[2]));
        let arguments = vec![vec![Argument::Keep(&a)], vec![Argument::Keep(&b)]];
        let execution = program.execute(arguments, &ExecuteOptions::default()).expect("an execution");
        let mut parts: [Option<Box<dyn std::any::Any>>; 4] =
            [Some(Box::new(client)), Some(Box::new(program)), Some(Box::new((a, b))), Some(Box::new(execution))];
        for index in (0..4).map(|step| (first + step) % 4) {
            parts[index] = None;
        }
        control().assert_clean();
    }
}

#[test]
fn programs_are_serialized_loaded_and_described() {
    let client = client();
    let program = compile(&client, "1 1");
    let executable = program.executable();
    let serialized = executable.serialize().expect("bytes");
    assert_eq!(client.load(&serialized, None).expect("the same").num_outputs(), 1);
    assert!(client.load(b"?", Some(&CompileOptions::default())).is_err());
    assert_eq!(executable.optimized_program().expect("a program"), ("fake".to_owned(), b"1 1".to_vec()));
    let stats = executable.memory_stats().expect("reported");
    assert_eq!((stats.alias_bytes, stats.peak_bytes), (8, None));
    assert_eq!(executable.fingerprint().expect("missing is none"), None);
    assert!(executable.cost_analysis().expect_err("missing").is_unimplemented());
    let error = client.compile(b"nonsense", &CompileOptions::default()).expect_err("nonsense");
    insta::assert_snapshot!(error, @"PJRT_Client_Compile: invalid argument: not a fake program");
    drop((program, client));
    control().assert_clean();
}

#[test]
fn topologies_compile_without_devices() {
    let plugin = Table::full().open().expect("a full table");
    let topology = Topology::new(&plugin, "any", &[]).expect("a topology");
    assert_eq!(topology.platform_name().expect("a name"), "fake");
    assert_eq!(topology.fingerprint(), Some(42));
    let devices = topology.device_descriptions().expect("devices");
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[1].coords(), Some(&[1, 0, 2][..]));
    let executable = topology.compile(b"3 4", &CompileOptions::default()).expect("a fake program");
    assert_eq!((executable.num_parameters(), executable.num_outputs().expect("reported")), (Some(3), 4));
    drop(topology);
    assert_eq!(executable.serialize().expect("bytes"), b"3 4");
    drop(executable);
    let client = client();
    let of_client = client.topology().expect("the client's");
    drop(client);
    assert_eq!(of_client.device_descriptions().expect("devices").len(), 2);
    drop(of_client);
    control().assert_clean();
}

#[test]
fn devices_tell_what_they_are() {
    let client = client();
    let device = &client.devices()[1];
    assert_eq!((device.id(), device.kind(), device.local_hardware_id()), (1, "fake device", Some(0)));
    assert_eq!(client.devices()[0].local_hardware_id(), None);
    assert_eq!(device.coords(), Some(vec![1, 0, 2]));
    assert!(device.is_addressable());
    let stats = device.memory_stats().expect("reported");
    assert_eq!((stats.bytes_in_use, stats.bytes_limit, stats.pool_bytes), (10, Some(100), None));
    assert!(device.poison_execution(1, Code::Aborted, "x").expect_err("missing").is_unimplemented());
    assert_eq!((client.platform_name(), client.platform_version(), client.process_index()), ("fake", "", 0));
}

/// Returns a second client. For tests in which a variable named `client` hides the function `client`.
fn client_again() -> Client {
    client()
}
