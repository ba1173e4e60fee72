//! Argument structs of the functions of clients, devices and device descriptions.

use std::ffi::{c_char, c_void};

use super::values::{MemoryLayout, NamedValue, Program};
use super::{
    Arguments, RawBuffer, RawClient, RawDevice, RawDeviceDescription, RawEvent, RawLoadedExecutable, RawMemory,
    RawTopology, Struct,
};

/// Values of `PJRT_HostBufferSemantics`.
pub(crate) mod host_buffer_semantics {
    pub(crate) const IMMUTABLE_ONLY_DURING_CALL: i32 = 0;
    pub(crate) const IMMUTABLE_UNTIL_TRANSFER_COMPLETES: i32 = 1;
}

/// A number in `PJRT_Device_MemoryStats_Args`, with a flag that is true if the plugin has set the number.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct OptionalI64 {
    pub(crate) value: i64,
    pub(crate) is_set: u8,
    pub(crate) tail: [u8; 7],
}

/// `PJRT_Client_Create_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ClientCreate {
    pub(crate) create_options: *const NamedValue,
    pub(crate) num_options: usize,
    pub(crate) kv_get_callback: *const c_void,
    pub(crate) kv_get_user_arg: *mut c_void,
    pub(crate) kv_put_callback: *const c_void,
    pub(crate) kv_put_user_arg: *mut c_void,
    pub(crate) client: *mut RawClient,
    pub(crate) kv_try_get_callback: *const c_void,
    pub(crate) kv_try_get_user_arg: *mut c_void,
}

impl Arguments for ClientCreate {
    const NAME: &'static str = "PJRT_Client_Create";
}

/// `PJRT_Client_Destroy_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ClientDestroy {
    pub(crate) client: *mut RawClient,
}

impl Arguments for ClientDestroy {
    const NAME: &'static str = "PJRT_Client_Destroy";
}

/// `PJRT_Client_PlatformName_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ClientPlatformName {
    pub(crate) client: *mut RawClient,
    pub(crate) name: *const c_char,
    pub(crate) name_size: usize,
}

impl Arguments for ClientPlatformName {
    const NAME: &'static str = "PJRT_Client_PlatformName";
}

/// `PJRT_Client_PlatformVersion_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ClientPlatformVersion {
    pub(crate) client: *mut RawClient,
    pub(crate) version: *const c_char,
    pub(crate) version_size: usize,
}

impl Arguments for ClientPlatformVersion {
    const NAME: &'static str = "PJRT_Client_PlatformVersion";
}

/// `PJRT_Client_ProcessIndex_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ClientProcessIndex {
    pub(crate) client: *mut RawClient,
    pub(crate) process_index: i32,
    pub(crate) tail: u32,
}

impl Arguments for ClientProcessIndex {
    const NAME: &'static str = "PJRT_Client_ProcessIndex";
}

/// `PJRT_Client_TopologyDescription_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ClientTopologyDescription {
    pub(crate) client: *mut RawClient,
    pub(crate) topology: *mut RawTopology,
}

impl Arguments for ClientTopologyDescription {
    const NAME: &'static str = "PJRT_Client_TopologyDescription";
}

/// `PJRT_Client_Devices_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ClientDevices {
    pub(crate) client: *mut RawClient,
    pub(crate) devices: *const *mut RawDevice,
    pub(crate) num_devices: usize,
}

impl Arguments for ClientDevices {
    const NAME: &'static str = "PJRT_Client_Devices";
}

/// `PJRT_Client_AddressableDevices_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ClientAddressableDevices {
    pub(crate) client: *mut RawClient,
    pub(crate) devices: *const *mut RawDevice,
    pub(crate) num_devices: usize,
}

impl Arguments for ClientAddressableDevices {
    const NAME: &'static str = "PJRT_Client_AddressableDevices";
}

/// `PJRT_Client_Compile_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ClientCompile {
    pub(crate) client: *mut RawClient,
    pub(crate) program: *const Struct<Program>,
    pub(crate) compile_options: *const c_char,
    pub(crate) compile_options_size: usize,
    pub(crate) executable: *mut RawLoadedExecutable,
}

impl Arguments for ClientCompile {
    const NAME: &'static str = "PJRT_Client_Compile";
}

