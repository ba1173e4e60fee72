//! Counts of the bytes read, with one small module for each rule. An f32 element has 4 bytes.

use super::super::{Assumed, proto};
use super::{
    S32, VMEM, array, calling, computation, constant, f32s, in_memory, instruction, loop_parts, module, parameter,
    tuple,
};

/// Returns the bytes read by a module whose only computation consists of `instructions`.
fn reads(instructions: Vec<proto::Instruction>) -> u64 {
    module(vec![computation(9, instructions)]).reads(Assumed::ONCE)
}

/// Returns the bytes read by a module that only applies a fusion to arrays of 1000 and 8 elements. `inside` are the
/// instructions of the fusion, parameters first.
fn fusion_reads(inside: Vec<proto::Instruction>) -> u64 {
    let fusion = calling(instruction(3, "fusion", f32s(10), &[1, 2]), &[1]);
    let entry = vec![parameter(1, 0, f32s(1000)), parameter(2, 1, f32s(8)), fusion];
    module(vec![computation(1, inside), computation(9, entry)]).reads(Assumed::ONCE)
}

#[test]
fn operands_in_hbm_count_and_others_do_not() {
    let parameters = || vec![parameter(1, 0, f32s(100)), parameter(2, 1, in_memory(VMEM, f32s(100)))];
    let with = |last| reads(parameters().into_iter().chain([last]).collect());
    assert_eq!(with(instruction(3, "add", f32s(100), &[1, 2])), 400);
    assert_eq!(with(instruction(3, "add", f32s(100), &[1, 1])), 800);
    assert_eq!(with(instruction(3, "tuple", tuple(vec![f32s(100), f32s(100)]), &[1, 2])), 0);
    assert_eq!(with(instruction(3, "bitcast", f32s(100), &[1])), 0);
    let glue = proto::Instruction {
        custom_call_target: "ConcatBitcast".to_owned(),
        ..instruction(3, "custom-call", f32s(100), &[1])
    };
    assert_eq!(with(glue), 0);
}

