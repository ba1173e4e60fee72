//! What a compiled program does to memory and to other devices, read from the optimised module that a plugin gives.
//!
//! Door: [`HloModule::parse`], then [`HloModule::reads`] and [`HloModule::collectives`]. It counts what is executed: a loop's body as
//! often as the loop runs, a fusion as one instruction. It runs nothing and estimates no time.

mod collectives;
mod graph;
mod loops;
mod proto;
mod reads;
mod shape;
#[cfg(test)]
mod tests;

use prost::{DecodeError, Message as _};

pub(crate) use collectives::Collectives;
use graph::Computation;

/// A module as `PJRT_Executable_OptimizedProgram` tells it.
#[derive(Debug)]
pub(crate) struct HloModule {
    /// Callees before their callers.
    computations: Vec<Computation>,
    entry: usize,
}

/// Why a module can't be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HloError {
    #[error("optimised program is in format {format:?}; hlo and hlo_with_config can be read")]
    Format { format: String },
    #[error("optimised program is no serialized HLO module")]
    Decode { source: DecodeError },
    #[error("optimised program has no computation {id}, which {user} names")]
    NoComputation { id: i64, user: String },
    #[error("computation {computation} has no instruction {id} before {user}, which names it")]
    NoInstruction { id: i64, computation: String, user: String },
}

impl HloModule {
    /// Reads what [`pjrt::Executable::optimized_program`](pjrt::Executable::optimized_program) answers.
    ///
    /// # Errors
    /// When the format is another, the bytes are no such message, or the module names what it does not have.
    pub(crate) fn parse(format: &str, bytes: &[u8]) -> Result<Self, HloError> {
        let decode = |source| HloError::Decode { source };
        let module = match format {
            "hlo" => proto::Module::decode(bytes).map_err(decode)?,
            "hlo_with_config" => proto::ModuleWithConfig::decode(bytes).map_err(decode)?.hlo_module.unwrap_or_default(),
            _ => return Err(HloError::Format { format: format.to_owned() }),
        };
        Self::new(&module)
    }

    fn new(module: &proto::Module) -> Result<Self, HloError> {
        let computations = graph::link(&module.computations)?;
        let id = module.entry_computation_id;
        let entry = module.computations.iter().position(|computation| computation.id == id);
        let entry = entry.ok_or_else(|| HloError::NoComputation { id, user: "the module's entry".to_owned() })?;
        Ok(Self { computations, entry })
    }

    /// Bytes that one execution reads from HBM. Loops whose trip count is only known at run time run `dynamic_trip_count` times,
    /// each.
    ///
    /// That is, for every executed instruction, its operands that lie in HBM, with the padding of their layouts; of one that takes
    /// parts of an operand (slice, gather), or replaces some (scatter), only those. Prefetches into the chip's memory count, what reads
    /// their result does not. What the first instructions prefetch is fetched again at the end for the next run: it counts once.
    pub(crate) fn reads(&self, dynamic_trip_count: u64) -> u64 {
        reads::Reads { module: self, dynamic_trip_count }.of_computation(self.entry)
    }

    /// Collectives that one execution takes part in. Bodies of loops whose trip count is only known at run time count once.
    pub(crate) fn collectives(&self) -> Collectives {
        collectives::of_computation(self, self.entry)
    }
}
