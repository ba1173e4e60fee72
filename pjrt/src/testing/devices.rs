//! The functions of the fake plugin for its set-up, clients, devices and topologies.

use std::ffi::c_char;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::{Control, Kind, Slice, SliceDevice, Table, control, enter};
use crate::Value;
use crate::ffi::client::{
    ClientAddressableDevices, ClientCreate, ClientDestroy, ClientDevices, ClientPlatformName, ClientPlatformVersion,
    ClientProcessIndex, ClientTopologyDescription, DescriptionAttributes, DescriptionDebugString, DescriptionId,
    DescriptionKind, DescriptionProcessIndex, DeviceGetDescription, DeviceLocalHardwareId, DeviceMemoryStats,
};
use crate::ffi::topology::{
    TopologyAttributes, TopologyCreate, TopologyDestroy, TopologyDevices, TopologyFingerprint, TopologyPlatformName,
    TopologyPlatformVersion,
};
use crate::ffi::values::{NamedValue, PluginAttributes, PluginInitialize};
use crate::ffi::{Arguments, RawDevice, RawDeviceDescription, RawError, Struct};
use crate::named_value::{read_values, write_value};

/// A fake device, which is also its own description.
pub(super) struct FakeDevice {
    facts: SliceDevice,
    attributes: NamedValues,
    control: Arc<Control>,
}

impl FakeDevice {
    fn leak(facts: SliceDevice, control: &Arc<Control>) -> *mut Self {
        let attributes = NamedValues::new(vec![("coords".to_owned(), Value::I64List(facts.coords.to_vec()))]);
        Box::into_raw(Box::new(Self { facts, attributes, control: Arc::clone(control) }))
    }

    /// Returns the control of a device.
    ///
    /// # Safety
    /// `device` is a device of this plugin whose client exists.
    pub(super) unsafe fn control(device: *mut RawDevice) -> Arc<Control> {
        // SAFETY: the caller promised that the device exists.
        Arc::clone(unsafe { &(*device.cast::<Self>()).control })
    }
}

/// Values and the array that lends them.
struct NamedValues {
    array: Vec<NamedValue>,
    /// The owner of the memory to which the array points.
    _values: Vec<(String, Value)>,
}

impl NamedValues {
    fn new(values: Vec<(String, Value)>) -> Self {
        Self { array: values.iter().map(|(name, value)| write_value(name, value)).collect(), _values: values }
    }
}

/// A fake client or topology, which owns the devices of the control's [`Slice`](super::Slice).
pub(super) struct FakeOwner {
    platform: String,
    process_index: i32,
    devices: Vec<*mut FakeDevice>,
    /// The devices of the client's process.
    addressable: Vec<*mut FakeDevice>,
    attributes: NamedValues,
    kind: Kind,
    pub(super) control: Arc<Control>,
}

impl FakeOwner {
    fn leak(kind: Kind) -> *mut Self {
        let control = control();
        control.born(kind);
        let Slice { platform, devices, process_index, attributes } = control.slice();
        let is_addressable = |device: &SliceDevice| device.process_index == process_index;
        let is_addressable: Vec<bool> = devices.iter().map(is_addressable).collect();
        let devices: Vec<_> = devices.into_iter().map(|device| FakeDevice::leak(device, &control)).collect();
        let addressable = devices.iter().zip(is_addressable).filter_map(|(device, is)| is.then_some(*device));
        let (addressable, attributes) = (addressable.collect(), NamedValues::new(attributes));
        Box::into_raw(Box::new(Self { platform, process_index, devices, addressable, attributes, kind, control }))
    }

    /// Returns the devices that run a program which is assigned to the ids `assigned`: the devices of this client's
    /// process that have these ids, or all devices of the process if `assigned` is empty.
    pub(super) fn running_on(&self, assigned: &[i64]) -> Vec<*mut RawDevice> {
        // SAFETY: the devices exist as long as `self`.
        let id = |device: &*mut FakeDevice| i64::from(unsafe { (**device).facts.id });
        let with_id = |wanted: &i64| self.addressable.iter().find(|device| id(device) == *wanted).copied();
        let devices: Vec<*mut FakeDevice> = match assigned {
            [] => self.addressable.clone(),
            _ => assigned.iter().filter_map(with_id).collect(),
        };
        devices.into_iter().map(<*mut FakeDevice>::cast).collect()
    }
}

