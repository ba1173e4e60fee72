//! Errors of the CPU backend.

use backend::{BackendError, Fault};
use model::graph::GraphError;
use model::weights::WeightsError;

/// An error of the CPU backend.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CpuError {
    #[error("{num_threads} compute threads cannot be started: {source}; lower --threads")]
    Threads { num_threads: usize, source: rayon::ThreadPoolBuildError },
    #[error("the computation failed: {}", first_line(.0))]
    Compute(#[from] candle_core::Error),
    #[error(
        "the graph that computes the log-probabilities of prompt tokens cannot be built: {0}; this is a defect of this server"
    )]
    Graph(#[from] GraphError),
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl From<WeightsError> for CpuError {
    fn from(error: WeightsError) -> Self {
        Self::Backend(error.into())
    }
}

impl From<CpuError> for BackendError {
    fn from(error: CpuError) -> Self {
        match error {
            CpuError::Backend(error) => error,
            CpuError::Threads { .. } | CpuError::Compute(_) => Self::device(Fault::Failed, error),
            CpuError::Graph(_) => Self::device(Fault::Internal, error),
        }
    }
}

/// Returns the first line of the message, because candle appends a backtrace if `RUST_BACKTRACE` is set.
fn first_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
