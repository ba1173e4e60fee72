//! The time of a module in cycles, as the compiler estimates it.

use super::loops::{Flow, flow};
use super::{Assumed, HloModule};

/// Returns the sum of the cycles that the compiler estimates for the executed instructions of a computation. Of several
/// branches the longest counts. Instructions without an estimate, such as transfers and kernels, count as 0.
pub(super) fn of_computation(module: &HloModule, index: usize, assumed: Assumed) -> u64 {
    let of = |index: usize| of_computation(module, index, assumed);
    let cycles = module.computations[index].instructions.iter().map(|instruction| match flow(module, instruction) {
        Flow::Here => instruction.estimated_cycles.unwrap_or(0),
        Flow::Call(called) => of(called),
        Flow::Loop { body, condition, trips } => {
            let trips = assumed.trips(trips);
            let bodies = of(body).saturating_mul(trips);
            bodies.saturating_add(of(condition).saturating_mul(trips.saturating_add(1)))
        }
        Flow::Branches(branches) => branches.iter().map(|branch| of(*branch)).max().unwrap_or(0),
    });
    cycles.fold(0, u64::saturating_add)
}
