//! Stops the build of a grammar when nobody waits for the grammar any more.

use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::GrammarError;
use super::matcher::MaskStop;

/// Stops a build: at once while a mask is computed or a child process works, otherwise before the next step of the
/// build.
#[derive(Debug, Default)]
pub(super) struct BuildStop {
    is_stopped: AtomicBool,
    mask: Mutex<Option<MaskStop>>,
    child: Mutex<Option<Child>>,
}

impl BuildStop {
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        if let Some(mask) = &*self.mask.lock().unwrap_or_else(PoisonError::into_inner) {
            mask.stop();
        }
        if let Some(child) = &mut *self.child() {
            kill(child);
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
    /// Sets the child that works for the build from now on, and kills it if the build is stopped already.
    pub(super) fn set_child(&self, mut child: Child) {
        let mut held = self.child();
        if self.is_stopped() {
            kill(&mut child);
        }
        *held = Some(child);
    }

    /// Ends the child and frees its process id. Returns its exit status, which a child that has ended by itself keeps.
    pub(super) fn end_child(&self) -> Option<ExitStatus> {
        let mut child = self.child().take()?;
        kill(&mut child);
        child.wait().ok()
    }

    #[cfg(test)]
    pub(super) fn has_child(&self) -> bool {
        self.child().is_some()
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BuildStop {
    fn drop(&mut self) {
        // Only a thread that panicked leaves a child here.
        self.end_child();
    }
}

fn kill(child: &mut Child) {
    if let Err(error) = child.kill() {
        tracing::debug!("a child process cannot be killed: {error}");
    }
}
