//! Tests with checkpoints that each test writes itself: one file, several files, and malformed files.
//!
//! The tests of errors check that the message names the file or the tensor at fault.

use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;

use super::*;
use crate::graph::{Partition, Section, Source, Stride};

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
    let (dtype, partition) = (FloatType::F32, Partition::Replicated);
    let (name, shape, source) = (name.to_owned(), shape.to_vec(), Source::Whole);
    WeightSpec { name, shape, dtype, partition, num_ranks: 1, num_copies: 1, source, rounding: None }
}

/// Returns the part of each rank, and checks that it does not depend on the rows that are read together.
fn parts(checkpoint: &Checkpoint, spec: &WeightSpec) -> Vec<Vec<u8>> {
    let part = |rank| {
        let part = checkpoint.part(spec, rank).unwrap();
        let all = part.all().bytes.into_owned();
        let rows = |cut: usize| [part.rows(0..cut).bytes, part.rows(cut..spec.local_shape()[0]).bytes].concat();
        (0..=spec.local_shape()[0]).for_each(|cut| assert_eq!(rows(cut), all, "{spec:?} {rank} {cut}"));
        all
    };
    (0..spec.num_ranks).map(part).collect()
}

fn open(directory: &Path) -> Result<Checkpoint, String> {
    open_quantized(directory, Quantization::None)
}

fn open_quantized(directory: &Path, quantization: Quantization) -> Result<Checkpoint, String> {
    let files = ModelFiles::open(directory.to_str().unwrap()).unwrap();
    Checkpoint::open(&files, quantization).map_err(|error| error.to_string())
}

#[test]
fn tensors_are_found_and_checked() {
    let directory = tempfile::tempdir().unwrap();
    let tensors = [("a", Dtype::BF16, vec![2, 3]), ("b", Dtype::F32, vec![4]), ("c", Dtype::I64, vec![1])];
    write(&directory.path().join(SINGLE_FILE), &tensors);
    let checkpoint = open(directory.path()).unwrap();
    assert_eq!(checkpoint.dtype(), FloatType::Bf16);
    let a = checkpoint.part(&spec("a", &[2, 3]), 0).unwrap();
    assert_eq!((a.dtype, a.all().bytes.len()), (FloatType::Bf16, 12));
    assert_eq!(a.rows(1..2).bytes[..3], [6, 7, 8]);
    let message = |name: &str, shape: &[usize]| checkpoint.part(&spec(name, shape), 0).unwrap_err().to_string();
    insta::assert_snapshot!(message("d", &[1]), @"model.safetensors has no tensor d");
    insta::assert_snapshot!(
        message("b", &[5]),
        @"tensor b of model.safetensors has shape [4], but the configuration of the model requires [5]"
    );
    insta::assert_snapshot!(
        message("c", &[1]),
        @"tensor c of model.safetensors is I64; only F32, F16 and BF16 are supported"
    );
}

#[test]
fn a_rank_gets_its_part() {
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join(SINGLE_FILE), &[("a", Dtype::BF16, vec![3, 5])]);
    let checkpoint = open(directory.path()).unwrap();
    let parts = |partition: Partition, num_ranks: usize| {
        parts(&checkpoint, &WeightSpec { partition, num_ranks, ..spec("a", &[3, 5]) })
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
fn sections_are_rows_of_every_group() {
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join(SINGLE_FILE), &[("a", Dtype::BF16, vec![8, 2])]);
    let checkpoint = open(directory.path()).unwrap();
    // The tensor has two groups of four rows. The section is the second and third row of each group. A row has four
    // bytes.
    let section = Section { num_groups: 2, group_rows: 4, first: 1 };
    let source = Source::Section { tensor: "a".to_owned(), section };
    let section = |partition, num_ranks| {
        let spec = WeightSpec { partition, num_ranks, source: source.clone(), ..spec("a.part", &[4, 2]) };
        parts(&checkpoint, &spec)
    };
    let run = |first: u8, len: u8| (first..first + len).collect::<Vec<u8>>();
    assert_eq!(section(Partition::Replicated, 1), [[run(4, 8), run(20, 8)].concat()]);
    assert_eq!(section(Partition::Column, 2), [run(4, 8), run(20, 8)]);
    assert_eq!(section(Partition::Column, 3), [run(4, 8), run(20, 8), vec![0; 8]]);
    assert_eq!(section(Partition::Row, 2)[1], [6, 10, 22, 26].map(|first| run(first, 2)).concat());
    let missing = WeightSpec { source: source.clone(), ..spec("a.part", &[6, 2]) };
    let message = checkpoint.part(&WeightSpec { shape: vec![4, 3], ..missing }, 0).unwrap_err().to_string();
    insta::assert_snapshot!(
        message,
        @"tensor a of model.safetensors has shape [8, 2], but the configuration of the model requires [8, 3]"
    );
}

