//! Tests with modules written by hand, and with modules of real compilers.
//!
//! Entry points: [`module`], [`computation`] and [`instruction`], with which the tests write modules, and the functions
//! that return shapes.

mod collectives;
mod compiled;
mod cycles;
mod parsing;
mod reads;

use super::{HloModule, proto};

const F32: i32 = 11;
const S4: i32 = 21;
const BF16: i32 = 16;
const S32: i32 = 4;
const TUPLE: i32 = 13;
const VMEM: i64 = 1;

/// Returns a module; the last of `computations` is the entry.
fn module(computations: Vec<proto::Computation>) -> HloModule {
    HloModule::new(&module_proto(computations)).expect("a module")
}

fn module_proto(computations: Vec<proto::Computation>) -> proto::Module {
    let entry_computation_id = computations.last().expect("an entry").id;
    proto::Module { computations, entry_computation_id }
}

/// Returns a computation; the last of `instructions` is the root.
fn computation(id: i64, instructions: Vec<proto::Instruction>) -> proto::Computation {
    let root_id = instructions.last().expect("a root").id;
    proto::Computation { name: format!("computation.{id}"), instructions, id, root_id }
}

fn instruction(id: i64, opcode: &str, shape: proto::Shape, operands: &[i64]) -> proto::Instruction {
    let (name, opcode, operand_ids) = (format!("{opcode}.{id}"), opcode.to_owned(), operands.to_vec());
    proto::Instruction { name, opcode, shape: Some(shape), id, operand_ids, ..proto::Instruction::default() }
}

fn parameter(id: i64, number: i64, shape: proto::Shape) -> proto::Instruction {
    proto::Instruction { parameter_number: number, ..instruction(id, "parameter", shape, &[]) }
}

fn constant(id: i64, value: i32) -> proto::Instruction {
    let literal = Some(proto::Literal { s32s: vec![value], ..proto::Literal::default() });
    proto::Instruction { literal, ..instruction(id, "constant", array(S32, &[]), &[]) }
}

fn calling(instruction: proto::Instruction, called: &[i64]) -> proto::Instruction {
    proto::Instruction { called_computation_ids: called.to_vec(), ..instruction }
}

/// An array in HBM, row-major, without tiles.
fn array(element_type: i32, dimensions: &[i64]) -> proto::Shape {
    proto::Shape { element_type, dimensions: dimensions.to_vec(), ..proto::Shape::default() }
}

/// An array of f32, 4 bytes each.
fn f32s(count: i64) -> proto::Shape {
    array(F32, &[count])
}

fn in_memory(memory_space: i64, shape: proto::Shape) -> proto::Shape {
    let layout = proto::Layout { memory_space, ..shape.layout.unwrap_or_default() };
    proto::Shape { layout: Some(layout), ..shape }
}

fn tuple(tuple_shapes: Vec<proto::Shape>) -> proto::Shape {
    proto::Shape { element_type: TUPLE, tuple_shapes, ..proto::Shape::default() }
}

/// Returns the computations of a loop over `carried`: the condition has id 1, the body id 2. The condition compares the
/// first element of `carried`, the counter, with the constant `bound`, or with another element if `bound` is `None`.
fn loop_parts(carried: &proto::Shape, bound: Option<i32>, body: Vec<proto::Instruction>) -> Vec<proto::Computation> {
    let flag = array(1, &[]);
    let bound = match bound {
        Some(bound) => constant(3, bound),
        None => instruction(3, "get-tuple-element", array(S32, &[]), &[1]),
    };
    let condition = vec![
        parameter(1, 0, carried.clone()),
        instruction(2, "get-tuple-element", in_memory(6, array(S32, &[])), &[1]),
        bound,
        proto::Instruction { comparison_direction: "LT".to_owned(), ..instruction(4, "compare", flag, &[2, 3]) },
    ];
    vec![computation(1, condition), computation(2, body)]
}
