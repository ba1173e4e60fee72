//! The functions of the fake plugin for its set-up, clients, devices and topologies.

use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Control, Kind, Table, control, enter};
use crate::ffi::client::{
    ClientAddressableDevices, ClientCreate, ClientDestroy, ClientDevices, ClientPlatformName, ClientPlatformVersion,
    ClientProcessIndex, ClientTopologyDescription, DescriptionAttributes, DescriptionDebugString, DescriptionId,
    DescriptionKind, DescriptionProcessIndex, DeviceGetDescription, DeviceLocalHardwareId, DeviceMemoryStats,
};
use crate::ffi::topology::{
    TopologyCreate, TopologyDestroy, TopologyDevices, TopologyFingerprint, TopologyPlatformName,
};
use crate::ffi::values::{NamedValue, NamedValueUnion, PluginAttributes, PluginInitialize, named_value_kind};
use crate::ffi::{RawDevice, RawDeviceDescription, RawError, Struct};

const KIND: &str = "fake device";
const NAME: &str = "fake";
const COORDS: [i64; 3] = [1, 0, 2];

/// A fake device, which is also its own description.
pub(super) struct FakeDevice {
    id: i32,
    attributes: [NamedValue; 1],
}

impl FakeDevice {
    fn new(id: i32) -> Self {
        let coords = NamedValue {
            struct_size: size_of::<NamedValue>(),
            extension_start: std::ptr::null(),
            name: "coords".as_ptr().cast(),
            name_size: "coords".len(),
            kind: named_value_kind::I64_LIST,
            value: NamedValueUnion { ints: COORDS.as_ptr() },
            value_size: COORDS.len(),
        };
        Self { id, attributes: [coords] }
    }
}

/// A fake client or topology, which owns two devices.
pub(super) struct FakeOwner {
    pub(super) devices: Vec<*mut FakeDevice>,
    kind: Kind,
    control: Arc<Control>,
}

impl FakeOwner {
    fn leak(kind: Kind) -> *mut Self {
        let control = control();
        control.born(kind);
        let devices = (0..2).map(|id| Box::into_raw(Box::new(FakeDevice::new(id)))).collect();
        Box::into_raw(Box::new(Self { devices, kind, control }))
    }
}

impl Drop for FakeOwner {
    fn drop(&mut self) {
        self.control.died(self.kind);
        if self.kind == Kind::Client {
            let orphans = self.control.total() - self.control.alive(Kind::Client) - self.control.alive(Kind::Topology);
            self.control.orphans.fetch_add(orphans, Ordering::SeqCst);
        }
        for device in &self.devices {
            // SAFETY: `leak` made the devices, and they are freed only once.
            drop(unsafe { Box::from_raw(*device) });
        }
    }
}

pub(super) fn fill(table: &mut Table) {
    table.set::<ClientCreate>(client_create);
    table.set::<ClientDestroy>(client_destroy);
    table.set::<ClientPlatformName>(platform_name);
    table.set::<ClientPlatformVersion>(platform_version);
    table.set::<ClientProcessIndex>(process_index);
    table.set::<ClientDevices>(devices);
    table.set::<ClientAddressableDevices>(addressable_devices);
    table.set::<ClientTopologyDescription>(client_topology);
    table.set::<DescriptionId>(id);
    table.set::<DescriptionProcessIndex>(description_process);
    table.set::<DescriptionKind>(kind);
    table.set::<DescriptionDebugString>(debug_string);
    table.set::<DescriptionAttributes>(attributes);
    table.set::<DeviceGetDescription>(description);
    table.set::<DeviceLocalHardwareId>(local_hardware_id);
    table.set::<DeviceMemoryStats>(memory_stats);
    table.set::<TopologyCreate>(topology_create);
    table.set::<TopologyDestroy>(topology_destroy);
    table.set::<TopologyDevices>(topology_devices);
    table.set::<TopologyPlatformName>(topology_platform_name);
    table.set::<TopologyFingerprint>(topology_fingerprint);
}

pub(super) unsafe extern "C-unwind" fn plugin_initialize(call: *mut Struct<PluginInitialize>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    unsafe { enter(call) }
}