#[test]
fn sections_of_stacks_are_matrices_of_every_group() {
    let directory = tempfile::tempdir().unwrap();
    // Three experts with two matrices [2, 1] each. A matrix has four bytes.
    write(&directory.path().join(SINGLE_FILE), &[("a", Dtype::BF16, vec![3, 4, 1])]);
    let checkpoint = open(directory.path()).unwrap();
    let second = |num_ranks| {
        let section = Section { num_groups: 3, group_rows: 2, first: 1 };
        let source = Source::Section { tensor: "a".to_owned(), section };
        let spec = WeightSpec { partition: Partition::Column, num_ranks, source, ..spec("a.part", &[3, 2, 1]) };
        parts(&checkpoint, &spec)
    };
    let matrix = |first: u8| (first..first + 4).collect::<Vec<u8>>();
    assert_eq!(second(1), [[matrix(4), matrix(12), matrix(20)].concat()]);
    assert_eq!(second(2), [[matrix(4), matrix(12)].concat(), [matrix(20), vec![0; 4]].concat()]);
}

#[test]
fn columns_become_rows() {
    let directory = tempfile::tempdir().unwrap();
    // The tensor is [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]. Element n has the two bytes 2n and 2n + 1.
    write(&directory.path().join(SINGLE_FILE), &[("a", Dtype::BF16, vec![3, 4])]);
    let checkpoint = open(directory.path()).unwrap();
    let elements = |indices: &[u8]| indices.iter().flat_map(|n| [2 * n, 2 * n + 1]).collect::<Vec<u8>>();
    let whole = Source::Transposed { tensor: "a".to_owned(), section: None };
    let transposed = |partition, num_ranks, shape: &[usize], source: &Source| {
        parts(&checkpoint, &WeightSpec { partition, num_ranks, source: source.clone(), ..spec("b", shape) })
    };
    let rows = [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]];
    assert_eq!(transposed(Partition::Replicated, 1, &[4, 3], &whole), [elements(rows.as_flattened())]);
    let halves = transposed(Partition::Column, 2, &[4, 3], &whole);
    assert_eq!(halves, [elements(rows[..2].as_flattened()), elements(rows[2..].as_flattened())]);
    let inputs = transposed(Partition::Row, 2, &[4, 3], &whole);
    assert_eq!(inputs[0], elements(&[0, 4, 1, 5, 2, 6, 3, 7]));
    assert_eq!(inputs[1][..8], [16, 17, 0, 0, 18, 19, 0, 0]);
    let section = Some(Section { num_groups: 1, group_rows: 4, first: 1 });
    let middle = Source::Transposed { tensor: "a".to_owned(), section };
    assert_eq!(transposed(Partition::Replicated, 1, &[2, 3], &middle), [elements(rows[1..3].as_flattened())]);
}

#[test]
fn tensors_that_no_weight_is_read_from_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let names = [
        "model.a.weight",
        "model.a.bias",
        "model.b.qweight",
        "model.b.scales",
        "model.c_blocks",
        "d.weight",
        "lm_head.weight",
        "lm_head.bias",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.1.e.weight",
    ];
    let tensors: Vec<_> = names.iter().map(|name| (*name, Dtype::BF16, vec![1, 1])).collect();
    write(&directory.path().join(SINGLE_FILE), &tensors);
    let specs = ["model.a.weight", "model.b.weight", "model.c", "model.d.weight"].map(|name| spec(name, &[1, 1]));
    let quantized = open_quantized(directory.path(), Quantization::Awq).unwrap();
    assert_eq!(quantized.unread(&specs), ["lm_head.bias", "model.a.bias", "model.layers.1.e.weight"]);
    // Without a quantization_config nothing reads the parts of quantized matrices.
    let parts = ["model.b.qweight", "model.b.scales", "model.c_blocks"];
    let expected = [&["lm_head.bias", "model.a.bias"][..], &parts, &["model.layers.1.e.weight"]].concat();
    assert_eq!(open(directory.path()).unwrap().unread(&specs), expected);
}

