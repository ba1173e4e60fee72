//! Computations whose instructions refer to their operands and users by index.
//!
//! Entry point: [`link`]. Operands come before their users and callees before their callers, so a walk over them always
//! ends.

use std::collections::HashMap;

use super::shape::{self, Array};
use super::{HloError, proto};

/// A list of instructions that are executed in order, and the instruction whose result is the computation's.
#[derive(Debug)]
pub(super) struct Computation {
    pub(super) name: String,
    pub(super) instructions: Vec<Instruction>,
    pub(super) root: usize,
}

/// One instruction. Operands and users are indices in its computation.
#[derive(Debug)]
pub(super) struct Instruction {
    pub(super) name: String,
    /// The opcode as XLA spells it; it is text because the set of opcodes is open.
    pub(super) opcode: String,
    /// The arrays of the result, flattened.
    pub(super) result: Vec<Array>,
    pub(super) is_tuple: bool,
    pub(super) operands: Vec<usize>,
    /// The instructions that use the result, each listed once.
    pub(super) users: Vec<usize>,
    /// The computations that the instruction calls, as indices in the module's computations.
    pub(super) called: Vec<usize>,
    pub(super) parameter: Option<usize>,
    /// The value of a scalar constant of an integer type.
    pub(super) constant: Option<i64>,
    /// The direction of a comparison, such as `LT`; empty for other instructions.
    pub(super) direction: String,
    /// The number of iterations of a loop, if the compiler reports it.
    pub(super) known_trip_count: Option<u64>,
    /// True for a copy that the previous run of the program may already have made.
    pub(super) is_prefetch: bool,
    /// The target of a custom call; empty for other instructions.
    pub(super) target: String,
    /// The compiler's estimate of the time of one execution.
    pub(super) estimated_cycles: Option<u64>,
    /// The bytes that a kernel reads and writes, as the program that calls it says.
    pub(super) stated_bytes: Option<u64>,
}

impl Computation {
    /// Returns the instruction that takes argument `number`.
    pub(super) fn parameter(&self, number: usize) -> Option<usize> {
        self.instructions.iter().position(|instruction| instruction.parameter == Some(number))
    }
}

impl Instruction {
    /// Returns the array of the result, or `None` if the result is a tuple.
    pub(super) fn array(&self) -> Option<Array> {
        if self.is_tuple { None } else { self.result.first().copied() }
    }
}

/// Replaces the ids in `computations` by indices.
///
/// # Errors
/// When an id names an item that is missing or comes later.
pub(super) fn link(computations: &[proto::Computation]) -> Result<Vec<Computation>, HloError> {
    let mut indices = HashMap::new();
    let mut linked = Vec::with_capacity(computations.len());
    for (index, computation) in computations.iter().enumerate() {
        linked.push(link_computation(computation, &indices)?);
        indices.insert(computation.id, index);
    }
    Ok(linked)
}

fn link_computation(proto: &proto::Computation, computations: &HashMap<i64, usize>) -> Result<Computation, HloError> {
    let mut indices = HashMap::new();
    let mut instructions: Vec<Instruction> = Vec::with_capacity(proto.instructions.len());
    let missing =
        |id: i64, user: &str| HloError::NoInstruction { id, computation: proto.name.clone(), user: user.to_owned() };
    for (index, instruction) in proto.instructions.iter().enumerate() {
        let find = |id: &i64| indices.get(id).copied().ok_or_else(|| missing(*id, &instruction.name));
        let operands: Vec<usize> = instruction.operand_ids.iter().map(find).collect::<Result<_, _>>()?;
        let find = |id: &i64| {
            let missing = || HloError::NoComputation { id: *id, user: instruction.name.clone() };
            computations.get(id).copied().ok_or_else(missing)
        };
        let called = instruction.called_computation_ids.iter().map(find).collect::<Result<_, _>>()?;
        for operand in &operands {
            let users = &mut instructions[*operand].users;
            if users.last() != Some(&index) {
                users.push(index);
            }
        }
        instructions.push(link_instruction(instruction, operands, called));
        indices.insert(instruction.id, index);
    }
    let root = indices.get(&proto.root_id).copied().ok_or_else(|| missing(proto.root_id, "the root"))?;
    Ok(Computation { name: proto.name.clone(), instructions, root })
}

fn link_instruction(proto: &proto::Instruction, operands: Vec<usize>, called: Vec<usize>) -> Instruction {
    let is_parameter = proto.opcode == "parameter";
    Instruction {
        name: proto.name.clone(),
        opcode: proto.opcode.clone(),
        result: proto.shape.as_ref().map(shape::arrays).unwrap_or_default(),
        is_tuple: proto.shape.as_ref().is_some_and(shape::is_tuple),
        operands,
        users: Vec::new(),
        called,
        parameter: usize::try_from(proto.parameter_number).ok().filter(|_| is_parameter),
        constant: proto.literal.as_ref().and_then(scalar),
        direction: proto.comparison_direction.clone(),
        known_trip_count: number(&proto.backend_config, &["known_trip_count", "n"]),
        is_prefetch: proto.is_cross_program_prefetch || proto.cross_program_prefetch_index.is_some(),
        target: proto.custom_call_target.clone(),
        estimated_cycles: number(&proto.backend_config, &["window_config", "estimated_cycles"]),
        stated_bytes: number(&proto.backend_config, &["custom_call_config", "cost_estimate", "bytes_accessed"]),
    }
}

fn scalar(literal: &proto::Literal) -> Option<i64> {
    let proto::Literal { s32s, s64s, u32s, u64s } = literal;
    match (s32s.as_slice(), s64s.as_slice(), u32s.as_slice(), u64s.as_slice()) {
        ([value], [], [], []) => Some(i64::from(*value)),
        ([], [value], [], []) => Some(*value),
        ([], [], [value], []) => Some(i64::from(*value)),
        ([], [], [], [value]) => i64::try_from(*value).ok(),
        (..) => None,
    }
}

/// Returns the number at `path` in a configuration such as `{"known_trip_count":{"n":"12"}}`, which may have other
/// keys.
fn number(backend_config: &[u8], path: &[&str]) -> Option<u64> {
    let config: serde_json::Value = serde_json::from_slice(backend_config).ok()?;
    let found = path.iter().fold(&config, |value, key| &value[key]);
    found.as_u64().or_else(|| found.as_str()?.parse().ok())
}
