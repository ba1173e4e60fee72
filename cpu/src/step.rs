//! The data that the operations of a graph read in addition to their operands.

use backend::{Batch, Membership, Pulse};
use candle_core::Tensor;

use super::state::State;

/// The data of one run of a graph.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) batch: &'a Batch,
    pub(super) state: &'a State,
    /// Connects this rank with the ranks that compute the other parts of the model.
    pub(super) membership: &'a Membership,
    /// Advances with each operation.
    pub(super) pulse: &'a Pulse,
    /// The index in [`Batch::sampled`] of the row for which a sampler runs.
    pub(super) sampled: usize,
    pub(super) arguments: &'a [Tensor],
}