/// A kernel reads parts of its operands that only its program knows.
#[test]
fn a_kernel_reads_what_its_program_says() {
    let with = |config: &str| {
        let call = instruction(3, "custom-call", f32s(10), &[1]);
        let call = proto::Instruction { backend_config: config.as_bytes().to_vec(), ..call };
        reads(vec![parameter(1, 0, f32s(1000)), call])
    };
    assert_eq!(with(r#"{"custom_call_config": {"cost_estimate": {"flops": 7, "bytes_accessed": 100}}}"#), 60);
    assert_eq!(with(r#"{"custom_call_config": {"body": ""}}"#), 4000);
    let config = r#"{"custom_call_config": {"cost_estimate": {"bytes_accessed": 100}}}"#;
    let call = instruction(3, "custom-call", f32s(10), &[1]);
    let call = proto::Instruction { backend_config: config.as_bytes().to_vec(), ..call };
    let half = module(vec![computation(9, vec![parameter(1, 0, f32s(1000)), call])])
        .reads(Assumed { kernel_share: [1, 2], ..Assumed::ONCE });
    assert_eq!(half, 30);
}

#[test]
fn slices_and_gathers_take_parts() {
    let with = |opcode: &str| {
        let last = instruction(3, opcode, f32s(10), &[1, 2]);
        reads(vec![parameter(1, 0, f32s(1000)), parameter(2, 1, array(S32, &[2])), last])
    };
    assert_eq!(with("gather"), 40 + 8);
    assert_eq!(with("dynamic-slice"), 40 + 8);
    assert_eq!(with("concatenate"), 4000 + 8);
}

#[test]
fn a_part_is_never_more_than_the_whole() {
    let gather = instruction(3, "gather", f32s(5000), &[1, 2]);
    assert_eq!(reads(vec![parameter(1, 0, f32s(1000)), parameter(2, 1, f32s(1)), gather]), 4004);
}

#[test]
fn updates_in_place_count_what_is_updated() {
    let with = |last| {
        let parameters = [(1, 1000), (2, 6), (3, 20)].map(|(id, count)| parameter(id, id - 1, f32s(count)));
        reads(parameters.into_iter().chain([last]).collect())
    };
    // Operand, update, index.
    assert_eq!(with(instruction(4, "dynamic-update-slice", f32s(1000), &[1, 3, 2])), 80 + 80 + 24);
    // Operand, indices, update.
    assert_eq!(with(instruction(4, "scatter", f32s(1000), &[1, 2, 3])), 80 + 24 + 80);
    // Two operands, indices, two updates.
    let both = instruction(4, "scatter", tuple(vec![f32s(1000), f32s(1000)]), &[1, 1, 2, 3, 2]);
    assert_eq!(with(both), 80 + 24 + 24 + 80 + 24);
}

#[test]
fn a_fusion_is_one_instruction() {
    let inside = vec![
        parameter(1, 0, f32s(1000)),
        parameter(2, 1, f32s(8)),
        instruction(3, "exponential", f32s(1000), &[1]),
        instruction(4, "dynamic-slice", f32s(10), &[3, 2]),
    ];
    assert_eq!(fusion_reads(inside), 4000 + 32);
}

#[test]
fn fusions_that_take_parts_read_parts() {
    let begin = || vec![parameter(1, 0, f32s(1000)), parameter(2, 1, f32s(8))];
    let with = |last: Vec<proto::Instruction>| fusion_reads(begin().into_iter().chain(last).collect());
    let through = vec![
        instruction(3, "bitcast", f32s(1000), &[1]),
        instruction(4, "convert", f32s(1000), &[3]),
        instruction(5, "gather", f32s(10), &[4, 2]),
        instruction(6, "slice", f32s(7), &[1]),
        instruction(7, "concatenate", f32s(17), &[5, 6]),
    ];
    assert_eq!(with(through), 40 + 28 + 32);
    let root = vec![instruction(3, "copy", f32s(1000), &[1])];
    assert_eq!(with(root), 4000, "and nothing of the other, which has no use");
    let in_place = vec![instruction(3, "dynamic-update-slice", f32s(1000), &[1, 2, 2])];
    assert_eq!(with(in_place), 32 + 32);
}

#[test]
fn fusions_in_fusions_are_followed() {
    let inner = vec![parameter(1, 0, f32s(1000)), instruction(2, "slice", f32s(10), &[1])];
    let outer = vec![parameter(1, 0, f32s(1000)), calling(instruction(2, "fusion", f32s(10), &[1]), &[1])];
    let entry = vec![parameter(1, 0, f32s(1000)), calling(instruction(2, "fusion", f32s(10), &[1]), &[2])];
    assert_eq!(
        module(vec![computation(1, inner), computation(2, outer), computation(9, entry)]).reads(Assumed::ONCE),
        40
    );
}

#[test]
fn layouts_in_fusions_are_seen_through() {
    let with = |opcode: &str| {
        let laid_out = computation(1, vec![parameter(1, 0, f32s(1000)), instruction(2, opcode, f32s(1000), &[1])]);
        let inner = calling(instruction(3, "fusion", f32s(1000), &[1]), &[1]);
        let slice = instruction(4, "dynamic-slice", f32s(10), &[3, 2]);
        let middle = computation(2, vec![parameter(1, 0, f32s(1000)), parameter(2, 1, f32s(8)), inner, slice]);
        let outer = calling(instruction(3, "fusion", f32s(10), &[1, 2]), &[2]);
        let entry = vec![parameter(1, 0, f32s(1000)), parameter(2, 1, f32s(8)), outer];
        module(vec![laid_out, middle, computation(9, entry)]).reads(Assumed::ONCE)
    };
    assert_eq!(with("copy"), 40 + 32);
    assert_eq!(with("negate"), 4000 + 32);
}

#[test]
fn transfers_count_where_they_start() {
    let moved = in_memory(VMEM, f32s(1000));
    let start = instruction(2, "copy-start", tuple(vec![moved.clone(), f32s(1000), array(8, &[])]), &[1]);
    let instructions = vec![
        parameter(1, 0, f32s(1000)),
        start,
        instruction(3, "copy-done", moved, &[2]),
        instruction(4, "negate", f32s(1000), &[3]),
    ];
    assert_eq!(reads(instructions), 4000);
}

#[test]
fn slices_that_run_beside_others_take_parts() {
    let slice = vec![parameter(1, 0, f32s(1000)), instruction(2, "slice", in_memory(VMEM, f32s(10)), &[1])];
    let shape = tuple(vec![tuple(vec![f32s(1000)]), in_memory(VMEM, f32s(10)), array(8, &[])]);
    let start = calling(instruction(2, "async-start", shape, &[1]), &[1]);
    let done = calling(instruction(3, "async-done", in_memory(VMEM, f32s(10)), &[2]), &[1]);
    let entry = vec![parameter(1, 0, f32s(1000)), start, done];
    assert_eq!(module(vec![computation(1, slice), computation(9, entry)]).reads(Assumed::ONCE), 40);
}

#[test]
fn gathers_on_sparse_cores_take_parts() {
    let (cache, indices, taken) = (f32s(1000), f32s(2), f32s(10));
    let arguments = tuple(vec![cache.clone(), indices.clone()]);
    let start = instruction(3, "async-start", tuple(vec![tuple(Vec::new()), array(8, &[])]), &[]);
    let update = proto::Instruction {
        name: "gather_offload_async_update.1".to_owned(),
        ..instruction(4, "async-update", tuple(vec![arguments, taken, array(8, &[])]), &[3, 1, 2])
    };
    assert_eq!(reads(vec![parameter(1, 0, cache), parameter(2, 1, indices), start, update]), 40 + 8);
}

#[test]
fn a_prefetch_for_the_next_run_counts_once() {
    let moved = in_memory(VMEM, f32s(1000));
    let pair = |id: i64, is_prefetch: bool| {
        let shape = tuple(vec![moved.clone(), f32s(1000), array(8, &[])]);
        let start = instruction(id, "copy-start", shape, &[1]);
        let cross_program_prefetch_index = is_prefetch.then_some(0);
        let start = proto::Instruction { cross_program_prefetch_index, ..start };
        [start, instruction(id + 1, "copy-done", moved.clone(), &[id])]
    };
    let with = |is_prefetch| {
        let begin = [parameter(1, 0, f32s(1000))].into_iter().chain(pair(2, is_prefetch));
        let middle = [instruction(4, "negate", moved.clone(), &[3])];
        reads(begin.chain(middle).chain(pair(5, false)).collect())
    };
    assert_eq!(with(true), 4000);
    assert_eq!(with(false), 8000);
}

#[test]
fn loops_count_their_trips() {
    let carried = tuple(vec![array(S32, &[]), array(S32, &[]), f32s(1000)]);
    let counts = |bound: Option<i32>, dynamic: u64, backend_config: &str| {
        let body = vec![
            parameter(1, 0, carried.clone()),
            instruction(2, "get-tuple-element", f32s(1000), &[1]),
            instruction(3, "negate", f32s(1000), &[2]),
            instruction(4, "tuple", carried.clone(), &[1, 1, 3]),
        ];
        let looping = calling(instruction(2, "while", carried.clone(), &[1]), &[2, 1]);
        let looping = proto::Instruction { backend_config: backend_config.into(), ..looping };
        let mut computations = loop_parts(&carried, bound, body);
        computations.push(computation(9, vec![parameter(1, 0, carried.clone()), looping]));
        module(computations).reads(Assumed { trips_up: dynamic, ..Assumed::ONCE })
    };
    assert_eq!(counts(Some(12), 5, ""), 12 * 4000 + 13 * 4, "the bound is a constant");
    assert_eq!(counts(None, 5, ""), 5 * 4000 + 6 * 4, "only the caller knows");
    assert_eq!(counts(None, 5, r#"{"known_trip_count":{"n":"7"},"other":[]}"#), 7 * 4000 + 8 * 4);
    assert_eq!(counts(None, u64::MAX, ""), u64::MAX);
}

/// Returns the bytes that a loop reads whose condition compares the counter with `bound` by "greater": 4000 for each
/// iteration, and 4 for each condition.
fn reads_of_greater(bound: Option<i32>) -> u64 {
    let carried = tuple(vec![array(S32, &[]), array(S32, &[]), f32s(1000)]);
    let body = vec![
        parameter(1, 0, carried.clone()),
        instruction(2, "get-tuple-element", f32s(1000), &[1]),
        instruction(3, "negate", f32s(1000), &[2]),
        instruction(4, "tuple", carried.clone(), &[1, 1, 3]),
    ];
    let mut computations = loop_parts(&carried, bound, body);
    let compare = computations[0].instructions.last_mut().unwrap();
    compare.comparison_direction = "GT".to_owned();
    let looping = calling(instruction(2, "while", carried.clone(), &[1]), &[2, 1]);
    computations.push(computation(9, vec![parameter(1, 0, carried.clone()), looping]));
    module(computations).reads(Assumed { trips_up: 3, trips_rest: 7, trips_down: 5, ..Assumed::ONCE })
}

#[test]
fn loops_that_count_down_have_their_own_number_of_trips() {
    assert_eq!(reads_of_greater(Some(0)), 5 * 4000 + 6 * 4);
    assert_eq!(reads_of_greater(Some(1)), 3 * 4000 + 4 * 4, "the counter does not end at 0");
}

#[test]
fn loops_over_a_rest_have_their_own_number_of_trips() {
    assert_eq!(reads_of_greater(None), 7 * 4000 + 8 * 4);
}

#[test]
fn calls_count_and_the_dearest_branch_does() {
    let reading = |id, count| {
        let instructions = vec![parameter(1, 0, f32s(count)), instruction(2, "negate", f32s(count), &[1])];
        computation(id, instructions)
    };
    let entry = vec![
        constant(1, 0),
        parameter(2, 0, f32s(10)),
        calling(instruction(3, "conditional", f32s(10), &[1, 2, 2]), &[1, 2]),
        calling(instruction(4, "call", f32s(10), &[2]), &[1]),
    ];
    assert_eq!(module(vec![reading(1, 10), reading(2, 100), computation(9, entry)]).reads(Assumed::ONCE), 400 + 40);
}
