//! The computations that an instruction executes, and their number of executions.
//!
//! Entry point: [`flow`].

use super::HloModule;
use super::graph::{Computation, Instruction};

/// The control flow at an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow<'a> {
    /// The instruction itself is executed; a computation that it calls (inside a fusion, a reducer) is part of it.
    Here,
    Call(usize),
    /// The condition runs once more than the body.
    Loop {
        body: usize,
        condition: usize,
        trips: Trips,
    },
    /// One of these computations is executed.
    Branches(&'a [usize]),
}

/// The number of iterations of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trips {
    /// The compiler's report or the condition tells the number.
    Known(u64),
    /// The condition is `counter < number`, where the number is computed at run time, or has another form.
    Up,
    /// The condition is `number > counter`, where the number is computed at run time: the loop counts up what another
    /// has left.
    Rest,
    /// The condition is `counter > 0`, where the counter's first value is computed at run time.
    Down,
}

/// Returns the control flow at `instruction`.
pub(super) fn flow<'a>(module: &HloModule, instruction: &'a Instruction) -> Flow<'a> {
    match (instruction.opcode.as_str(), instruction.called.as_slice()) {
        ("while", &[body, condition]) => {
            let known = instruction.known_trip_count.map(Trips::Known);
            let trips = known.unwrap_or_else(|| trips(&module.computations[condition]));
            Flow::Loop { body, condition, trips }
        }
        ("call", &[called]) => Flow::Call(called),
        ("conditional", branches) => Flow::Branches(branches),
        _ => Flow::Here,
    }
}

/// Returns the number of iterations by the condition. A counter that is compared with `<` is assumed to begin at 0. All
/// counters are assumed to change by 1.
fn trips(condition: &Computation) -> Trips {
    let root = &condition.instructions[condition.root];
    let &[_, bound] = root.operands.as_slice() else { return Trips::Up };
    let bound = condition.instructions[bound].constant;
    match (root.opcode.as_str(), root.direction.as_str(), bound.map(u64::try_from)) {
        ("compare", "LT", Some(Ok(bound))) => Trips::Known(bound),
        ("compare", "GT", Some(Ok(0))) => Trips::Down,
        ("compare", "GT", None) => Trips::Rest,
        _ => Trips::Up,
    }
}
