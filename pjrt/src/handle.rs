//! A pointer to an object of the plugin, which may cross threads.

#![expect(unsafe_code, reason = "states that PJRT objects may cross threads")]

use std::ptr::NonNull;

use crate::error::Error;

/// A pointer to an object of the plugin, never null. Whoever owns it also owns what keeps it alive.
#[derive(Debug)]
pub(crate) struct Handle<T>(NonNull<T>);

// SAFETY: PJRT's clients, devices, executables, buffers, events and topologies may be used and destroyed on any thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: PJRT's functions on the same object may run at the same time; only destroying must be last, which Drop
// ensures.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// Wraps what `function` returned.
    pub(crate) fn new(pointer: *mut T, function: &'static str) -> Result<Self, Error> {
        NonNull::new(pointer).map(Self).ok_or(Error::Contract { function, what: "a null object" })
    }

    /// The pointer for a call.
    pub(crate) fn get(&self) -> *mut T {
        self.0.as_ptr()
    }
}
