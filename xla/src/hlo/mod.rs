//! The memory reads and the collectives of a compiled program, counted in the optimised module that a plugin returns.
//!
//! Entry point: [`HloModule::parse`], then [`HloModule::reads`] and [`HloModule::collectives`]. Executed instructions
//! are counted: a loop's body once per iteration, a fusion as one instruction. Nothing is run and no time is estimated.

mod collectives;
mod cycles;
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
use loops::Trips;

/// A module as `PJRT_Executable_OptimizedProgram` returns it.
#[derive(Debug)]
pub(crate) struct HloModule {
    /// Callees come before their callers.
    computations: Vec<Computation>,
    entry: usize,
}

/// Numbers that are known only at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Assumed {
    /// The number of iterations of each loop that counts up to a number which is computed at run time.
    pub(crate) trips_up: u64,
    /// The number of iterations of each loop over what such a loop has left.
    pub(crate) trips_rest: u64,
    /// The number of iterations of each loop that counts down to 0 from such a number.
    pub(crate) trips_down: u64,
    /// Dividend and divisor of the factor by which the bytes that kernels say they read are multiplied.
    pub(crate) kernel_share: [u64; 2],
}

impl Default for Assumed {
    fn default() -> Self {
        Self::ONCE
    }
}

impl Assumed {
    /// Each loop runs once, and kernels read the bytes that they say.
    pub(crate) const ONCE: Self = Self { trips_up: 1, trips_rest: 1, trips_down: 1, kernel_share: [1, 1] };

    fn trips(self, trips: Trips) -> u64 {
        match trips {
            Trips::Known(trips) => trips,
            Trips::Up => self.trips_up,
            Trips::Rest => self.trips_rest,
            Trips::Down => self.trips_down,
        }
    }
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

    /// Returns the bytes that one execution reads from HBM.
    ///
    /// The sum covers the operands in HBM of the executed instructions that read memory, with the padding of their
    /// layouts. Of several branches the one that reads the most counts. If an instruction reads parts of an operand
    /// (slice, gather) or replaces parts (scatter), only those parts count. Prefetches into on-chip memory count; reads
    /// of their results do not. The data that the first instructions prefetch is fetched again at the end, for the next
    /// run; only one of the two prefetches counts. Of a kernel that states its bytes, these bytes count, without those
    /// of its results, times the share in `assumed`. `assumed` has what only a run would tell.
    pub(crate) fn reads(&self, assumed: Assumed) -> u64 {
        reads::Reads { module: self, assumed }.of_computation(self.entry)
    }

    /// Returns the cycles of one execution, as the compiler estimates them; 0 if it does not.
    pub(crate) fn cycles(&self, assumed: Assumed) -> u64 {
        cycles::of_computation(self, self.entry, assumed)
    }

    /// Counts the collectives of one execution. The body of a loop whose trip count is known only at run time counts
    /// once.
    pub(crate) fn collectives(&self) -> Collectives {
        collectives::of_computation(self, self.entry)
    }
}