#[test]
fn rows_of_each_head_become_matrices() {
    let directory = tempfile::tempdir().unwrap();
    // Each of the two heads has five rows of two elements. Element n has the two bytes 2n and 2n + 1.
    write(&directory.path().join(SINGLE_FILE), &[("a", Dtype::BF16, vec![10, 2])]);
    let checkpoint = open(directory.path()).unwrap();
    let elements = |indices: &[u8]| indices.iter().flat_map(|n| [2 * n, 2 * n + 1]).collect::<Vec<u8>>();
    let heads = |shape: &[usize], first, is_transposed, num_ranks| {
        let section = Section { num_groups: 2, group_rows: 5, first };
        let source = Source::Heads { tensor: "a".to_owned(), section, is_transposed };
        parts(&checkpoint, &WeightSpec { partition: Partition::Column, num_ranks, source, ..spec("b", shape) })
    };
    assert_eq!(heads(&[2, 3, 2], 2, false, 1), [elements(&[4, 5, 6, 7, 8, 9, 14, 15, 16, 17, 18, 19])]);
    assert_eq!(heads(&[2, 3, 2], 2, false, 2)[1], elements(&[14, 15, 16, 17, 18, 19]));
    assert_eq!(heads(&[2, 2, 3], 0, true, 1), [elements(&[0, 2, 4, 1, 3, 5, 10, 12, 14, 11, 13, 15])]);
    assert_eq!(heads(&[2, 2, 3], 0, true, 3)[2], [0; 12]);
}

#[test]
fn columns_of_all_experts_become_matrices() {
    let directory = tempfile::tempdir().unwrap();
    // Expert 0 is [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], the other two follow.
    let tensors = [("a", Dtype::BF16, vec![3, 3, 4]), ("a_bias", Dtype::BF16, vec![3, 4])];
    write(&directory.path().join(SINGLE_FILE), &tensors);
    let checkpoint = open(directory.path()).unwrap();
    let elements = |indices: &[u8]| indices.iter().flat_map(|n| [2 * n, 2 * n + 1]).collect::<Vec<u8>>();
    let columns = |tensor: &str, shape: &[usize], num_ranks, columns| {
        let source = Source::Columns { tensor: tensor.to_owned(), columns };
        parts(&checkpoint, &WeightSpec { partition: Partition::Column, num_ranks, source, ..spec("b", shape) })
    };
    let odd = Stride { first: 1, step: 2, parts: 2 };
    let expert = |first: u8| elements(&[1, 5, 9, 3, 7, 11].map(|n| first + n));
    let zeros = vec![0; 12];
    let halves = columns("a", &[3, 2, 3], 2, odd);
    assert_eq!(halves, [[expert(0), expert(12)].concat(), [expert(24), zeros].concat()]);
    let all = Stride { first: 0, step: 1, parts: 1 };
    let whole = columns("a", &[3, 4, 3], 1, all);
    assert_eq!(whole[0][..24], elements(&[0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]));
    assert_eq!(columns("a_bias", &[3, 2], 1, odd), [elements(&[1, 3, 5, 7, 9, 11])]);
    let even = Stride { first: 0, step: 2, parts: 2 };
    assert_eq!(columns("a_bias", &[3, 2], 2, even)[1], [elements(&[8, 10]), vec![0; 4]].concat());
}

#[test]
fn tensors_are_stacked() {
    let directory = tempfile::tempdir().unwrap();
    let tensors = [("a.0", Dtype::BF16, vec![1, 2]), ("a.1", Dtype::BF16, vec![1, 2]), ("b", Dtype::F32, vec![1, 2])];
    write(&directory.path().join(SINGLE_FILE), &tensors);
    let checkpoint = open(directory.path()).unwrap();
    let stack = |names: &[&str], partition, num_ranks| {
        let source = Source::Stack(names.iter().map(|name| (*name).to_owned()).collect());
        WeightSpec { partition, num_ranks, source, ..spec("a", &[names.len(), 1, 2]) }
    };
    let names = ["a.1", "a.0", "a.1"];
    assert_eq!(parts(&checkpoint, &stack(&names, Partition::Replicated, 1)), [[0, 1, 2, 3].repeat(3)]);
    let halves = parts(&checkpoint, &stack(&names, Partition::Column, 2));
    assert_eq!(halves, [[0, 1, 2, 3].repeat(2), [0, 1, 2, 3, 0, 0, 0, 0].to_vec()]);
    let mixed = checkpoint.part(&stack(&["a.0", "b"], Partition::Replicated, 1), 0).unwrap_err().to_string();
    let expected = "tensor b is float32 and a.0 is bfloat16; tensors that form one weight must have one type";
    assert_eq!(mixed, expected);
}

