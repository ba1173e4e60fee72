//! A pointer to an object of the plugin, which may be used on any thread.

#![expect(unsafe_code, reason = "states that PJRT objects may cross threads")]

use std::ptr::NonNull;

use crate::error::Error;

/// A pointer to an object of the plugin, never null. Its owner also keeps alive what the object depends on.
#[derive(Debug)]
pub(crate) struct Handle<T>(NonNull<T>);

// SAFETY: PJRT's clients, devices, executables, buffers, events and topologies may be used and destroyed on any thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: PJRT's functions may run on one object at the same time. Only destruction must come last, and Drop ensures
// that.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// Wraps a pointer that `function` returned.
    pub(crate) fn new(pointer: *mut T, function: &'static str) -> Result<Self, Error> {
        NonNull::new(pointer).map(Self).ok_or(Error::Contract { function, what: "a null object" })
    }

    /// The pointer for calls.
    pub(crate) fn get(&self) -> *mut T {
        self.0.as_ptr()
    }
}
