//! Copies from host memory to a device.

#![expect(unsafe_code, reason = "lends host memory to the plugin for the length of a transfer")]

use std::ffi::c_void;
use std::sync::Arc;

use crate::buffer::{Buffer, OwnedBuffer};
use crate::client::Client;
use crate::device::Device;
use crate::element_type::{ElementType, Shape, dims_to_c, host_bytes};
use crate::error::Error;
use crate::event::{Event, Kept};
use crate::ffi::Arguments;
use crate::ffi::client::{ClientBufferFromHostBuffer, host_buffer_semantics};

/// A dense, row-major array in host memory whose length has been checked.
#[derive(Debug, Clone, Copy)]
pub struct HostSlice<'a> {
    element_type: ElementType,
    dims: &'a [usize],
    bytes: &'a [u8],
}

impl<'a> HostSlice<'a> {
    /// Wraps `bytes` as an array of dimensions `dims`. Elements are little-endian, and 4-bit integers take one byte
    /// each.
    ///
    /// # Errors
    /// [`Error::Arguments`] if the dimensions need another number of bytes.
    pub fn new(element_type: ElementType, dims: &'a [usize], bytes: &'a [u8]) -> Result<Self, Error> {
        check_length(element_type, dims, bytes.len())?;
        Ok(Self { element_type, dims, bytes })
    }

    /// The type of the elements.
    pub fn element_type(&self) -> ElementType {
        self.element_type
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &'a [usize] {
        self.dims
    }

    /// The bytes of the array.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// An upload that the plugin has started.
struct Started {
    buffer: Result<Buffer, Error>,
    /// The event that becomes ready when the plugin no longer uses the bytes.
    done: Result<Event, Error>,
}

impl Client {
    /// Copies an array to a device. The host memory may be reused when this function returns, even if the transfer
    /// continues.
    ///
    /// # Errors
    /// [`Error::Arguments`] for a device of another client or dimensions that are too large, or the plugin's error, for
    /// example if the device lacks memory.
    pub fn upload(&self, host: HostSlice<'_>, device: &Device) -> Result<Buffer, Error> {
        let semantics = host_buffer_semantics::IMMUTABLE_ONLY_DURING_CALL;
        // SAFETY: the plugin reads the bytes only during the call, and the slice is borrowed for the whole call.
        let Started { buffer, done: _ } = unsafe { self.start_upload(host, device, semantics) }?;
        buffer
    }

    /// Copies an array to a device without waiting for the copy. `owner` is dropped after the plugin has read all
    /// bytes, even if the buffer is dropped earlier, and perhaps on a thread of the plugin. If the upload cannot start,
    /// `owner` is dropped at once; if the plugin cannot report the end, `owner` is leaked. The owner's destructor must
    /// not panic.
    ///
    /// # Errors
    /// As for [`Client::upload`], and [`Error::Arguments`] if the dimensions need another number of bytes.
    pub fn upload_owned<T: AsRef<[u8]> + Send + 'static>(
        &self,
        owner: T,
        element_type: ElementType,
        dims: &[usize],
        device: &Device,
    ) -> Result<Buffer, Error> {
        let semantics = host_buffer_semantics::IMMUTABLE_UNTIL_TRANSFER_COMPLETES;
        let kept = Kept::leak(self, owner);
        // SAFETY: `kept` is freed only after the plugin has used the bytes. The borrow ends earlier, and nothing else
        // uses `kept`.
        let bytes = unsafe { Kept::owner(kept) }.as_ref();
        let host = HostSlice::new(element_type, dims, bytes);
        // SAFETY: the owner is on the heap, and it is neither moved nor freed until the event is ready.
        match host.and_then(|host| unsafe { self.start_upload(host, device, semantics) }) {
            Ok(Started { buffer, done }) => {
                // Without the event, nobody knows when the plugin stops reading, so the owner stays leaked.
                let done = done?;
                // SAFETY: `kept` was leaked above, and nothing else frees it.
                unsafe { done.release_when_ready(kept) }?;
                buffer
            }
            Err(error) => {
                // SAFETY: the plugin does not use the bytes, because the upload has not started.
                unsafe { Kept::free(kept) };
                Err(error)
            }
        }
    }

    /// Starts an upload. An error means that the plugin does not use the bytes.
    ///
    /// # Safety
    /// The bytes stay readable and unchanged for as long as `host_buffer_semantics` demands.
    unsafe fn start_upload(
        &self,
        host: HostSlice<'_>,
        device: &Device,
        host_buffer_semantics: i32,
    ) -> Result<Started, Error> {
        if !self.is_same(device.client()) {
            return Err(Error::Arguments("the device of an upload belongs to another client".to_owned()));
        }
        let dims = dims_to_c(host.dims)?;
        let arguments = ClientBufferFromHostBuffer {
            client: self.raw(),
            data: host.bytes.as_ptr().cast::<c_void>(),
            element_type: host.element_type.number(),
            dims: dims.as_ptr(),
            num_dims: dims.len(),
            byte_strides: std::ptr::null(),
            num_byte_strides: 0,
            host_buffer_semantics,
            device: device.raw(),
            memory: std::ptr::null_mut(),
            device_layout: std::ptr::null_mut(),
            done_with_host_buffer: std::ptr::null_mut(),
            buffer: std::ptr::null_mut(),
        };
        // SAFETY: `self` keeps the client and its device alive, the number of bytes was checked, and the caller
        // promised to keep the bytes.
        let out = unsafe { self.api().call(arguments) }?;
        let function = ClientBufferFromHostBuffer::NAME;
        let shape = Shape { element_type: host.element_type, dims: host.dims.to_vec() };
        let buffer = OwnedBuffer::new(out.buffer, function, self);
        Ok(Started {
            buffer: buffer.map(|owned| Buffer::new(owned, Arc::new(shape), device.clone())),
            done: Event::new(out.done_with_host_buffer, function, self),
        })
    }
}

fn check_length(element_type: ElementType, dims: &[usize], found: usize) -> Result<(), Error> {
    match host_bytes(element_type, dims) {
        Some(expected) if expected == found => Ok(()),
        Some(expected) => Err(Error::Arguments(format!(
            "an array of {element_type} with dimensions {dims:?} needs {expected} bytes, but has {found}"
        ))),
        None => Err(Error::Arguments(format!(
            "an array of {element_type} with dimensions {dims:?} is too large to address"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_checked() {
        assert!(HostSlice::new(ElementType::Bf16, &[2, 3], &[0; 12]).is_ok());
        let error = HostSlice::new(ElementType::Bf16, &[2, 3], &[0; 6]).expect_err("too short");
        let expected =
            "an array of bf16 with dimensions [2, 3] needs 12 bytes, but has 6; this is a defect of this server";
        assert_eq!(error.to_string(), expected);
        assert!(HostSlice::new(ElementType::F32, &[usize::MAX], &[]).is_err());
        assert!(HostSlice::new(ElementType::F32, &[0, 4], &[]).is_ok());
    }
}
