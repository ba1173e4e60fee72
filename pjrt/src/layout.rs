//! Layouts: the order of an array's elements in a device's memory. The plugin's Layouts extension returns them.

#![expect(unsafe_code, reason = "calls the plugin")]

use std::fmt;

use crate::api::Api;
use crate::buffer::Buffer;
use crate::client::Client;
use crate::element_type::{ElementType, dims_to_c};
use crate::error::Error;
use crate::ffi::layouts::{LayoutDestroy, LayoutOfBuffer, LayoutOfClient, LayoutOfTopology, LayoutSerialize};
use crate::ffi::{Arguments, RawLayout};
use crate::handle::Handle;
use crate::serialized::Lent;
use crate::topology::Topology;

/// A layout in the plugin's syntax, such as `{1,0:T(8,128)(2,1)}`: the dimensions from fastest to slowest, then the
/// tiles.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Layout(Vec<u8>);

impl Layout {
    /// The layout in the plugin's syntax.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Copies a layout and destroys the plugin's object.
    ///
    /// # Safety
    /// `raw` is null or a layout that the caller owns.
    unsafe fn take(api: &Api, raw: *mut RawLayout, function: &'static str) -> Result<Self, Error> {
        let layout = Handle::new(raw, function)?.get();
        let arguments = LayoutSerialize {
            layout,
            bytes: std::ptr::null(),
            bytes_size: 0,
            serialized: std::ptr::null_mut(),
            deleter: None,
        };
        // SAFETY: the caller owns the layout, which has not been destroyed yet.
        let out = unsafe { api.call(arguments) }.map(|out| {
            let (bytes, size, serialized, deleter) = (out.bytes, out.bytes_size, out.serialized, out.deleter);
            // SAFETY: all four values were returned by the same call.
            Self(unsafe { Lent { bytes, size, serialized, deleter }.take() })
        });
        // SAFETY: this function owns the layout and does not use it afterwards. A failure cannot be reported.
        let _unheard = unsafe { api.call(LayoutDestroy { layout }) };
        out
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl Client {
    /// The default layout of an array of this element type and these dimensions on the client's devices.
    ///
    /// # Errors
    /// [`Error::Arguments`] for dimensions that are too large, or the plugin's error, with
    /// [`Error::is_unimplemented`] if the plugin has no Layouts extension.
    pub fn default_layout(&self, element_type: ElementType, dims: &[usize]) -> Result<Layout, Error> {
        let dims = dims_to_c(dims)?;
        let arguments = LayoutOfClient {
            client: self.raw(),
            element_type: element_type.number(),
            dims: dims.as_ptr(),
            num_dims: dims.len(),
            layout: std::ptr::null_mut(),
        };
        // SAFETY: `self` keeps the client alive. The dimensions are borrowed for the whole call.
        let out = unsafe { self.api().call(arguments) }?;
        // SAFETY: the C function returned a layout that its caller owns.
        unsafe { Layout::take(self.api(), out.layout, LayoutOfClient::NAME) }
    }
}

impl Topology {
    /// The default layout of an array of this element type and these dimensions on the topology's devices.
    ///
    /// # Errors
    /// [`Error::Arguments`] for dimensions that are too large, or the plugin's error, with
    /// [`Error::is_unimplemented`] if the plugin has no Layouts extension.
    pub fn default_layout(&self, element_type: ElementType, dims: &[usize]) -> Result<Layout, Error> {
        let dims = dims_to_c(dims)?;
        let arguments = LayoutOfTopology {
            topology: self.raw(),
            element_type: element_type.number(),
            dims: dims.as_ptr(),
            num_dims: dims.len(),
            layout: std::ptr::null_mut(),
        };
        // SAFETY: `self` keeps the topology alive. The dimensions are borrowed for the whole call.
        let out = unsafe { self.api().call(arguments) }?;
        // SAFETY: the C function returned a layout that its caller owns.
        unsafe { Layout::take(self.api(), out.layout, LayoutOfTopology::NAME) }
    }
}

impl Buffer {
    /// The layout of the buffer's elements in the device's memory.
    ///
    /// # Errors
    /// The plugin's error, with [`Error::is_unimplemented`] if the plugin has no Layouts extension.
    pub fn layout(&self) -> Result<Layout, Error> {
        let api = self.client().api();
        // SAFETY: `self` owns the buffer.
        let out = unsafe { api.call(LayoutOfBuffer { buffer: self.raw(), layout: std::ptr::null_mut() }) }?;
        // SAFETY: the C function returned a layout that its caller owns.
        unsafe { Layout::take(api, out.layout, LayoutOfBuffer::NAME) }
    }
}
