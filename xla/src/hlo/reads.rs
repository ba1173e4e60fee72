//! The bytes that a module reads from HBM.
//!
//! Entry point: [`Reads::of_computation`]. To add an instruction that reads only a part of an operand, add an arm to
//! the match in [`Reads::taken`].

use super::graph::{Computation, Instruction};
use super::loops::{Flow, flow};
use super::{Assumed, HloModule};

/// Instructions that count as reading no memory: they rename, order or generate values.
const FREE: [&str; 11] = [
    "add-dependency",
    "after-all",
    "bitcast",
    "constant",
    "get-tuple-element",
    "iota",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
];
/// Instructions that, inside a fusion, read only those parts of their operand that their own users read.
const THROUGH: [&str; 6] = ["bitcast", "bitcast-convert", "convert", "copy", "reshape", "transpose"];
/// Part of the target of a custom call that joins arrays which are already in on-chip memory, not in HBM.
const GLUE: &str = "ConcatBitcast";
/// Part of the name of gathers on a `SparseCore`.
const SPARSE_GATHER: &str = "gather_offload";

/// Counts a module's reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reads<'a> {
    pub(super) module: &'a HloModule,
    pub(super) assumed: Assumed,
}

impl Reads<'_> {
    /// Returns the bytes that one execution of a computation reads from HBM.
    pub(super) fn of_computation(&self, index: usize) -> u64 {
        let computation = &self.module.computations[index];
        let reads = computation.instructions.iter().map(|instruction| self.of_instruction(computation, instruction));
        reads.fold(0, u64::saturating_add)
    }

    fn of_instruction(&self, computation: &Computation, instruction: &Instruction) -> u64 {
        match flow(self.module, instruction) {
            Flow::Here if is_free(instruction) || is_for_next_run(computation, instruction) => 0,
            Flow::Here if instruction.stated_bytes.is_some() => {
                let written: u64 = instruction.result.iter().map(|array| array.bytes).sum();
                let stated = instruction.stated_bytes.unwrap_or(0).saturating_sub(written);
                stated.saturating_mul(self.assumed.kernel_share[0]) / self.assumed.kernel_share[1].max(1)
            }
            Flow::Here => {
                let reads = (0..instruction.operands.len()).map(|at| self.of_operand(computation, instruction, at));
                reads.fold(0, u64::saturating_add)
            }
            Flow::Call(called) => self.of_computation(called),
            Flow::Loop { body, condition, trips } => {
                let trips = self.assumed.trips(trips);
                let bodies = self.of_computation(body).saturating_mul(trips);
                bodies.saturating_add(self.of_computation(condition).saturating_mul(trips.saturating_add(1)))
            }
            Flow::Branches(branches) => branches.iter().map(|branch| self.of_computation(*branch)).max().unwrap_or(0),
        }
    }

    /// Returns the bytes that an instruction reads from HBM of its operand at index `at`.
    fn of_operand(&self, computation: &Computation, instruction: &Instruction, at: usize) -> u64 {
        let operand = computation.instructions[instruction.operands[at]].array();
        let Some(operand) = operand.filter(|operand| operand.in_main_memory) else { return 0 };
        let taken = self.taken(computation, instruction, at, operand.bytes);
        taken.map_or(operand.bytes, |taken| taken.min(operand.bytes))
    }

    /// Returns the bytes that an instruction reads of its operand at index `at`, which has `whole` bytes; `None` means
    /// all of them.
    fn taken(&self, computation: &Computation, instruction: &Instruction, at: usize, whole: u64) -> Option<u64> {
        let operands = instruction.operands.as_slice();
        let of_operand = |at: usize| Some(computation.instructions[*operands.get(at)?].array()?.bytes);
        match (instruction.opcode.as_str(), instruction.called.as_slice()) {
            ("dynamic-slice" | "gather" | "slice", _) if at == 0 => Some(instruction.array()?.bytes),
            // An update in place reads as many bytes of its first operand as it replaces.
            ("dynamic-update-slice", _) if at == 0 => of_operand(1),
            // The operands are n arrays, the indices, and n updates.
            ("scatter", _) if at < operands.len() / 2 => of_operand(operands.len() / 2 + 1 + at),
            // The result is ((operands), taken, context); the first operand is the matching start.
            ("async-update", _) if instruction.name.contains(SPARSE_GATHER) => {
                Some(instruction.result.get(operands.len().checked_sub(1)?)?.bytes)
            }
            ("fusion" | "async-start", &[called]) => {
                let called = &self.module.computations[called];
                self.taken_by_users(called, called.parameter(at)?, whole)
            }
            _ => None,
        }
    }

    /// Returns the bytes that the instructions inside a fusion read of the value at `index`, or `None` if one of its
    /// users reads the whole value. `whole` is the size of the value outside of the fusion.
    fn taken_by_users(&self, computation: &Computation, index: usize, whole: u64) -> Option<u64> {
        let mut total = 0_u64;
        for user_index in &computation.instructions[index].users {
            let user = &computation.instructions[*user_index];
            let opcode = user.opcode.as_str();
            let places = user.operands.iter().enumerate().filter(|(_, operand)| **operand == index);
            for (at, _) in places {
                let taken = match opcode {
                    "tuple" | "get-tuple-element" => Some(0),
                    _ if self.is_through(user) && *user_index != computation.root => {
                        self.taken_by_users(computation, *user_index, whole)
                    }
                    _ => self.taken(computation, user, at, whole),
                };
                total = total.saturating_add(taken?);
            }
        }
        Some(total.min(whole))
    }

    /// True if an instruction inside a fusion reads only the parts that its users read. Such an instruction can be a
    /// nested fusion that contains only instructions of this kind, for example to change a layout.
    fn is_through(&self, instruction: &Instruction) -> bool {
        let is_through = |opcode: &str| THROUGH.contains(&opcode);
        match (instruction.opcode.as_str(), instruction.called.as_slice()) {
            ("fusion", &[called]) => {
                let inside = &self.module.computations[called].instructions;
                inside.iter().all(|inside| inside.opcode == "parameter" || is_through(&inside.opcode))
            }
            (opcode, _) => is_through(opcode),
        }
    }
}

/// True if the instruction reads nothing. A transfer counts at its start instruction, so its done instruction is free.
fn is_free(instruction: &Instruction) -> bool {
    let opcode = instruction.opcode.as_str();
    FREE.contains(&opcode) || opcode.ends_with("-done") || instruction.target.contains(GLUE)
}

/// True if the result of the copy is used only by the next run, which then need not make the copy at the start of the
/// entry computation.
fn is_for_next_run(computation: &Computation, copy: &Instruction) -> bool {
    let is_first = |other: &Instruction| {
        other.opcode == "copy-start"
            && other.operands == copy.operands
            && other.is_prefetch
            && !std::ptr::eq(other, copy)
    };
    let is_used = copy.users.iter().any(|done| !computation.instructions[*done].users.is_empty());
    copy.opcode == "copy-start" && !is_used && computation.instructions.iter().any(is_first)
}
