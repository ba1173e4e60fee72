//! Tests with the fake plugin of [`pjrt::testing`]: clients of devices that this machine lacks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend::{Backend, Batch, LocalRanks, Membership, MemoryPlan, ModelGraphs, RowSampler, StateLayout};
use devices::tpu;
use model::graph::Quantization;
use model::sampling::BatchSampler;
use model::weights::Checkpoint;
use model_files::ModelFiles;
use pjrt::Topology;
use pjrt::testing::{Slice, SliceDevice, control, plugin};
use proto::SamplingParams;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::rig::float_bytes;
use super::text::model_with;
use super::*;
use crate::ahead::AheadOfTime;
use crate::error::XlaError;
use crate::platform::Platform;
use crate::weights::Source;
use crate::{XlaBackend, XlaOptions};

const GIB: i64 = 1 << 30;
/// A layout with which the decoding programs of [`model`] have larger chunks on one kind of TPU than on another.
const LAYOUT: StateLayout =
    StateLayout { num_slots: 128, num_blocks: 8, max_total_tokens: 512, max_batch_prefill_tokens: 64 };

/// The hosts of a slice of 4 x 4 chips, each with 2 x 2 of them: the process of each device.
const FOUR_HOSTS: [i32; 16] = [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3];

/// Returns the graphs of a small model with wide heads.
pub(super) fn model() -> ModelGraphs {
    model_with(1024)
}

/// Returns the platform `tpu`.
pub(super) fn tpu_platform() -> Platform {
    Platform::new(devices::Device::TPU, &tpu::PLATFORM)
}

/// Returns a slice of TPUs of this kind: the device at index `i` of `processes` has the id `i`, its own chip, and
/// belongs to the process `processes[i]`. The plugin lists the devices by process, as libtpu does. The client belongs
/// to process 0.
pub(super) fn slice(kind: &str, processes: &[i32]) -> Slice {
    let device = |(id, process_index): (i32, &i32)| SliceDevice {
        id,
        process_index: *process_index,
        kind: kind.to_owned(),
        coords: [i64::from(id), 0, 0],
        bytes_limit: None,
    };
    let mut devices: Vec<SliceDevice> = (0..).zip(processes).map(device).collect();
    devices.sort_by_key(|device| device.process_index);
    let attributes = vec![("device_memory_bytes_limit".to_owned(), pjrt::Value::I64(16 * GIB))];
    Slice { platform: "tpu".to_owned(), devices, process_index: 0, attributes }
}

/// Returns the values of a weight in [`checkpoint`], which are exact in bf16.
pub(super) fn values(spec: &WeightSpec) -> Vec<f32> {
    let seed = spec.name.bytes().map(usize::from).sum::<usize>();
    let value = |index: usize| ((index * 37 + seed) % 64) as f32 / 32.0 - 1.0;
    (0..spec.shape.iter().product()).map(value).collect()
}