/// `PJRT_Client_BufferFromHostBuffer_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ClientBufferFromHostBuffer {
    pub(crate) client: *mut RawClient,
    pub(crate) data: *const c_void,
    pub(crate) element_type: i32,
    pub(crate) dims: *const i64,
    pub(crate) num_dims: usize,
    pub(crate) byte_strides: *const i64,
    pub(crate) num_byte_strides: usize,
    pub(crate) host_buffer_semantics: i32,
    pub(crate) device: *mut RawDevice,
    pub(crate) memory: *mut RawMemory,
    pub(crate) device_layout: *mut Struct<MemoryLayout>,
    pub(crate) done_with_host_buffer: *mut RawEvent,
    pub(crate) buffer: *mut RawBuffer,
}

impl Arguments for ClientBufferFromHostBuffer {
    const NAME: &'static str = "PJRT_Client_BufferFromHostBuffer";
}

/// `PJRT_DeviceDescription_Id_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct DescriptionId {
    pub(crate) description: *mut RawDeviceDescription,
    pub(crate) id: i32,
    pub(crate) tail: u32,
}

impl Arguments for DescriptionId {
    const NAME: &'static str = "PJRT_DeviceDescription_Id";
}

/// `PJRT_DeviceDescription_ProcessIndex_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct DescriptionProcessIndex {
    pub(crate) description: *mut RawDeviceDescription,
    pub(crate) process_index: i32,
    pub(crate) tail: u32,
}

impl Arguments for DescriptionProcessIndex {
    const NAME: &'static str = "PJRT_DeviceDescription_ProcessIndex";
}

/// `PJRT_DeviceDescription_Attributes_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct DescriptionAttributes {
    pub(crate) description: *mut RawDeviceDescription,
    pub(crate) num_attributes: usize,
    pub(crate) attributes: *const NamedValue,
}

impl Arguments for DescriptionAttributes {
    const NAME: &'static str = "PJRT_DeviceDescription_Attributes";
}

/// `PJRT_DeviceDescription_Kind_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct DescriptionKind {
    pub(crate) description: *mut RawDeviceDescription,
    pub(crate) kind: *const c_char,
    pub(crate) kind_size: usize,
}

impl Arguments for DescriptionKind {
    const NAME: &'static str = "PJRT_DeviceDescription_Kind";
}

/// `PJRT_DeviceDescription_DebugString_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct DescriptionDebugString {
    pub(crate) description: *mut RawDeviceDescription,
    pub(crate) text: *const c_char,
    pub(crate) text_size: usize,
}

impl Arguments for DescriptionDebugString {
    const NAME: &'static str = "PJRT_DeviceDescription_DebugString";
}

/// `PJRT_Device_GetDescription_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct DeviceGetDescription {
    pub(crate) device: *mut RawDevice,
    pub(crate) description: *mut RawDeviceDescription,
}

impl Arguments for DeviceGetDescription {
    const NAME: &'static str = "PJRT_Device_GetDescription";
}

/// `PJRT_Device_LocalHardwareId_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct DeviceLocalHardwareId {
    pub(crate) device: *mut RawDevice,
    pub(crate) local_hardware_id: i32,
    pub(crate) tail: u32,
}

impl Arguments for DeviceLocalHardwareId {
    const NAME: &'static str = "PJRT_Device_LocalHardwareId";
}

/// `PJRT_Device_MemoryStats_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct DeviceMemoryStats {
    pub(crate) device: *mut RawDevice,
    pub(crate) bytes_in_use: i64,
    pub(crate) peak_bytes_in_use: OptionalI64,
    pub(crate) num_allocs: OptionalI64,
    pub(crate) largest_alloc_size: OptionalI64,
    pub(crate) bytes_limit: OptionalI64,
    pub(crate) bytes_reserved: OptionalI64,
    pub(crate) peak_bytes_reserved: OptionalI64,
    pub(crate) bytes_reservable_limit: OptionalI64,
    pub(crate) largest_free_block_bytes: OptionalI64,
    pub(crate) pool_bytes: OptionalI64,
    pub(crate) peak_pool_bytes: OptionalI64,
}

impl Arguments for DeviceMemoryStats {
    const NAME: &'static str = "PJRT_Device_MemoryStats";
}

/// `PJRT_Device_PoisonExecution_Args`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct DevicePoisonExecution {
    pub(crate) device: *mut RawDevice,
    pub(crate) launch_id: i32,
    pub(crate) code: i32,
    pub(crate) message: *const c_char,
    pub(crate) message_size: usize,
    pub(crate) poisoned: u8,
    pub(crate) tail: [u8; 7],
    pub(crate) payload: *const NamedValue,
    pub(crate) num_payload: usize,
}

impl Arguments for DevicePoisonExecution {
    const NAME: &'static str = "PJRT_Device_PoisonExecution";
}
