//! Tests of parsing: from bytes to a module, and from layouts to sizes in bytes.

use prost::Message as _;

use super::super::{Assumed, HloModule, proto, shape};
use super::{
    BF16, F32, S4, TUPLE, VMEM, array, calling, computation, f32s, in_memory, instruction, module_proto, tuple,
};

fn copy_of_parameter() -> proto::Module {
    let instructions = vec![super::parameter(7, 0, f32s(256)), instruction(8, "copy", f32s(256), &[7])];
    module_proto(vec![computation(3, instructions)])
}

#[test]
fn both_formats_are_read() {
    let module = copy_of_parameter();
    let parsed = HloModule::parse("hlo", &module.encode_to_vec()).unwrap();
    assert_eq!(parsed.reads(Assumed::default()), 1024);
    let bytes = proto::ModuleWithConfig { hlo_module: Some(module) }.encode_to_vec();
    assert_eq!(HloModule::parse("hlo_with_config", &bytes).unwrap().reads(Assumed::default()), 1024);
}

#[test]
fn faults_of_a_module_are_named() {
    let error = |format: &str, bytes: &[u8]| HloModule::parse(format, bytes).unwrap_err().to_string();
    insta::assert_snapshot!(
        error("mlir", b"module {}"),
        @r#"optimised program is in format "mlir"; only hlo and hlo_with_config can be read"#
    );
    insta::assert_snapshot!(error("hlo", &[0xff]), @"optimised program is not a serialized HLO module");
    insta::assert_snapshot!(
        error("hlo", &[]),
        @"optimised program has no computation 0, which the module's entry names"
    );

    let mut module = copy_of_parameter();
    module.computations[0].instructions.swap(0, 1);
    let text = error("hlo", &module.encode_to_vec());
    insta::assert_snapshot!(text, @"computation computation.3 has no instruction 7 before copy.8, which names it");

    let mut module = copy_of_parameter();
    let copy = module.computations[0].instructions.pop().unwrap();
    module.computations[0].instructions.push(calling(copy, &[3]));
    let text = error("hlo", &module.encode_to_vec());
    insta::assert_snapshot!(text, @"optimised program has no computation 3, which copy.8 names");
}

/// Returns `shape` with a layout of these tiles, and its dimensions in the order `minor_to_major`.
fn laid_out(shape: proto::Shape, minor_to_major: &[i64], tiles: &[&[i64]]) -> proto::Shape {
    let tile = |dimensions: &&[i64]| proto::Tile { dimensions: dimensions.to_vec() };
    let tiles = tiles.iter().map(tile).collect();
    let layout = proto::Layout { minor_to_major: minor_to_major.to_vec(), tiles, ..proto::Layout::default() };
    proto::Shape { layout: Some(layout), ..shape }
}

#[test]
fn tiles_pad() {
    let bytes = |shape| shape::arrays(&shape)[0].bytes;
    let tiles: [&[i64]; 2] = [&[8, 128], &[2, 1]];
    assert_eq!(bytes(laid_out(array(BF16, &[3, 9, 130]), &[2, 1, 0], &tiles)), 3 * 16 * 256 * 2);
    assert_eq!(bytes(laid_out(array(BF16, &[3, 9, 130]), &[0, 2, 1], &tiles)), 9 * 136 * 128 * 2);
    assert_eq!(bytes(laid_out(f32s(100), &[0], &[&[1024]])), 4096);
    assert_eq!(bytes(laid_out(array(F32, &[]), &[], &[&[128]])), 4);
    assert_eq!(bytes(array(F32, &[3, 5])), 60);
    assert_eq!(bytes(array(F32, &[0, 5])), 0);
}

#[test]
fn packed_elements_are_shorter() {
    let s4 = array(S4, &[64]);
    assert_eq!(shape::arrays(&s4)[0].bytes, 64);
    let layout = proto::Layout { element_size_in_bits: 4, ..proto::Layout::default() };
    assert_eq!(shape::arrays(&proto::Shape { layout: Some(layout), ..s4 })[0].bytes, 32);
}

#[test]
fn tuples_are_flat() {
    let shape = tuple(vec![f32s(1), tuple(vec![in_memory(VMEM, f32s(2)), f32s(3)])]);
    let arrays: Vec<_> = shape::arrays(&shape).iter().map(|array| (array.bytes, array.in_main_memory)).collect();
    assert_eq!(arrays, [(4, true), (8, false), (12, true)]);
    assert!(shape::is_tuple(&proto::Shape { element_type: TUPLE, ..proto::Shape::default() }));
    assert!(!shape::is_tuple(&f32s(1)));
}
