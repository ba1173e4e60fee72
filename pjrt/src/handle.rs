//! Pointers to objects of the plugin that any thread may use.

#![expect(unsafe_code, reason = "states that PJRT objects may cross threads")]

use std::ptr::NonNull;

use crate::error::Error;

/// A pointer to an object of the plugin, never null. The owner of the handle keeps everything alive on which the object
/// depends.
#[derive(Debug)]
pub(crate) struct Handle<T>(NonNull<T>);

// SAFETY: the plugin's objects of which this crate makes handles may be used and destroyed on any thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: several threads may call PJRT's functions on one object at the same time. Only destruction must come last,
// and the owners' `Drop` ensures this.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// Wraps a pointer that the C function `function` returned.
    ///
    /// # Errors
    /// When the pointer is null.
    pub(crate) fn new(pointer: *mut T, function: &'static str) -> Result<Self, Error> {
        NonNull::new(pointer).map(Self).ok_or(Error::Contract { function, what: "a null object" })
    }

    /// The plugin's pointer to the object.
    pub(crate) fn get(&self) -> *mut T {
        self.0.as_ptr()
    }
}
