//! Stops the build of a grammar when nobody waits for the grammar any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::GrammarError;
use super::matcher::MaskStop;

/// Stops a build: at once while a mask is computed, otherwise before the next step of the build.
#[derive(Debug, Default)]
pub(super) struct BuildStop {
    is_stopped: AtomicBool,
    mask: Mutex<Option<MaskStop>>,
}

impl BuildStop {
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        if let Some(mask) = &*self.mask.lock().unwrap_or_else(PoisonError::into_inner) {
            mask.stop();
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Returns an error if the build should not go on.
    ///
    /// # Errors
    /// When the build is stopped. Nobody reads this error.
    pub(super) fn check(&self) -> Result<(), GrammarError> {
        if self.is_stopped() { Err(GrammarError::Busy) } else { Ok(()) }
    }

    /// Sets the handle that stops the masks computed from now on, or `None` if the next work cannot be stopped.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(super) fn set_mask(&self, mask: Option<MaskStop>) -> Result<(), GrammarError> {
        *self.mask.lock().unwrap_or_else(PoisonError::into_inner) = mask;
        self.check()
    }
}
