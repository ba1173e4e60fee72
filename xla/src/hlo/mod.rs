//! The memory reads and the collectives of a compiled program, counted in the optimised module that a plugin returns.
//!
//! Entry point: [`HloModule::parse`], then [`HloModule::reads`] and [`HloModule::collectives`]. Executed instructions
//! are counted: a loop's body once per iteration, a fusion as one instruction. Nothing is run and no time is estimated.

mod collectives;
mod error;
mod graph;
mod loops;
mod proto;
mod reads;
mod shape;
#[cfg(test)]
mod tests;

use prost::Message as _;

pub(crate) use collectives::Collectives;
pub(crate) use error::HloError;
use graph::Computation;

/// A module as `PJRT_Executable_OptimizedProgram` returns it.
#[derive(Debug)]
pub(crate) struct HloModule {
    /// Callees come before their callers.
    computations: Vec<Computation>,
    entry: usize,
}

impl HloModule {
    /// Reads the result of [`pjrt::Executable::optimized_program`](pjrt::Executable::optimized_program).
    ///
    /// # Errors
    /// When the format is unknown, the bytes are not a message of this format, or the module names an item that is
    /// missing or comes later.
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

    /// Returns the bytes that one execution reads from HBM. Each loop whose trip count is known only at run time runs
    /// `dynamic_trip_count` times.
    ///
    /// The sum covers the operands in HBM of the executed instructions that read memory, with the padding of their
    /// layouts. Of several branches the one that reads the most counts. If an instruction reads parts of an operand
    /// (slice, gather) or replaces parts (scatter), only those parts count. Prefetches into the chip's memory count;
    /// reads of their results do not. The data that the first instructions prefetch is fetched again at the end, for
    /// the next run; only one of the two prefetches counts. A kernel counts with the bytes that it says it reads,
    /// multiplied by the first number of `kernel_share` and divided by the second.
    pub(crate) fn reads(&self, dynamic_trip_count: u64, kernel_share: [u64; 2]) -> u64 {
        reads::Reads { module: self, dynamic_trip_count, kernel_share }.of_computation(self.entry)
    }

    /// Counts the collectives of one execution. The body of a loop whose trip count is known only at run time counts
    /// once.
    pub(crate) fn collectives(&self) -> Collectives {
        collectives::of_computation(self, self.entry)
    }
}
