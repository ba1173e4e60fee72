//! Which computations an instruction executes, and how often.
//!
//! Door: [`flow`].

use super::HloModule;
use super::graph::{Computation, Instruction};

/// Where execution goes at an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow<'a> {
    /// It is executed itself; what it calls (a fusion's inside, a reducer) is part of it.
    Here,
    Call(usize),
    /// The condition runs once more than the body. `trips`: `None` when only the run tells.
    Loop {
        body: usize,
        condition: usize,
        trips: Option<u64>,
    },
    /// One of these.
    Branches(&'a [usize]),
}

/// Where execution goes at `instruction`.
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

/// The bound of `counter < constant`. Counters are taken to begin at 0 and to grow by 1, as those of loops that this project prints.
fn constant_bound(condition: &Computation) -> Option<u64> {
    let root = &condition.instructions[condition.root];
    let &[_, bound] = root.operands.as_slice() else { return None };
    let bound = condition.instructions[bound].constant?;
    if root.opcode == "compare" && root.direction == "LT" { u64::try_from(bound).ok() } else { None }
}
