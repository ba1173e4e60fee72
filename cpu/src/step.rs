//! The data that the operations of a graph read beside their operands.

use backend::{Batch, Membership};
use candle_core::Tensor;

use super::state::State;

/// The data of one run of a graph.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) batch: &'a Batch,
    pub(super) state: &'a State,
    /// The ranks that compute the other parts of the model.
    pub(super) membership: &'a Membership,
    /// Index of the sampled row for which a sampler runs.
    pub(super) sampled: usize,
    pub(super) arguments: &'a [Tensor],
}
