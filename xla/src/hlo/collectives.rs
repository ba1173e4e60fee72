//! The number of collectives in a program.
//!
//! Entry point: [`of_computation`].

use super::HloModule;
use super::graph::{Computation, Instruction};
use super::loops::{Flow, Trips, flow};

/// The start of the names of the computations of TPU fusions that act as a reduce-scatter: an all-reduce of which each
/// device keeps only its own part.
const ALL_REDUCE_SCATTER: &str = "all-reduce-scatter";

/// The number of collectives of each kind in one execution. A start and its matching done count as one collective; so
/// does a collective over several arrays.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Collectives {
    pub(crate) all_reduce: u64,
    pub(crate) all_gather: u64,
    pub(crate) reduce_scatter: u64,
    pub(crate) collective_permute: u64,
    pub(crate) all_to_all: u64,
}

impl Collectives {
    /// Returns the number of collectives of all kinds.
    pub fn total(&self) -> u64 {
        let Self { all_reduce, all_gather, reduce_scatter, collective_permute, all_to_all } = *self;
        [all_reduce, all_gather, reduce_scatter, collective_permute, all_to_all]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    fn combine(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            all_reduce: combine(self.all_reduce, other.all_reduce),
            all_gather: combine(self.all_gather, other.all_gather),
            reduce_scatter: combine(self.reduce_scatter, other.reduce_scatter),
            collective_permute: combine(self.collective_permute, other.collective_permute),
            all_to_all: combine(self.all_to_all, other.all_to_all),
        }
    }

    fn plus(self, other: Self) -> Self {
        self.combine(other, u64::saturating_add)
    }

    fn times(self, times: u64) -> Self {
        self.combine(self, |count, _| count.saturating_mul(times))
    }
}

/// Counts the collectives of one execution of a computation. A loop whose trip count is unknown runs its body once, and
/// of several branches the one with the most collectives counts.
pub(super) fn of_computation(module: &HloModule, index: usize) -> Collectives {
    let counts = module.computations[index].instructions.iter().map(|instruction| of_instruction(module, instruction));
    counts.fold(Collectives::default(), Collectives::plus)
}

fn of_instruction(module: &HloModule, instruction: &Instruction) -> Collectives {
    match flow(module, instruction) {
        Flow::Here => of_executed(module, instruction),
        Flow::Call(called) => of_computation(module, called),
        Flow::Loop { body, condition, trips } => {
            let trips = if let Trips::Known(trips) = trips { trips } else { 1 };
            let conditions = of_computation(module, condition).times(trips.saturating_add(1));
            of_computation(module, body).times(trips).plus(conditions)
        }
        Flow::Branches(branches) => {
            let counts = branches.iter().map(|branch| of_computation(module, *branch));
            counts.max_by_key(Collectives::total).unwrap_or_default()
        }
    }
}

fn of_executed(module: &HloModule, instruction: &Instruction) -> Collectives {
    let none = Collectives::default();
    match (instruction.opcode.as_str(), instruction.called.as_slice()) {
        ("all-reduce" | "all-reduce-start", _) => Collectives { all_reduce: 1, ..none },
        ("all-gather" | "all-gather-start", _) => Collectives { all_gather: 1, ..none },
        ("reduce-scatter", _) => Collectives { reduce_scatter: 1, ..none },
        ("collective-permute" | "collective-permute-start", _) => Collectives { collective_permute: 1, ..none },
        ("all-to-all" | "ragged-all-to-all", _) => Collectives { all_to_all: 1, ..none },
        // The matching async-update and async-done call the same computation, so only the start counts.
        ("async-start", &[called]) => of_computation(module, called),
        ("fusion", &[called]) => of_fusion(module, called),
        _ => none,
    }
}

fn of_fusion(module: &HloModule, called: usize) -> Collectives {
    let Computation { name, .. } = &module.computations[called];
    let counts = of_computation(module, called);
    if !name.starts_with(ALL_REDUCE_SCATTER) {
        return counts;
    }
    let reduce_scatter = counts.reduce_scatter.saturating_add(counts.all_reduce);
    Collectives { all_reduce: 0, reduce_scatter, ..counts }
}