#[test]
fn tensors_of_the_model_without_its_head_are_found() {
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join(SINGLE_FILE), &[("layers.0.a", Dtype::F32, vec![2])]);
    let checkpoint = open(directory.path()).unwrap();
    assert_eq!(checkpoint.part(&spec("model.layers.0.a", &[2]), 0).unwrap().all().bytes.len(), 8);
    let message = checkpoint.part(&spec("model.layers.0.b", &[2]), 0).unwrap_err().to_string();
    insta::assert_snapshot!(message, @"model.safetensors has no tensor model.layers.0.b");
}

#[test]
fn bytes_that_were_given_back_are_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let size = 1000;
    write(&directory.path().join(SINGLE_FILE), &[("a", Dtype::F32, vec![size, size])]);
    let checkpoint = open(directory.path()).unwrap();
    let spec = WeightSpec { partition: Partition::Row, num_ranks: 2, ..spec("a", &[size, size]) };
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
            "has neither model.safetensors nor model.safetensors.index.json; pass a checkpoint in safetensors, or the \
             path of a GGUF file"
        ),
        "{message}"
    );
}

#[test]
fn the_text_of_a_composite_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let tensor = |name| (name, Dtype::F32, vec![2]);
    let names = [
        "language_model.lm_head.weight",
        "language_model.model.norm.weight",
        "model.language_model.embed_tokens.weight",
        "vision_tower.norm.weight",
        "model.vision_tower.norm.bias",
        "multi_modal_projector.linear",
    ];
    let towers = ["vision_tower", "multi_modal_projector"];
    let path = directory.path().join(SINGLE_FILE);
    write(&path, &names.map(tensor));
    let checkpoint = open(directory.path()).unwrap().into_text(&towers).unwrap();
    assert!(checkpoint.has_head());
    for name in ["lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"] {
        assert!(checkpoint.part(&spec(name, &[2]), 0).is_ok(), "{name}");
    }
    assert!(checkpoint.part(&spec("vision_tower.norm.weight", &[2]), 0).is_err());
    let left_out = |part, num_tensors| LeftOut { part, num_tensors, num_bytes: 8 * num_tensors };
    assert_eq!(checkpoint.left_out(), [left_out("multi_modal_projector", 1), left_out("vision_tower", 2)]);

    for name in ["audio_tower.norm", "vision_tower2.norm", "model.norms.weight", "language_model2.norm"] {
        write(&path, &["lm_head.weight", name].map(tensor));
        let message = open(directory.path()).unwrap().into_text(&towers).unwrap_err().to_string();
        let expected = "of model.safetensors belongs neither to the text model nor to a part that is left out by name \
                        (vision_tower, multi_modal_projector)";
        assert_eq!(message, format!("tensor {name} {expected}"));
    }
    let of_text = ["lm_head.weight", "model.embed_tokens.weight", "model.layers.0.norm.weight", "model.norm.weight"];
    write(&path, &[&of_text.map(tensor)[..], &[tensor("vision_tower.norm.weight")]].concat());
    let checkpoint = open(directory.path()).unwrap().into_text(&towers).unwrap();
    for name in of_text {
        assert!(checkpoint.part(&spec(name, &[2]), 0).is_ok(), "{name}");
    }
    write(&path, &["lm_head.weight", "language_model.lm_head.weight"].map(tensor));
    let message = open(directory.path()).unwrap().into_text(&towers).unwrap_err().to_string();
    insta::assert_snapshot!(message, @"tensor lm_head.weight is both in model.safetensors and in model.safetensors");
    write(&path, &[tensor("model.language_model.norm.weight")]);
    let checkpoint = open(directory.path()).unwrap().into_text(&towers).unwrap();
    assert!(!checkpoint.has_head());
    // Messages name tensors as the files do.
    let message = |name, shape| checkpoint.part(&spec(name, shape), 0).unwrap_err().to_string();
    insta::assert_snapshot!(
        message("model.embed_tokens.weight", &[2]),
        @"model.safetensors has no tensor model.language_model.embed_tokens.weight"
    );
    insta::assert_snapshot!(message("lm_head.weight", &[2]), @"model.safetensors has no tensor lm_head.weight");
    insta::assert_snapshot!(
        message("model.norm.weight", &[3]),
        @"tensor model.language_model.norm.weight of model.safetensors has shape [2], but the configuration of the model requires [3]"
    );
}
