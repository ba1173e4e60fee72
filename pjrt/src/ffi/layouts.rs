//! Argument structs of the Layouts extension.

use std::ffi::c_char;

use super::executable::SerializedDeleter;
use super::{Arguments, RawBuffer, RawClient, RawLayout, RawSerialized, RawTopology};

/// `PJRT_Layouts_MemoryLayout_Destroy_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LayoutDestroy {
    pub(crate) layout: *mut RawLayout,
}

impl Arguments for LayoutDestroy {
    const NAME: &'static str = "PJRT_Layouts_MemoryLayout_Destroy";
}

/// `PJRT_Layouts_MemoryLayout_Serialize_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LayoutSerialize {
    pub(crate) layout: *mut RawLayout,
    pub(crate) bytes: *const c_char,
    pub(crate) bytes_size: usize,
    pub(crate) serialized: *mut RawSerialized,
    pub(crate) deleter: Option<SerializedDeleter>,
}

impl Arguments for LayoutSerialize {
    const NAME: &'static str = "PJRT_Layouts_MemoryLayout_Serialize";
}

/// `PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LayoutOfBuffer {
    pub(crate) buffer: *mut RawBuffer,
    pub(crate) layout: *mut RawLayout,
}

impl Arguments for LayoutOfBuffer {
    const NAME: &'static str = "PJRT_Layouts_PJRT_Buffer_MemoryLayout";
}

/// `PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LayoutOfClient {
    pub(crate) client: *mut RawClient,
    pub(crate) element_type: i32,
    pub(crate) dims: *const i64,
    pub(crate) num_dims: usize,
    pub(crate) layout: *mut RawLayout,
}

impl Arguments for LayoutOfClient {
    const NAME: &'static str = "PJRT_Layouts_PJRT_Client_GetDefaultLayout";
}

/// `PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LayoutOfTopology {
    pub(crate) topology: *mut RawTopology,
    pub(crate) element_type: i32,
    pub(crate) dims: *const i64,
    pub(crate) num_dims: usize,
    pub(crate) layout: *mut RawLayout,
}

impl Arguments for LayoutOfTopology {
    const NAME: &'static str = "PJRT_Layouts_PJRT_Topology_GetDefaultLayout";
}
