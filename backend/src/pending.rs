//! Steps that a device may still be computing.

use std::pin::Pin;

use crate::{BackendError, StepOutput};

/// A step that was launched: a future of its results. Dropping it does not stop the device.
pub type PendingStep = Pin<Box<dyn Future<Output = Result<StepOutput, BackendError>> + Send>>;

/// Returns a step that is already computed.
pub fn computed(output: StepOutput) -> PendingStep {
    Box::pin(std::future::ready(Ok(output)))
}
