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
    /// The condition runs once more than the body. `trips`, the number of iterations, is `None` if neither the
    /// compiler's report nor the condition tells it.
    Loop {
        body: usize,
        condition: usize,
        trips: Option<u64>,
    },
    /// One of these computations is executed.
    Branches(&'a [usize]),
}

/// Returns the control flow at `instruction`.
pub(super) fn flow<'a>(module: &HloModule, instruction: &'a Instruction) -> Flow<'a> {
    match (instruction.opcode.as_str(), instruction.called.as_slice()) {
        ("while", &[body, condition]) => {
            let bound = || constant_bound(&module.computations[condition]);
            Flow::Loop { body, condition, trips: instruction.known_trip_count.or_else(bound) }
        }
        ("call", &[called]) => Flow::Call(called),
        ("conditional", branches) => Flow::Branches(branches),
        _ => Flow::Here,
    }
}

/// Returns the constant if the condition is `counter < constant`. The counter is assumed to begin at 0 and to grow by
/// 1.
fn constant_bound(condition: &Computation) -> Option<u64> {
    let root = &condition.instructions[condition.root];
    let &[_, bound] = root.operands.as_slice() else { return None };
    let bound = condition.instructions[bound].constant?;
    if root.opcode == "compare" && root.direction == "LT" { u64::try_from(bound).ok() } else { None }
}
