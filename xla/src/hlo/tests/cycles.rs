//! The sum of the compiler's estimates.

use super::super::{Assumed, proto};
use super::{S32, array, calling, computation, f32s, instruction, loop_parts, module, parameter, tuple};

/// Returns `instruction` with an estimate of `cycles`.
fn lasting(instruction: proto::Instruction, cycles: u64) -> proto::Instruction {
    let config = format!(r#"{{"window_config":{{"estimated_cycles":"{cycles}"}},"flag_configs":[]}}"#);
    proto::Instruction { backend_config: config.into(), ..instruction }
}

#[test]
fn the_estimates_of_executed_instructions_are_summed() {
    let carried = tuple(vec![array(S32, &[]), array(S32, &[]), f32s(8)]);
    let body = vec![
        parameter(1, 0, carried.clone()),
        instruction(2, "get-tuple-element", f32s(8), &[1]),
        lasting(instruction(3, "negate", f32s(8), &[2]), 100),
        instruction(4, "tuple", carried.clone(), &[1, 1, 3]),
    ];
    let mut computations = loop_parts(&carried, None, body);
    let looping = calling(instruction(2, "while", carried.clone(), &[1]), &[2, 1]);
    let last = lasting(instruction(4, "negate", f32s(8), &[3]), 7);
    let entry = vec![
        parameter(1, 0, carried.clone()),
        looping,
        instruction(3, "get-tuple-element", f32s(8), &[2]),
        last,
        instruction(5, "negate", f32s(8), &[4]),
    ];
    computations.push(computation(9, entry));
    let module = module(computations);
    assert_eq!(module.cycles(Assumed { trips_up: 3, ..Assumed::ONCE }), 3 * 100 + 7);
}
