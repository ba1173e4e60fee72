//! Counts of collectives, with one small module for each way in which a module can contain them.

use super::super::{Collectives, proto};
use super::{S32, array, calling, computation, f32s, instruction, loop_parts, module, parameter, tuple};

const NONE: Collectives =
    Collectives { all_reduce: 0, all_gather: 0, reduce_scatter: 0, collective_permute: 0, all_to_all: 0 };

/// Returns a computation that applies the instructions `opcodes` one after another.
fn chain(id: i64, opcodes: &[&str]) -> proto::Computation {
    let next = |(id, opcode): (i64, &&str)| instruction(id, opcode, f32s(8), &[id - 1]);
    computation(id, [parameter(1, 0, f32s(8))].into_iter().chain((2..).zip(opcodes).map(next)).collect())
}

#[test]
fn pairs_count_once() {
    let opcodes = [
        "all-reduce",
        "all-reduce-start",
        "all-reduce-done",
        "all-gather-start",
        "all-gather-done",
        "reduce-scatter",
        "collective-permute-start",
        "collective-permute-done",
        "collective-permute",
        "all-to-all",
        "add",
    ];
    let counts = module(vec![chain(9, &opcodes)]).collectives();
    let expected =
        Collectives { all_reduce: 2, all_gather: 1, reduce_scatter: 1, collective_permute: 2, all_to_all: 1 };
    assert_eq!(counts, expected);
    assert_eq!(counts.total(), 7);
}

#[test]
fn loops_count_their_trips() {
    let carried = tuple(vec![array(S32, &[]), f32s(8)]);
    let counts = |bound| {
        let body = vec![parameter(1, 0, carried.clone()), instruction(2, "all-reduce", carried.clone(), &[1])];
        let looping = calling(instruction(2, "while", carried.clone(), &[1]), &[2, 1]);
        let mut computations = loop_parts(&carried, bound, body);
        computations.push(computation(9, vec![parameter(1, 0, carried.clone()), looping]));
        module(computations).collectives()
    };
    assert_eq!(counts(Some(12)), Collectives { all_reduce: 12, ..NONE });
    assert_eq!(counts(None), Collectives { all_reduce: 1, ..NONE });
}

#[test]
fn collectives_inside_async_computations_are_counted() {
    let start = calling(instruction(2, "async-start", f32s(8), &[1]), &[1]);
    let update = calling(instruction(3, "async-update", f32s(8), &[2]), &[1]);
    let done = calling(instruction(4, "async-done", f32s(8), &[3]), &[1]);
    let entry = computation(9, vec![parameter(1, 0, f32s(8)), start, update, done]);
    let counts = module(vec![chain(1, &["reduce-scatter"]), entry]).collectives();
    assert_eq!(counts, Collectives { reduce_scatter: 1, ..NONE });
}

#[test]
fn fusions_are_looked_into() {
    let counts = |name: &str| {
        let inside = chain(1, &["all-reduce", "dynamic-slice"]);
        let inside = proto::Computation { name: name.to_owned(), ..inside };
        let fusion = calling(instruction(2, "fusion", f32s(8), &[1]), &[1]);
        module(vec![inside, computation(9, vec![parameter(1, 0, f32s(8)), fusion])]).collectives()
    };
    assert_eq!(counts("fused_computation.3"), Collectives { all_reduce: 1, ..NONE });
    assert_eq!(counts("all-reduce-scatter.3"), Collectives { reduce_scatter: 1, ..NONE });
}

#[test]
fn the_dearest_branch_counts() {
    let branch = calling(instruction(2, "conditional", f32s(8), &[1]), &[1, 2]);
    let entry = computation(9, vec![parameter(1, 0, array(S32, &[])), branch]);
    let counts = module(vec![chain(1, &["all-reduce"]), chain(2, &["all-gather", "all-gather"]), entry]).collectives();
    assert_eq!(counts, Collectives { all_gather: 2, ..NONE });
}
