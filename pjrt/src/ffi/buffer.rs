//! Argument structs of the functions of buffers.

use std::ffi::c_void;

use super::values::MemoryLayout;
use super::{Arguments, RawBuffer, RawDevice, RawEvent, Struct};

/// `PJRT_Buffer_Destroy_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct BufferDestroy {
    pub(crate) buffer: *mut RawBuffer,
}

impl Arguments for BufferDestroy {
    const NAME: &'static str = "PJRT_Buffer_Destroy";
}

/// `PJRT_Buffer_ElementType_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct BufferElementType {
    pub(crate) buffer: *mut RawBuffer,
    pub(crate) element_type: i32,
    pub(crate) tail: u32,
}

impl Arguments for BufferElementType {
    const NAME: &'static str = "PJRT_Buffer_ElementType";
}

/// `PJRT_Buffer_Dimensions_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct BufferDimensions {
    pub(crate) buffer: *mut RawBuffer,
    pub(crate) dims: *const i64,
    pub(crate) num_dims: usize,
}

impl Arguments for BufferDimensions {
    const NAME: &'static str = "PJRT_Buffer_Dimensions";
}

/// `PJRT_Buffer_OnDeviceSizeInBytes_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct BufferOnDeviceSizeInBytes {
    pub(crate) buffer: *mut RawBuffer,
    pub(crate) size: usize,
}

impl Arguments for BufferOnDeviceSizeInBytes {
    const NAME: &'static str = "PJRT_Buffer_OnDeviceSizeInBytes";
}

/// `PJRT_Buffer_ToHostBuffer_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct BufferToHostBuffer {
    pub(crate) buffer: *mut RawBuffer,
    pub(crate) host_layout: *mut Struct<MemoryLayout>,
    pub(crate) dst: *mut c_void,
    pub(crate) dst_size: usize,
    pub(crate) event: *mut RawEvent,
}

impl Arguments for BufferToHostBuffer {
    const NAME: &'static str = "PJRT_Buffer_ToHostBuffer";
}

/// `PJRT_Buffer_ReadyEvent_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct BufferReadyEvent {
    pub(crate) buffer: *mut RawBuffer,
    pub(crate) event: *mut RawEvent,
}

impl Arguments for BufferReadyEvent {
    const NAME: &'static str = "PJRT_Buffer_ReadyEvent";
}

/// `PJRT_Buffer_Device_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct BufferDevice {
    pub(crate) buffer: *mut RawBuffer,
    pub(crate) device: *mut RawDevice,
}

impl Arguments for BufferDevice {
    const NAME: &'static str = "PJRT_Buffer_Device";
}
