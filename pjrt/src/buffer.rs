//! Buffers: arrays on a device.

#![expect(unsafe_code, reason = "calls the plugin")]

use std::sync::Arc;

use crate::api::{Api, array};
use crate::client::Client;
use crate::device::Device;
use crate::download::Download;
use crate::element_type::{ElementType, Shape, dims_from_c};
use crate::error::Error;
use crate::event::Event;
use crate::ffi::buffer::{
    BufferDestroy, BufferDevice, BufferDimensions, BufferElementType, BufferOnDeviceSizeInBytes, BufferReadyEvent,
};
use crate::ffi::{Arguments, RawBuffer};
use crate::handle::Handle;

/// An array on a device, whose content may not be computed yet. Dropping the buffer returns its memory to the plugin.
#[derive(Debug)]
pub struct Buffer {
    owned: OwnedBuffer,
    shape: Arc<Shape>,
    device: Device,
}

/// The plugin's buffer, which is destroyed on drop.
#[derive(Debug)]
pub(crate) struct OwnedBuffer {
    raw: Handle<RawBuffer>,
    client: Client,
}

impl Buffer {
    /// Returns a buffer of this shape on this device.
    pub(crate) fn new(owned: OwnedBuffer, shape: Arc<Shape>, device: Device) -> Self {
        Self { owned, shape, device }
    }

    /// The type of the elements.
    pub fn element_type(&self) -> ElementType {
        self.shape.element_type
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.shape.dims
    }

    /// The element type and the dimensions.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The device that holds the buffer.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The size of the buffer on the device in bytes, padding included.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn size_in_bytes(&self) -> Result<usize, Error> {
        let arguments = BufferOnDeviceSizeInBytes { buffer: self.raw(), size: 0 };
        // SAFETY: `self` owns the buffer.
        Ok(unsafe { self.api().call(arguments) }?.size)
    }

    /// Returns an event that becomes ready when the content has been computed, or when its computation has failed.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn ready(&self) -> Result<Event, Error> {
        let arguments = BufferReadyEvent { buffer: self.raw(), event: std::ptr::null_mut() };
        // SAFETY: `self` owns the buffer.
        let out = unsafe { self.api().call(arguments) }?;
        Event::new(out.event, BufferReadyEvent::NAME, self.client())
    }

    /// Starts to copy the content to host memory, dense and row-major, without waiting for the copy. The copy begins
    /// after the content has been computed. The buffer may be dropped or donated before the copy ends.
    ///
    /// # Errors
    /// The plugin's error at the start of the copy.
    pub fn to_host(&self) -> Result<Download, Error> {
        Download::start(self)
    }

    /// The plugin's pointer to the buffer.
    pub(crate) fn raw(&self) -> *mut RawBuffer {
        self.owned.raw()
    }

    /// The client of the buffer.
    pub(crate) fn client(&self) -> &Client {
        &self.owned.client
    }

    fn api(&self) -> &Api {
        self.client().api()
    }
}

impl OwnedBuffer {
    /// Takes ownership of a buffer that the C function `function` returned.
    pub(crate) fn new(raw: *mut RawBuffer, function: &'static str, client: &Client) -> Result<Self, Error> {
        Ok(Self { raw: Handle::new(raw, function)?, client: client.clone() })
    }

    /// The plugin's pointer to the buffer.
    pub(crate) fn raw(&self) -> *mut RawBuffer {
        self.raw.get()
    }

    /// Queries the element type and the dimensions from the plugin.
    pub(crate) fn shape(&self) -> Result<Shape, Error> {
        let (api, buffer) = (self.client.api(), self.raw());
        // SAFETY: `self` owns the buffer.
        let element_type = unsafe { api.call(BufferElementType { buffer, element_type: 0, tail: 0 }) }?.element_type;
        // SAFETY: `self` owns the buffer.
        let out = unsafe { api.call(BufferDimensions { buffer, dims: std::ptr::null(), num_dims: 0 }) }?;
        // SAFETY: the dimensions live as long as the buffer.
        let dims = dims_from_c(unsafe { array(out.dims, out.num_dims) }, BufferDimensions::NAME)?;
        Ok(Shape { element_type: ElementType::from_number(element_type)?, dims })
    }

    /// Queries the device that holds the buffer from the plugin.
    pub(crate) fn device(&self) -> Result<Device, Error> {
        let arguments = BufferDevice { buffer: self.raw(), device: std::ptr::null_mut() };
        // SAFETY: `self` owns the buffer.
        let out = unsafe { self.client.api().call(arguments) }?;
        self.client.device_of(out.device, BufferDevice::NAME)
    }
}

impl Drop for OwnedBuffer {
    fn drop(&mut self) {
        // SAFETY: `self` owns the buffer and is not used afterwards. A failure cannot be reported.
        let _unheard = unsafe { self.client.api().call(BufferDestroy { buffer: self.raw() }) };
    }
}