/// Writes a checkpoint with the weights of `graphs`, stored as `dtype`, and opens it.
pub(super) fn checkpoint(graphs: &ModelGraphs, directory: &Path, dtype: FloatType) -> Checkpoint {
    let specs = graphs.weights();
    let bytes: Vec<Vec<u8>> = specs.iter().map(|spec| float_bytes(&values(spec), dtype)).collect();
    let stored = if dtype == FloatType::F32 { Dtype::F32 } else { Dtype::BF16 };
    let views = specs.iter().zip(&bytes);
    let views =
        views.map(|(spec, bytes)| (spec.name.clone(), TensorView::new(stored, spec.shape.clone(), bytes).unwrap()));
    std::fs::write(directory.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let files = ModelFiles::open(directory.to_str().unwrap()).unwrap();
    Checkpoint::open(&files, Quantization::None).unwrap()
}

/// Loads [`model`] onto the fake client that [`control`] describes.
pub(super) fn backend(
    platform: Platform,
    ranks: LocalRanks,
    program_cache: Option<PathBuf>,
) -> Result<XlaBackend, XlaError> {
    let directory = tempfile::tempdir().unwrap();
    let graphs = model();
    let checkpoint = checkpoint(&graphs, directory.path(), FloatType::Bf16);
    let platform = platform.with_devices(ranks.num_local);
    let client = platform.client(&plugin())?;
    let options = XlaOptions { ranks, membership: Membership::alone(), plugin_path: None, program_cache };
    let source = Source { graphs: &graphs, checkpoint: &checkpoint };
    XlaBackend::on_client(platform, client, options, source, &mut |_, _| ())
}

fn ranks(num_local: usize, num_ranks: usize) -> LocalRanks {
    LocalRanks { first: 0, num_local, num_ranks }
}

/// Returns the programs that a process of `slice` compiles, sorted, with the ids of their devices. `folder` is the
/// cache of programs.
fn programs_of_client(slice: &Slice, folder: &Path) -> Vec<String> {
    control().set_slice(slice.clone());
    let num_local = slice.devices.iter().filter(|device| device.process_index == slice.process_index).count();
    let num_ranks = slice.devices.len();
    let compiled = control().programs().len();
    let mut backend = backend(tpu_platform(), ranks(num_local, num_ranks), Some(folder.to_owned())).unwrap();
    let assignment: Vec<i64> = (0..num_ranks as i64).collect();
    backend.allocate(LAYOUT, &assignment, &mut |_, _, _| ()).unwrap();
    let mut programs = control().programs().split_off(compiled);
    programs.sort_unstable();
    programs
}

/// As [`programs_of_client`], but ahead of time, for the slice as a topology.
fn programs_of_topology(slice: &Slice, folder: &Path) -> Vec<String> {
    control().set_slice(slice.clone());
    let compiled = control().programs().len();
    let ahead = AheadOfTime::of_topology(tpu_platform(), &plugin(), "any", &[]).unwrap();
    let programs = ahead.programs(&model(), LAYOUT).unwrap();
    let compiler = ahead.compiler(Some(folder.to_owned())).unwrap();
    let topology = Topology::new(&plugin(), "any", &[]).unwrap();
    compiler.compile_ahead(&topology, &programs, &mut |_, _, _| ()).unwrap();
    let mut programs = control().programs().split_off(compiled);
    programs.sort_unstable();
    programs
}

/// The decoding programs of one kind need other chunks than those of the other, so the test fails if a client does not
/// look at its kind.
#[test]
fn a_client_has_the_programs_of_its_topology() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [first, second] = ["TPU v5 lite", "TPU7x"].map(|kind| {
        let slice = slice(kind, &[0; 8]);
        let ahead = programs_of_topology(&slice, folders[0].path());
        assert!(ahead.len() > 5);
        assert_eq!(programs_of_client(&slice, folders[1].path()), ahead, "{kind}");
        ahead
    });
    assert!(first != second, "both kinds have the same programs");
}

/// Neither the numbers of the processes nor the order of the devices changes the keys of programs.
#[test]
fn every_process_of_a_slice_finds_the_programs_of_its_topology() {
    let folder = tempfile::tempdir().unwrap();
    let compiled = programs_of_topology(&slice("TPU v5 lite", &[0; 16]), folder.path());
    assert!(compiled[0].starts_with("[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]"));
    for process_index in 0..4 {
        for renumbered in [FOUR_HOSTS, FOUR_HOSTS.map(|process| 3 - process)] {
            let slice = Slice { process_index, ..slice("TPU v5 lite", &renumbered) };
            assert_eq!(programs_of_client(&slice, folder.path()), Vec::<String>::new(), "{slice:?}");
        }
    }
}

#[test]
fn ranks_follow_the_ids_of_devices() {
    control().set_slice(Slice { process_index: 1, ..slice("TPU v5 lite", &FOUR_HOSTS) });
    let backend = backend(tpu_platform(), ranks(4, 16), None).unwrap();
    let places: Vec<(usize, i64)> = backend.devices().iter().map(|place| (place.rank, place.id)).collect();
    assert_eq!(places, [(2, 2), (3, 3), (6, 6), (7, 7)]);
}

#[test]
fn memory_is_that_of_the_topology_and_never_that_of_the_host() {
    let weights_bytes = model().weights_bytes();
    let plan = |slice: Slice| {
        let num_devices = slice.devices.len();
        control().set_slice(slice);
        backend(tpu_platform(), ranks(num_devices, num_devices), None).unwrap().memory()
    };
    let of_device = |bytes: i64| MemoryPlan::of_device(bytes as u64, weights_bytes);
    let silent = slice("TPU v5 lite", &[0; 4]);
    assert_eq!(plan(silent.clone()).unwrap(), of_device(16 * GIB));
    let error = plan(Slice { attributes: Vec::new(), ..silent.clone() }).unwrap_err().to_string();
    assert!(error.contains("the plugin does not report the memory of its devices"), "{error}");
    let with_limit = |bytes_limit| {
        let mut slice = silent.clone();
        slice.devices[2].bytes_limit = Some(bytes_limit);
        slice
    };
    assert_eq!(plan(with_limit(17 * GIB)).unwrap(), of_device(16 * GIB));
    assert_eq!(plan(with_limit(10 * GIB)).unwrap(), of_device(10 * GIB), "the device with the least memory");
    assert_eq!(plan(Slice { attributes: Vec::new(), ..with_limit(9 * GIB) }).unwrap(), of_device(9 * GIB));
    // Two devices on each chip, with the kind that reports the memory of the chip for each device, and with another.
    for (kind, bytes) in [("TPU v5", 8 * GIB), ("TPU7x", 16 * GIB)] {
        let mut slice = slice(kind, &[0; 4]);
        slice.devices.iter_mut().for_each(|device| device.coords[0] /= 2);
        assert_eq!(plan(slice).unwrap(), of_device(bytes), "{kind}");
    }
}

