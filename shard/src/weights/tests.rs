//! Checkpoints written on the spot: one file, several files, and everything that can be wrong with them.
//!
//! Every error must name the file, and the tensor if one is at fault.

use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;

use super::*;
use crate::graph::Partition;

fn write(path: &Path, tensors: &[(&str, Dtype, Vec<usize>)]) {
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, dtype, shape)| (0..shape.iter().product::<usize>() * dtype.bitsize() / 8).map(|i| i as u8).collect())
        .collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, dtype, shape), bytes)| (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn spec(name: &str, shape: &[usize]) -> WeightSpec {
    let (dtype, partition) = (DType::F32, Partition::Replicated);
    WeightSpec { name: name.to_owned(), shape: shape.to_vec(), dtype, partition, world_size: 1, num_copies: 1 }
}

fn open(directory: &Path) -> Result<Checkpoint, String> {
    let files = ModelFiles::open(directory.to_str().unwrap()).unwrap();
    Checkpoint::open(&files).map_err(|error| error.to_string())
}

#[test]
fn tensors_are_found_and_checked() {
    let directory = tempfile::tempdir().unwrap();
    let tensors = [("a", Dtype::BF16, vec![2, 3]), ("b", Dtype::F32, vec![4]), ("c", Dtype::I64, vec![1])];
    write(&directory.path().join(SINGLE_FILE), &tensors);
    let checkpoint = open(directory.path()).unwrap();
    assert_eq!(checkpoint.dtype().unwrap(), DType::Bf16);
    let a = checkpoint.part(&spec("a", &[2, 3]), 0).unwrap();
    assert_eq!((a.dtype, a.all().bytes.len()), (DType::Bf16, 12));
    assert_eq!(a.rows(1..2).bytes[..3], [6, 7, 8]);
    let message = |name: &str, shape: &[usize]| checkpoint.part(&spec(name, shape), 0).unwrap_err().to_string();
    assert_eq!(message("d", &[1]), "model.safetensors has no tensor d");
    assert_eq!(message("b", &[5]), "tensor b of model.safetensors has shape [4], config.json asks for [5]");
    assert_eq!(message("c", &[1]), "tensor c of model.safetensors is I64, supported are F32, F16 and BF16");
}

#[test]
fn a_rank_gets_its_part() {
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join(SINGLE_FILE), &[("a", Dtype::BF16, vec![3, 5])]);
    let checkpoint = open(directory.path()).unwrap();
    let parts = |partition: Partition, world_size: usize| {
        let spec = WeightSpec { partition, world_size, ..spec("a", &[3, 5]) };
        let part = |rank| {
            let part = checkpoint.part(&spec, rank).unwrap();
            let all = part.all().bytes.into_owned();
            let rows = |cut: usize| [part.rows(0..cut).bytes, part.rows(cut..spec.local_shape()[0]).bytes].concat();
            (0..=spec.local_shape()[0]).for_each(|cut| assert_eq!(rows(cut), all, "{partition:?} {rank} {cut}"));
            all
        };
        (0..world_size).map(part).collect::<Vec<_>>()
    };
    let whole: Vec<u8> = (0..30).collect();
    assert_eq!(parts(Partition::Replicated, 2), [whole.clone(), whole.clone()]);
    assert_eq!(parts(Partition::Column, 2), [whole[..20].to_vec(), [&whole[20..], &[0; 10]].concat()]);
    assert_eq!(parts(Partition::Vocab, 3), [&whole[..10], &whole[10..20], &whole[20..]]);
    let halves = parts(Partition::Row, 2);
    assert_eq!(halves[0], [&whole[..6], &whole[10..16], &whole[20..26]].concat());
    let rest = |row: usize| [whole[10 * row + 6..][..4].to_vec(), vec![0; 2]].concat();
    assert_eq!(halves[1], [rest(0), rest(1), rest(2)].concat());
}

#[test]
fn bytes_that_were_given_back_are_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let size = 1000;
    write(&directory.path().join(SINGLE_FILE), &[("a", Dtype::F32, vec![size, size])]);
    let checkpoint = open(directory.path()).unwrap();
    let spec = WeightSpec { partition: Partition::Row, world_size: 2, ..spec("a", &[size, size]) };
    let first = checkpoint.part(&spec, 1).unwrap().all().bytes.into_owned();
    assert!(first.iter().any(|byte| *byte > 0));
    assert_eq!(checkpoint.part(&spec, 1).unwrap().all().bytes, first);
    assert_eq!(first[..2000], checkpoint.part(&self::spec("a", &[size, size]), 0).unwrap().all().bytes[2000..4000]);
}

#[test]
fn an_index_names_several_files() {
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join("x-1.safetensors"), &[("a", Dtype::F16, vec![2])]);
    write(&directory.path().join("x-2.safetensors"), &[("b", Dtype::F16, vec![3])]);
    let index = r#"{"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}"#;
    fs::write(directory.path().join(INDEX_FILE), index).unwrap();
    let checkpoint = open(directory.path()).unwrap();
    assert_eq!(checkpoint.part(&spec("b", &[3]), 0).unwrap().all().bytes.len(), 6);
    fs::remove_file(directory.path().join("x-2.safetensors")).unwrap();
    let message = open(directory.path()).unwrap_err();
    assert!(message.starts_with("model.safetensors.index.json lists x-2.safetensors, which "), "{message}");
}

#[test]
fn bad_indices_are_errors() {
    let check = |json: &str, expected: &str| {
        let message = index::file_names(json.as_bytes()).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    };
    check("{", "is not JSON");
    check("{}", "has no object weight_map");
    check(r#"{"weight_map": {"a": "../b.safetensors"}}"#, "no plain file name for tensor a");
}

#[test]
fn a_file_cut_short_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(SINGLE_FILE);
    write(&path, &[("a", Dtype::F32, vec![100])]);
    let bytes = fs::read(&path).unwrap();
    for len in [0, 4, 20, bytes.len() - 1] {
        fs::write(&path, &bytes[..len]).unwrap();
        let message = open(directory.path()).unwrap_err();
        assert!(message.contains("model.safetensors"), "{len}: {message}");
    }
}

#[test]
fn a_directory_without_weights_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let message = open(directory.path()).unwrap_err();
    assert!(
        message.ends_with(
            "has neither model.safetensors nor model.safetensors.index.json; only safetensors checkpoints are supported"
        ),
        "{message}"
    );
}
