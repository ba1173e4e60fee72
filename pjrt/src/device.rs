//! Devices, and their descriptions, which exist without the device too.

#![expect(unsafe_code, reason = "calls the plugin")]

use crate::api::{Api, array, text};
use crate::client::Client;
use crate::error::{Code, Error};
use crate::ffi::client::{
    DescriptionAttributes, DescriptionDebugString, DescriptionId, DescriptionKind, DescriptionProcessIndex,
    DeviceGetDescription, DeviceLocalHardwareId, DeviceMemoryStats, DevicePoisonExecution, OptionalI64,
};
use crate::ffi::{RawDevice, RawDeviceDescription};
use crate::handle::Handle;
use crate::named_value::{Value, find, read_values};

/// What is known of a device without talking to it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceDescription {
    /// Its number, unique among the devices of all hosts: what a device assignment names.
    pub id: i64,
    /// The process that can talk to it.
    pub process_index: i64,
    /// The vendor's name, such as `TPU v5 lite` or `cpu`.
    pub kind: String,
    /// Text that tells it from all others.
    pub debug_string: String,
    /// What else the plugin tells, such as `coords` and `core_on_chip`.
    pub attributes: Vec<(String, Value)>,
}

impl DeviceDescription {
    /// One of its attributes.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        find(&self.attributes, name)
    }

    /// Its place among the chips of a TPU slice.
    pub fn coords(&self) -> Option<&[i64]> {
        match self.attribute("coords")? {
            Value::I64List(coords) => Some(coords),
            Value::String(_) | Value::I64(_) | Value::F32(_) | Value::Bool(_) => None,
        }
    }

    /// Reads a description.
    ///
    /// # Safety
    /// `description` is alive.
    pub(crate) unsafe fn read(api: &Api, description: *mut RawDeviceDescription) -> Result<Self, Error> {
        // SAFETY: the description is alive; so for the calls below.
        let id = unsafe { api.call(DescriptionId { description, id: 0, tail: 0 }) }?.id;
        // SAFETY: as above.
        let process = unsafe { api.call(DescriptionProcessIndex { description, process_index: 0, tail: 0 }) }?;
        // SAFETY: as above.
        let kind = unsafe { api.call(DescriptionKind { description, kind: std::ptr::null(), kind_size: 0 }) }?;
        // SAFETY: as above.
        let debug = unsafe { api.call(DescriptionDebugString { description, text: std::ptr::null(), text_size: 0 }) }?;
        let arguments = DescriptionAttributes { description, num_attributes: 0, attributes: std::ptr::null() };
        // SAFETY: as above.
        let attributes = match unsafe { api.call(arguments) } {
            // SAFETY: they live as long as the description.
            Ok(out) => unsafe { read_values(out.attributes, out.num_attributes) },
            Err(error) if error.is_unimplemented() => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Self {
            id: id.into(),
            process_index: process.process_index.into(),
            // SAFETY: the text lives as long as the description.
            kind: unsafe { text(kind.kind, kind.kind_size) },
            // SAFETY: as above.
            debug_string: unsafe { text(debug.text, debug.text_size) },
            attributes,
        })
    }

    /// Reads an array of descriptions.
    ///
    /// # Safety
    /// `start` and `size` are what the plugin returned, and the descriptions are alive.
    pub(crate) unsafe fn read_all(
        api: &Api,
        start: *const *mut RawDeviceDescription,
        size: usize,
    ) -> Result<Vec<Self>, Error> {
        // SAFETY: the caller's promise.
        let descriptions = unsafe { array(start, size) };
        // SAFETY: as above.
        descriptions.iter().map(|description| unsafe { Self::read(api, *description) }).collect()
    }
}

/// What a client keeps of a device.
#[derive(Debug)]
pub(crate) struct DeviceEntry {
    pub(crate) raw: Handle<RawDevice>,
    pub(crate) description: DeviceDescription,
    pub(crate) local_hardware_id: Option<i64>,
}

impl DeviceEntry {
    /// Reads a device.
    ///
    /// # Safety
    /// `device` is alive.
    pub(crate) unsafe fn read(api: &Api, device: *mut RawDevice) -> Result<Self, Error> {
        let raw = Handle::new(device, "PJRT_Client_Devices")?;
        // SAFETY: the device is alive; so for the calls below.
        let out = unsafe { api.call(DeviceGetDescription { device, description: std::ptr::null_mut() }) }?;
        // SAFETY: a description lives as long as its device.
        let description = unsafe { DeviceDescription::read(api, out.description) }?;
        // SAFETY: as above. A device of another host has no such number; some plugins call that an error.
        let local = unsafe { api.call(DeviceLocalHardwareId { device, local_hardware_id: -1, tail: 0 }) };
        let local_hardware_id = local.ok().map(|out| i64::from(out.local_hardware_id)).filter(|id| *id >= 0);
        Ok(Self { raw, description, local_hardware_id })
    }
}

