//! Tests of loading weights onto devices by several threads.

use std::sync::Mutex;

use backend::{LocalRanks, Membership};
use devices::plugins::testing::plugin_path;
use devices::xla_cpu;
use pjrt::testing::{Kind, control};
use pjrt::{Client, Device, Download};
use test_support::{join_scoped, until};

use super::fake::{checkpoint, slice, values};
use super::rig::Upload;
use super::text::model;
use super::*;
use crate::error::XlaError;
use crate::placement::ranked_devices;
use crate::platform::Platform;
use crate::weights::{Arrays, Loading, Source as Weights, arrays, upload};

/// Two devices of a client, each with its rank.
fn two_devices(client: &Client, device: devices::Device) -> Vec<(usize, Device)> {
    ranked_devices(client, device, LocalRanks::of_shard(0, 1, 2)).unwrap()
}

#[test]
fn every_device_has_every_weight() {
    if plugin_path(devices::Device::XLA_CPU).is_none() {
        return;
    }
    let platform = Platform::new(devices::Device::XLA_CPU, &xla_cpu::PLATFORM).with_devices(2);
    let client = platform.open(None).unwrap();
    let devices = two_devices(&client, devices::Device::XLA_CPU);
    // Parts that are copied from the file, that are converted, and that are quantized.
    let [plain, small] = [model(), model().quantized(Rounding::Int8)];
    for (graphs, stored) in [(&plain, FloatType::Bf16), (&plain, FloatType::F32), (&small, FloatType::Bf16)] {
        let directory = tempfile::tempdir().unwrap();
        let checkpoint = checkpoint(graphs, directory.path(), stored);
        let reports = Mutex::new(Vec::new());
        let mut progress = |done, total| reports.lock().unwrap().push((done, total));
        let source = Weights { graphs, checkpoint: &checkpoint };
        let uploaded = upload(source, &Membership::alone(), &client, &devices, &mut progress).unwrap();
        let specs = graphs.weights();
        for buffers in &uploaded {
            assert_eq!(buffers.len(), specs.iter().map(|spec| arrays(spec).len()).sum::<usize>());
            for spec in &specs {
                let expected = Upload::weight(spec, &values(spec));
                for ((name, ty), expected) in arrays(spec).into_iter().zip(expected) {
                    let buffer = buffers.get(buffers.index(&name));
                    let found = buffer.to_host().and_then(Download::wait).unwrap();
                    assert_eq!((buffer.dims(), found), (&ty.dims[..], expected.bytes), "{name}");
                }
            }
        }
        let reports = reports.into_inner().unwrap();
        assert!(reports.is_sorted(), "{reports:?}");
        assert_eq!(reports.last(), Some(&(specs.len() as u64, specs.len() as u64)));
    }
}

/// Calls `check` with an upload of the model's weights to two fake devices, on which copies stay pending until the test
/// ends them.
fn while_loading(budget_bytes: u64, check: impl FnOnce(Loading<'_>)) {
    control().set_slice(slice("TPU v5 lite", &[0; 2]));
    let client = pjrt::testing::client();
    let devices = two_devices(&client, devices::Device::TPU);
    let (graphs, directory) = (model(), tempfile::tempdir().unwrap());
    // Parts that are converted have memory of their own.
    let checkpoint = checkpoint(&graphs, directory.path(), FloatType::F32);
    control().defer();
    check(Loading::new((&checkpoint, &client), &graphs.weights(), &devices, budget_bytes));
}

#[test]
fn the_bytes_under_way_are_bounded() {
    // One copy at a time.
    while_loading(1, |loading| {
        std::thread::scope(|scope| {
            let loader = scope.spawn(|| loading.load_all(&mut |_, _| ()));
            // Nothing ends yet, so only the first copy may start, however long the threads have time.
            for _ in 0..100_000 {
                assert!(control().alive(Kind::Buffer) <= 1);
                std::thread::yield_now();
            }
            let mut num_ended = 0;
            until("the end of the loader", || {
                num_ended += isize::from(control().fire_oldest(None));
                let num_started = control().alive(Kind::Buffer);
                assert!(num_started <= num_ended + 1, "{num_started} copies have started, {num_ended} ended");
                loader.is_finished()
            });
            join_scoped(loader, "the loader").unwrap();
        });
        control().fire(None);
        let arrays = loading.finish().unwrap();
        assert_eq!(arrays.iter().map(Arrays::len).collect::<Vec<_>>(), [model().weights().len(); 2]);
    });
}

#[test]
fn an_upload_that_fails_ends_the_others() {
    while_loading(1, |loading| {
        std::thread::scope(|scope| {
            let loader = scope.spawn(|| loading.load_all(&mut |_, _| ()));
            until("the first copy", || control().alive(Kind::Buffer) > 0);
            control().fail("PJRT_Client_BufferFromHostBuffer", 8, "no memory");
            // Every thread waits for the end of the first copy.
            control().fire_oldest(None);
            let error = join_scoped(loader, "the loader").unwrap_err().to_string();
            assert!(error.starts_with("program or transfer \"upload of weight "), "{error}");
            assert!(
                error.ends_with("failed: PJRT_Client_BufferFromHostBuffer: resource exhausted: no memory"),
                "{error}"
            );
        });
    });
}

#[test]
fn a_copy_that_fails_later_names_its_weight() {
    while_loading(u64::MAX, |loading| {
        loading.load_all(&mut |_, _| ()).unwrap();
        control().fire(Some((8, "no memory")));
        let error = loading.finish().unwrap_err();
        let XlaError::Program { program, source } = error else { panic!("{error}") };
        let names: Vec<String> = model().weights().iter().map(|spec| spec.name.clone()).collect();
        assert!(names.iter().any(|name| program == format!("upload of weight {name}")), "{program}");
        assert_eq!(source.to_string(), "PJRT_Buffer_ReadyEvent: resource exhausted: no memory");
    });
}
