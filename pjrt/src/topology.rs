//! Topologies: sets of devices for which programs can be compiled, even on machines that lack the devices.

#![expect(unsafe_code, reason = "calls the plugin")]

use std::sync::Arc;

use crate::api::{Api, text};
use crate::client::Client;
use crate::compile_options::CompileOptions;
use crate::device::DeviceDescription;
use crate::error::Error;
use crate::executable::Executable;
use crate::ffi::client::ClientTopologyDescription;
use crate::ffi::topology::{
    TopologyAttributes, TopologyCompile, TopologyCreate, TopologyDestroy, TopologyDevices, TopologyFingerprint,
    TopologyPlatformName, TopologyPlatformVersion, TopologySerialize,
};
use crate::ffi::{Arguments, RawTopology};
use crate::handle::Handle;
use crate::named_value::{Options, Value, read_values};
use crate::plugin::Plugin;
use crate::program::mlir_program;
use crate::serialized::Lent;

/// A set of devices and their connections. This machine need not have the devices.
#[derive(Debug)]
pub struct Topology {
    raw: Handle<RawTopology>,
    plugin: Arc<Plugin>,
    /// The client that owns the topology. If `None`, `self` owns it.
    client: Option<Client>,
}

impl Client {
    /// The topology of all devices of the client.
    ///
    /// # Errors
    /// The plugin's error, with [`Error::is_unimplemented`] if the plugin has no topologies.
    pub fn topology(&self) -> Result<Topology, Error> {
        let arguments = ClientTopologyDescription { client: self.raw(), topology: std::ptr::null_mut() };
        // SAFETY: `self` keeps the client alive.
        let out = unsafe { self.api().call(arguments) }?;
        // SAFETY: the client owns the topology.
        unsafe { Topology::of_client(self, out.topology) }
    }
}

impl Topology {
    /// Creates the topology with this name, such as `v5e:2x2` for libtpu. This machine need not have any of its
    /// devices.
    ///
    /// # Errors
    /// The plugin's error, for example for an invalid name or option, with [`Error::is_unimplemented`] if the plugin
    /// cannot create topologies by name.
    pub fn new(plugin: &Arc<Plugin>, name: &str, options: &[(&str, Value)]) -> Result<Self, Error> {
        let options = Options::new(options);
        let arguments = TopologyCreate {
            name: name.as_ptr().cast(),
            name_size: name.len(),
            create_options: options.as_ptr(),
            num_options: options.len(),
            topology: std::ptr::null_mut(),
        };
        // SAFETY: the name and the options are borrowed for the whole call.
        let out = unsafe { plugin.api().call(arguments) }?;
        Ok(Self { raw: Handle::new(out.topology, TopologyCreate::NAME)?, plugin: Arc::clone(plugin), client: None })
    }

    /// Wraps a topology that a client owns, and keeps this client alive.
    ///
    /// # Safety
    /// `raw` is null or belongs to `client`.
    pub(crate) unsafe fn of_client(client: &Client, raw: *mut RawTopology) -> Result<Self, Error> {
        let raw = Handle::new(raw, "PJRT_Client_TopologyDescription")?;
        Ok(Self { raw, plugin: Arc::clone(client.plugin()), client: Some(client.clone()) })
    }

    /// The name of the platform: `cpu`, `tpu`, `cuda`, …
    ///
    /// # Errors
    /// The plugin's error.
    pub fn platform_name(&self) -> Result<String, Error> {
        let arguments = TopologyPlatformName { topology: self.raw(), name: std::ptr::null(), name_size: 0 };
        // SAFETY: `self` keeps the topology alive.
        let out = unsafe { self.api().call(arguments) }?;
        // SAFETY: the text lives as long as the topology.
        Ok(unsafe { text(out.name, out.name_size) })
    }