#[test]
fn a_client_for_gpus_opens_only_those_that_it_uses() {
    for num_devices in [1, 2] {
        control().set_slice(slice("NVIDIA H100", &vec![0; num_devices]));
        let cuda = Platform::new(devices::Device::CUDA, devices::Device::CUDA.platform().unwrap());
        backend(cuda, ranks(num_devices, num_devices), None).unwrap();
        let indices = (0..num_devices as i64).collect();
        let expected = ("visible_devices".to_owned(), pjrt::Value::I64List(indices));
        assert!(control().client_options().contains(&expected), "{:?}", control().client_options());
    }
}

/// The devices do nothing, so all numbers of the reply are zero.
#[test]
fn a_step_is_launched_on_fake_devices() {
    control().set_slice(slice("TPU v5 lite", &[0; 2]));
    let mut backend = backend(tpu_platform(), ranks(2, 2), None).unwrap();
    let layout = StateLayout { num_slots: 2, num_blocks: 4, max_total_tokens: 32, max_batch_prefill_tokens: 32 };
    backend.allocate(layout, &[0, 1], &mut |_, _, _| ()).unwrap();
    control().clear_executions();
    let params = Arc::new(SamplingParams::greedy());
    let graph = BatchSampler::of(&params).graph(10).unwrap();
    let sampler = RowSampler { params, graph, eos_token_ids: Arc::default() };
    let mut batch = Batch::default();
    let row = batch.push_row(0, 0, &[1, 2, 3], &[0]);
    batch.push_sampled(row, 3, &sampler);
    let output = pollster::block_on(backend.launch(&batch).unwrap()).unwrap();
    assert_eq!((output.tokens.len(), output.tokens[0].token_id), (1, 0));
    let programs: Vec<String> = control().executions().into_iter().map(|seen| seen.program).collect();
    assert_eq!(programs, ["prefill_1x32", "sample_1_greedy"]);
    // The weights are not listed, because no result takes over their memory; and nobody waits for the end of a launch.
    assert!(control().executions().iter().all(|seen| seen.kept.is_empty() && !seen.has_events));
}

/// The second step is launched while the host still waits for the report of the first.
#[test]
fn the_next_step_is_launched_before_the_report_of_the_last() {
    control().set_slice(slice("TPU v5 lite", &[0; 2]));
    let mut backend = backend(tpu_platform(), ranks(2, 2), None).unwrap();
    let layout = StateLayout { num_slots: 2, num_blocks: 4, max_total_tokens: 32, max_batch_prefill_tokens: 32 };
    backend.allocate(layout, &[0, 1], &mut |_, _, _| ()).unwrap();
    control().clear_executions();
    control().hold_downloads();
    let params = Arc::new(SamplingParams::greedy());
    let graph = BatchSampler::of(&params).graph(10).unwrap();
    let sampler = RowSampler { params, graph, eos_token_ids: Arc::default() };
    let mut launch = |position: usize, tokens: &[i32]| {
        let mut batch = Batch::default();
        let row = batch.push_row(0, position, tokens, &[0]);
        batch.push_sampled(row, 3, &sampler);
        backend.launch(&batch).unwrap()
    };
    let mut first = launch(0, &[1, 2, 3]);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending());
    let second = launch(3, &[backend::SAMPLED_TOKEN]);
    let programs: Vec<String> = control().executions().into_iter().map(|seen| seen.program).collect();
    assert_eq!(programs, ["prefill_1x32", "sample_1_greedy", "decode_2", "sample_2_greedy"]);
    assert!(first.as_mut().poll(&mut context).is_pending());
    control().fire_oldest(None);
    control().fire_oldest(None);
    assert_eq!(pollster::block_on(first).unwrap().tokens.len(), 1);
    assert_eq!(pollster::block_on(second).unwrap().tokens.len(), 1);
}
