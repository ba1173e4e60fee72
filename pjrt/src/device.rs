//! Devices, and descriptions of devices, which also exist for devices that this machine lacks.

#![expect(unsafe_code, reason = "calls the plugin")]

use crate::api::{Api, array, text};
use crate::client::Client;
use crate::error::{Code, Error};
use crate::ffi::client::{
    DescriptionAttributes, DescriptionDebugString, DescriptionId, DescriptionKind, DescriptionProcessIndex,
    DeviceGetDescription, DeviceLocalHardwareId, DeviceMemoryStats, DevicePoisonExecution, OptionalI64,
};
use crate::ffi::{Arguments, RawDevice, RawDeviceDescription};
use crate::handle::Handle;
use crate::named_value::{Value, find, read_values};

/// The facts about a device that are known without a query to the device.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceDescription {
    /// The id, unique among the devices of all hosts. [`CompileOptions::device_assignment`] lists such ids.
    ///
    /// [`CompileOptions::device_assignment`]: crate::CompileOptions::device_assignment
    pub id: i64,
    /// The index of the process that can use the device.
    pub process_index: i64,
    /// The name of this kind of device, such as `TPU v5 lite` or `cpu`.
    pub kind: String,
    /// A text that identifies the device for people.
    pub debug_string: String,
    /// Further facts that the plugin returns, by name, such as `coords` for a TPU.
    pub attributes: Vec<(String, Value)>,
}

impl DeviceDescription {
    /// The attribute with this name.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        find(&self.attributes, name)
    }

    /// The coordinates of the device's chip in a TPU slice. `None` if the plugin returns none.
    pub fn coords(&self) -> Option<&[i64]> {
        match self.attribute("coords")? {
            Value::I64List(coords) => Some(coords),
            Value::String(_) | Value::I64(_) | Value::F32(_) | Value::Bool(_) => None,
        }
    }

    /// Reads a description.
    ///
    /// # Safety
    /// `description` is a description of this plugin, and the object that owns it has not been destroyed.
    pub(crate) unsafe fn read(api: &Api, description: *mut RawDeviceDescription) -> Result<Self, Error> {
        // SAFETY: the caller promised that the description is valid, also during the calls below.
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
            // SAFETY: the attributes live as long as the description.
            Ok(out) => unsafe { read_values(out.attributes, out.num_attributes, DescriptionAttributes::NAME) }?,
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
    /// `start` and `size` were returned by the plugin, and the object that owns the descriptions has not been
    /// destroyed.
    pub(crate) unsafe fn read_all(
        api: &Api,
        start: *const *mut RawDeviceDescription,
        size: usize,
    ) -> Result<Vec<Self>, Error> {
        // SAFETY: the caller promised that the array is valid.
        let descriptions = unsafe { array(start, size) };
        // SAFETY: as above.
        descriptions.iter().map(|description| unsafe { Self::read(api, *description) }).collect()
    }
}

/// A client's data about a device.
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
    /// `device` is a device of this plugin, and its client has not been destroyed.
    pub(crate) unsafe fn read(api: &Api, device: *mut RawDevice) -> Result<Self, Error> {
        let raw = Handle::new(device, "PJRT_Client_Devices")?;
        // SAFETY: the caller promised that the device is valid, also during the calls below.
        let out = unsafe { api.call(DeviceGetDescription { device, description: std::ptr::null_mut() }) }?;
        // SAFETY: a description lives as long as its device.
        let description = unsafe { DeviceDescription::read(api, out.description) }?;
        // SAFETY: as above. A device of another host has no id on this host, so some plugins return an error.
        let local = unsafe { api.call(DeviceLocalHardwareId { device, local_hardware_id: -1, tail: 0 }) };
        let local_hardware_id = local.ok().map(|out| i64::from(out.local_hardware_id)).filter(|id| *id >= 0);
        Ok(Self { raw, description, local_hardware_id })
    }
}

/// A device of a client. A device keeps its client alive and is cheap to clone.
#[derive(Debug, Clone)]
pub struct Device {
    client: Client,
    index: usize,
}

/// Statistics of a device's memory. Optional values that the plugin does not report are `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// The bytes in use now.
    pub bytes_in_use: i64,
    /// The maximum number of bytes that have been in use at one time.
    pub peak_bytes_in_use: Option<i64>,
    /// The maximum number of bytes that buffers and programs may use.
    pub bytes_limit: Option<i64>,
    /// The bytes reserved now.
    pub bytes_reserved: Option<i64>,
    /// The size of the largest free block, in bytes.
    pub largest_free_block_bytes: Option<i64>,
    /// The number of allocations so far.
    pub num_allocs: Option<i64>,
    /// The bytes that the allocator holds, used or not.
    pub pool_bytes: Option<i64>,
}

impl Device {
    /// Returns the device at `index` of the client's list.
    pub(crate) fn new(client: &Client, index: usize) -> Self {
        Self { client: client.clone(), index }
    }

    fn entry(&self) -> &DeviceEntry {
        self.client.device_entry(self.index)
    }

    /// The plugin's pointer to the device. The pointer is valid as long as the client exists.
    pub(crate) fn raw(&self) -> *mut RawDevice {
        self.entry().raw.get()
    }

    /// The client of the device.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The facts about the device that are known without a query to the device.
    pub fn description(&self) -> &DeviceDescription {
        &self.entry().description
    }

    /// The id, unique among the devices of all hosts.
    pub fn id(&self) -> i64 {
        self.description().id
    }

    /// The id on this host, such as a CUDA ordinal, if the device has one.
    pub fn local_hardware_id(&self) -> Option<i64> {
        self.entry().local_hardware_id
    }

    /// The name of this kind of device, such as `TPU v5 lite` or `cpu`.
    pub fn kind(&self) -> &str {
        &self.description().kind
    }

    /// A text that identifies the device for people.
    pub fn debug_string(&self) -> &str {
        &self.description().debug_string
    }

    /// Further facts that the plugin returns, by name.
    pub fn attributes(&self) -> &[(String, Value)] {
        &self.description().attributes
    }

    /// The coordinates of the device's chip in a TPU slice. `None` if the plugin returns none.
    pub fn coords(&self) -> Option<Vec<i64>> {
        self.description().coords().map(<[i64]>::to_vec)
    }

    /// True if this process can use the device.
    pub fn is_addressable(&self) -> bool {
        self.client.is_addressable(self.index)
    }

    /// Queries the statistics of the device's memory.
    ///
    /// # Errors
    /// The plugin's error, with [`Error::is_unimplemented`] if the plugin does not report them.
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
        let get = |number: OptionalI64| (number.is_set != 0).then_some(number.value);
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

    /// Makes the earliest execution with this launch id on this device fail with an error, if the execution has not
    /// ended. Returns true if there was such an execution.
    ///
    /// # Errors
    /// The plugin's error, with [`Error::is_unimplemented`] if the plugin does not support this.
    pub fn poison_execution(&self, launch_id: i32, code: Code, message: &str) -> Result<bool, Error> {
        let arguments = DevicePoisonExecution {
            device: self.raw(),
            launch_id,
            code: code.number(),
            message: message.as_ptr().cast(),
            message_size: message.len(),
            poisoned: 0,
            tail: [0; 7],
            payload: std::ptr::null(),
            num_payload: 0,
        };
        // SAFETY: the client keeps its devices alive, and the message is borrowed for the whole call.
        Ok(unsafe { self.client.api().call(arguments) }?.poisoned != 0)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index && self.client.is_same(&other.client)
    }
}

impl Eq for Device {}