    /// The version of the plugin's compiler: text for people and for cache keys.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn platform_version(&self) -> Result<String, Error> {
        let arguments = TopologyPlatformVersion { topology: self.raw(), version: std::ptr::null(), version_size: 0 };
        // SAFETY: `self` keeps the topology alive.
        let out = unsafe { self.api().call(arguments) }?;
        // SAFETY: the text lives as long as the topology.
        Ok(unsafe { text(out.version, out.version_size) })
    }

    /// The descriptions of the topology's devices, in the plugin's order.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn device_descriptions(&self) -> Result<Vec<DeviceDescription>, Error> {
        let arguments = TopologyDevices { topology: self.raw(), descriptions: std::ptr::null(), num_descriptions: 0 };
        // SAFETY: `self` keeps the topology alive.
        let out = unsafe { self.api().call(arguments) }?;
        // SAFETY: the descriptions live as long as the topology.
        unsafe { DeviceDescription::read_all(self.api(), out.descriptions, out.num_descriptions) }
    }

    /// Further facts about the topology that the plugin returns, by name.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn attributes(&self) -> Result<Vec<(String, Value)>, Error> {
        let arguments = TopologyAttributes { topology: self.raw(), attributes: std::ptr::null(), num_attributes: 0 };
        // SAFETY: `self` keeps the topology alive.
        let out = unsafe { self.api().call(arguments) }?;
        // SAFETY: the values live as long as the topology.
        unsafe { read_values(out.attributes, out.num_attributes, TopologyAttributes::NAME) }
    }

    /// A number that is equal for equal topologies, even if only one of them belongs to a client. `None` if the plugin
    /// does not return such a number.
    pub fn fingerprint(&self) -> Option<u64> {
        let arguments = TopologyFingerprint { topology: self.raw(), fingerprint: 0 };
        // SAFETY: `self` keeps the topology alive.
        unsafe { self.api().call(arguments) }.ok().map(|out| out.fingerprint)
    }

    /// Bytes that identify the topology, for cache keys.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn serialize(&self) -> Result<Vec<u8>, Error> {
        let arguments = TopologySerialize {
            topology: self.raw(),
            bytes: std::ptr::null(),
            bytes_size: 0,
            serialized: std::ptr::null_mut(),
            deleter: None,
        };
        // SAFETY: `self` keeps the topology alive.
        let out = unsafe { self.api().call(arguments) }?;
        let (bytes, size, serialized, deleter) = (out.bytes, out.bytes_size, out.serialized, out.deleter);
        // SAFETY: all four values were returned by the same call.
        Ok(unsafe { Lent { bytes, size, serialized, deleter }.take() })
    }

    /// Compiles a program, StableHLO as text or bytecode, for the topology's devices, without loading the program.
    ///
    /// # Errors
    /// As for [`Client::compile`].
    pub fn compile(&self, mlir: &[u8], options: &CompileOptions) -> Result<Executable, Error> {
        let program = mlir_program(mlir);
        let options = options.encode();
        let arguments = TopologyCompile {
            topology: self.raw(),
            program: &raw const program,
            compile_options: options.as_ptr().cast(),
            compile_options_size: options.len(),
            client: std::ptr::null_mut(),
            executable: std::ptr::null_mut(),
        };
        // SAFETY: `self` keeps the topology alive. The program and the options are borrowed for the whole call.
        let out = unsafe { self.api().call(arguments) }?;
        // SAFETY: the executable is new, and nothing else owns it.
        unsafe { Executable::new(out.executable, TopologyCompile::NAME, &self.plugin, self.client.clone()) }
    }

    /// The plugin's pointer to the topology.
    pub(crate) fn raw(&self) -> *mut RawTopology {
        self.raw.get()
    }

    /// The plugin's functions.
    pub(crate) fn api(&self) -> &Api {
        self.plugin.api()
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        if self.client.is_none() {
            // SAFETY: `self` owns the topology and is not used afterwards. A failure cannot be reported.
            let _unheard = unsafe { self.api().call(TopologyDestroy { topology: self.raw() }) };
        }
    }
}
