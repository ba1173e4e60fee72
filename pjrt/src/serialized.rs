//! Bytes that the plugin lends until a deleter is called.

#![expect(unsafe_code, reason = "reads lent bytes and calls their deleter")]

use std::ffi::c_char;

use crate::api::array;
use crate::ffi::RawSerialized;
use crate::ffi::executable::SerializedDeleter;

/// Bytes that a C function lends, the object that owns them, and the function that frees this object.
pub(crate) struct Lent {
    pub(crate) bytes: *const c_char,
    pub(crate) size: usize,
    pub(crate) serialized: *mut RawSerialized,
    pub(crate) deleter: Option<SerializedDeleter>,
}

impl Lent {
    /// Copies the bytes, then frees the plugin's bytes.
    ///
    /// # Safety
    /// All fields were returned by the same call of the plugin, and `take` is called only once for them.
    pub(crate) unsafe fn take(self) -> Vec<u8> {
        // SAFETY: the bytes exist until the deleter is called.
        let bytes = unsafe { array(self.bytes.cast::<u8>(), self.size) }.to_vec();
        if let Some(deleter) = self.deleter {
            // SAFETY: the deleter belongs to this object and is called only once.
            unsafe { deleter(self.serialized) };
        }
        bytes
    }
}