impl Drop for FakeOwner {
    fn drop(&mut self) {
        if self.kind == Kind::Client {
            let total = self.control.total();
            let orphans = total - self.control.alive(Kind::Client) - self.control.alive(Kind::Topology);
            self.control.orphans.fetch_add(orphans, Ordering::SeqCst);
            let mut destroyed_on = self.control.destroyed_on.lock().unwrap_or_else(PoisonError::into_inner);
            *destroyed_on = Some(std::thread::current().id());
        }
        for device in &self.devices {
            // SAFETY: `leak` made the devices, and they are freed only once.
            drop(unsafe { Box::from_raw(*device) });
        }
        self.control.died(self.kind);
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
    table.set::<TopologyPlatformVersion>(topology_platform_version);
    table.set::<TopologyAttributes>(topology_attributes);
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
        unsafe {
            let fields = &mut (*call).fields;
            let options = read_values(fields.create_options, fields.num_options, ClientCreate::NAME);
            control().set_client_options(options.expect("the options have the size of this header"));
            fields.client = FakeOwner::leak(Kind::Client).cast();
        }
    }
    error
}

unsafe extern "C-unwind" fn client_destroy(call: *mut Struct<ClientDestroy>) -> *mut RawError {
    // SAFETY: `client_create` made the client, which is destroyed only once.
    drop(unsafe { Box::from_raw((*call).fields.client.cast::<FakeOwner>()) });
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn platform_name(call: *mut Struct<ClientPlatformName>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a client that has not been destroyed.
    unsafe {
        let name = &(*(*call).fields.client.cast::<FakeOwner>()).platform;
        (*call).fields.name = name.as_ptr().cast::<c_char>();
        (*call).fields.name_size = name.len();
        enter(call)
    }
}

unsafe extern "C-unwind" fn platform_version(call: *mut Struct<ClientPlatformVersion>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call. The function
    // sets no version, so the version is empty text.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn process_index(call: *mut Struct<ClientProcessIndex>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a client that has not been destroyed.
    unsafe {
        (*call).fields.process_index = (*(*call).fields.client.cast::<FakeOwner>()).process_index;
        enter(call)
    }
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
        (*call).fields.devices = owner.addressable.as_ptr().cast::<*mut RawDevice>();
        (*call).fields.num_devices = owner.addressable.len();
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
    unsafe { (*call).fields.id = (*(*call).fields.description.cast::<FakeDevice>()).facts.id };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn description_process(call: *mut Struct<DescriptionProcessIndex>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a description that has not been destroyed.
    unsafe {
        (*call).fields.process_index = (*(*call).fields.description.cast::<FakeDevice>()).facts.process_index;
        enter(call)
    }
}

unsafe extern "C-unwind" fn kind(call: *mut Struct<DescriptionKind>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a description that has not been destroyed.
    unsafe {
        let kind = &(*(*call).fields.description.cast::<FakeDevice>()).facts.kind;
        (*call).fields.kind = kind.as_ptr().cast::<c_char>();
        (*call).fields.kind_size = kind.len();
        enter(call)
    }
}

unsafe extern "C-unwind" fn debug_string(call: *mut Struct<DescriptionDebugString>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn attributes(call: *mut Struct<DescriptionAttributes>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a description that has not been destroyed.
    unsafe {
        let device = &*(*call).fields.description.cast::<FakeDevice>();
        (*call).fields.attributes = device.attributes.array.as_ptr();
        (*call).fields.num_attributes = device.attributes.array.len();
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
    unsafe { (*call).fields.local_hardware_id = (*(*call).fields.device.cast::<FakeDevice>()).facts.id - 1 };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn memory_stats(call: *mut Struct<DeviceMemoryStats>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a device that has not been destroyed.
    unsafe {
        let limit = (*(*call).fields.device.cast::<FakeDevice>()).facts.bytes_limit;
        (*call).fields.bytes_in_use = 10;
        (*call).fields.bytes_limit.value = limit.unwrap_or(0);
        // Any other value than 0 is true in C.
        (*call).fields.bytes_limit.is_set = if limit.is_some() { 2 } else { 0 };
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
    // SAFETY: the caller passes a valid argument struct with a topology that has not been destroyed.
    unsafe {
        let name = &(*(*call).fields.topology.cast::<FakeOwner>()).platform;
        (*call).fields.name = name.as_ptr().cast::<c_char>();
        (*call).fields.name_size = name.len();
        enter(call)
    }
}

unsafe extern "C-unwind" fn topology_fingerprint(call: *mut Struct<TopologyFingerprint>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    unsafe { (*call).fields.fingerprint = 42 };
    // SAFETY: as above.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn topology_platform_version(call: *mut Struct<TopologyPlatformVersion>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call. The version is
    // empty text, like that of clients.
    unsafe { enter(call) }
}

unsafe extern "C-unwind" fn topology_attributes(call: *mut Struct<TopologyAttributes>) -> *mut RawError {
    // SAFETY: the caller passes a valid argument struct with a topology that has not been destroyed.
    unsafe {
        let attributes = &(*(*call).fields.topology.cast::<FakeOwner>()).attributes.array;
        (*call).fields.attributes = attributes.as_ptr();
        (*call).fields.num_attributes = attributes.len();
        enter(call)
    }
}