pub(super) unsafe extern "C-unwind" fn plugin_attributes(call: *mut Struct<PluginAttributes>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn client_create(call: *mut Struct<ClientCreate>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    let error = unsafe { enter(call) };
    if error.is_null() {
        // SAFETY: as above.
        unsafe { (*call).fields.client = FakeOwner::leak(Kind::Client).cast() };
    }
    error
}

unsafe extern "C-unwind" fn client_destroy(call: *mut Struct<ClientDestroy>) -> *mut RawError {
    // SAFETY: `client_create` made the client, which is destroyed only once.
    drop(unsafe { Box::from_raw((*call).fields.client.cast::<FakeOwner>()) });
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn platform_name(call: *mut Struct<ClientPlatformName>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    unsafe { (*call).fields.name = NAME.as_ptr().cast::<c_char>() };
    // SAFETY: as above.
    unsafe { (*call).fields.name_size = NAME.len() };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn platform_version(call: *mut Struct<ClientPlatformVersion>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call. The function
    // sets no version, so the version is empty text.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn process_index(call: *mut Struct<ClientProcessIndex>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn devices(call: *mut Struct<ClientDevices>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a client that has not been destroyed.
    unsafe {
        let owner = &*(*call).fields.client.cast::<FakeOwner>();
        (*call).fields.devices = owner.devices.as_ptr().cast::<*mut RawDevice>();
        (*call).fields.num_devices = owner.devices.len();
        enter(call)
    }
}

unsafe extern "C-unwind" fn addressable_devices(call: *mut Struct<ClientAddressableDevices>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a client that has not been destroyed.
    unsafe {
        let owner = &*(*call).fields.client.cast::<FakeOwner>();
        (*call).fields.devices = owner.devices.as_ptr().cast::<*mut RawDevice>();
        (*call).fields.num_devices = owner.devices.len();
        enter(call)
    }
}

unsafe extern "C-unwind" fn client_topology(call: *mut Struct<ClientTopologyDescription>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct. A client of this plugin is also its own topology.
    unsafe { (*call).fields.topology = (*call).fields.client.cast() };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn id(call: *mut Struct<DescriptionId>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a description that has not been destroyed.
    unsafe { (*call).fields.id = (*(*call).fields.description.cast::<FakeDevice>()).id };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn description_process(call: *mut Struct<DescriptionProcessIndex>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn kind(call: *mut Struct<DescriptionKind>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    unsafe { (*call).fields.kind = KIND.as_ptr().cast::<c_char>() };
    // SAFETY: as above.
    unsafe { (*call).fields.kind_size = KIND.len() };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn debug_string(call: *mut Struct<DescriptionDebugString>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn attributes(call: *mut Struct<DescriptionAttributes>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a description that has not been destroyed.
    unsafe {
        let device = &*(*call).fields.description.cast::<FakeDevice>();
        (*call).fields.attributes = device.attributes.as_ptr();
        (*call).fields.num_attributes = device.attributes.len();
        enter(call)
    }
}

unsafe extern "C-unwind" fn description(call: *mut Struct<DeviceGetDescription>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a device that has not been destroyed.
    unsafe { (*call).fields.description = (*call).fields.device.cast::<RawDeviceDescription>() };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn local_hardware_id(call: *mut Struct<DeviceLocalHardwareId>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a device that has not been destroyed.
    unsafe { (*call).fields.local_hardware_id = (*(*call).fields.device.cast::<FakeDevice>()).id - 1 };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn memory_stats(call: *mut Struct<DeviceMemoryStats>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    unsafe {
        (*call).fields.bytes_in_use = 10;
        (*call).fields.bytes_limit.value = 100;
        (*call).fields.bytes_limit.is_set = true;
        enter(call)
    }
}

unsafe extern "C-unwind" fn topology_create(call: *mut Struct<TopologyCreate>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    let error = unsafe { enter(call) };
    if error.is_null() {
        // SAFETY: as above.
        unsafe { (*call).fields.topology = FakeOwner::leak(Kind::Topology).cast() };
    }
    error
}

unsafe extern "C-unwind" fn topology_destroy(call: *mut Struct<TopologyDestroy>) -> *mut RawError {
    // SAFETY: `topology_create` made the topology, which is destroyed only once.
    drop(unsafe { Box::from_raw((*call).fields.topology.cast::<FakeOwner>()) });
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn topology_devices(call: *mut Struct<TopologyDevices>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a topology that has not been destroyed.
    unsafe {
        let owner = &*(*call).fields.topology.cast::<FakeOwner>();
        (*call).fields.descriptions = owner.devices.as_ptr().cast::<*mut RawDeviceDescription>();
        (*call).fields.num_descriptions = owner.devices.len();
        enter(call)
    }
}

unsafe extern "C-unwind" fn topology_platform_name(call: *mut Struct<TopologyPlatformName>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    unsafe { (*call).fields.name = NAME.as_ptr().cast::<c_char>() };
    // SAFETY: as above.
    unsafe { (*call).fields.name_size = NAME.len() };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn topology_fingerprint(call: *mut Struct<TopologyFingerprint>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    unsafe { (*call).fields.fingerprint = 42 };
    // SAFETY: as above.
    unsafe { enter(call) }
}
