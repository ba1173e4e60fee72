//! Bytes that the plugin lends until a deleter is called.

#![expect(unsafe_code, reason = "reads lent bytes and calls their deleter")]

use std::ffi::c_char;

use crate::api::array;
use crate::ffi::RawSerialized;
use crate::ffi::executable::SerializedDeleter;

/// What a function lent: bytes, the object behind them, and what frees that object.
pub(crate) struct Lent {
    pub(crate) bytes: *const c_char,
    pub(crate) size: usize,
    pub(crate) serialized: *mut RawSerialized,
    pub(crate) deleter: Option<SerializedDeleter>,
}

impl Lent {
    /// Copies the bytes and gives them back.
    ///
    /// # Safety
    /// The fields are what one call of the plugin returned, and this is done once.
    pub(crate) unsafe fn take(self) -> Vec<u8> {
        // SAFETY: the bytes live until the deleter is called.
        let bytes = unsafe { array(self.bytes.cast::<u8>(), self.size) }.to_vec();
        if let Some(deleter) = self.deleter {
            // SAFETY: the deleter belongs to this object and is called once.
            unsafe { deleter(self.serialized) };
        }
        bytes
    }
}