/// A device of a client. Cheap to clone; keeps the client alive.
#[derive(Debug, Clone)]
pub struct Device {
    client: Client,
    index: usize,
}

/// Memory of a device, in bytes. What the plugin does not tell is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Taken now.
    pub bytes_in_use: i64,
    /// The most that was taken at one time.
    pub peak_bytes_in_use: Option<i64>,
    /// What a program may take at most.
    pub bytes_limit: Option<i64>,
    /// Reserved now.
    pub bytes_reserved: Option<i64>,
    /// The largest block that is free.
    pub largest_free_block_bytes: Option<i64>,
    /// Allocations so far.
    pub num_allocs: Option<i64>,
    /// Held by the allocator, used or not.
    pub pool_bytes: Option<i64>,
}

impl Device {
    /// The device at `index` of the client's list.
    pub(crate) fn new(client: &Client, index: usize) -> Self {
        Self { client: client.clone(), index }
    }

    fn entry(&self) -> &DeviceEntry {
        self.client.device_entry(self.index)
    }

    /// The pointer for a call; alive for as long as the client.
    pub(crate) fn raw(&self) -> *mut RawDevice {
        self.entry().raw.get()
    }

    /// The client it belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// All that is known of it without talking to it.
    pub fn description(&self) -> &DeviceDescription {
        &self.entry().description
    }

    /// Its number, unique among the devices of all hosts.
    pub fn id(&self) -> i64 {
        self.description().id
    }

    /// Its number on this host, such as a CUDA ordinal, if it has one.
    pub fn local_hardware_id(&self) -> Option<i64> {
        self.entry().local_hardware_id
    }

    /// The vendor's name, such as `TPU v5 lite` or `cpu`.
    pub fn kind(&self) -> &str {
        &self.description().kind
    }

    /// Text that tells it from all others.
    pub fn debug_string(&self) -> &str {
        &self.description().debug_string
    }

    /// What else the plugin tells.
    pub fn attributes(&self) -> &[(String, Value)] {
        &self.description().attributes
    }

    /// Its place among the chips of a TPU slice.
    pub fn coords(&self) -> Option<Vec<i64>> {
        self.description().coords().map(<[i64]>::to_vec)
    }

    /// Whether this process can use it.
    pub fn is_addressable(&self) -> bool {
        self.client.is_addressable(self.index)
    }

    /// How much of its memory is in use.
    ///
    /// # Errors
    /// [`Error::is_unimplemented`] where the plugin cannot tell.
    pub fn memory_stats(&self) -> Result<MemoryStats, Error> {
        let unset = OptionalI64::default();
        let arguments = DeviceMemoryStats {
            device: self.raw(),
            bytes_in_use: 0,
            peak_bytes_in_use: unset,
            num_allocs: unset,
            largest_alloc_size: unset,
            bytes_limit: unset,
            bytes_reserved: unset,
            peak_bytes_reserved: unset,
            bytes_reservable_limit: unset,
            largest_free_block_bytes: unset,
            pool_bytes: unset,
            peak_pool_bytes: unset,
        };
        // SAFETY: the client keeps its devices alive.
        let out = unsafe { self.client.api().call(arguments) }?;
        let get = |number: OptionalI64| number.is_set.then_some(number.value);
        Ok(MemoryStats {
            bytes_in_use: out.bytes_in_use,
            peak_bytes_in_use: get(out.peak_bytes_in_use),
            bytes_limit: get(out.bytes_limit),
            bytes_reserved: get(out.bytes_reserved),
            largest_free_block_bytes: get(out.largest_free_block_bytes),
            num_allocs: get(out.num_allocs),
            pool_bytes: get(out.pool_bytes),
        })
    }

    /// Makes the outputs of the earliest execution with this launch id into errors, if it has not ended: how a healthy
    /// shard gives up a step whose sister died. Returns whether there was one.
    ///
    /// # Errors
    /// [`Error::is_unimplemented`] where the plugin cannot do it.
    pub fn poison_execution(&self, launch_id: i32, code: Code, message: &str) -> Result<bool, Error> {
        let arguments = DevicePoisonExecution {
            device: self.raw(),
            launch_id,
            code: code.number(),
            message: message.as_ptr().cast(),
            message_size: message.len(),
            poisoned: false,
            tail: [0; 7],
            payload: std::ptr::null(),
            num_payload: 0,
        };
        // SAFETY: the client keeps its devices alive; the message is borrowed for the call.
        Ok(unsafe { self.client.api().call(arguments) }?.poisoned)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index && self.client.is_same(&other.client)
    }
}

impl Eq for Device {}
