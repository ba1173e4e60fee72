//! Clients: connections of a plugin to the devices of this process.

#![expect(unsafe_code, reason = "calls the plugin")]

use std::sync::Arc;

use crate::api::{Api, array, text};
use crate::compile_options::CompileOptions;
use crate::device::{Device, DeviceEntry};
use crate::error::Error;
use crate::event::is_in_callback;
use crate::executable::LoadedExecutable;
use crate::ffi::client::{
    ClientAddressableDevices, ClientCompile, ClientCreate, ClientDestroy, ClientDevices, ClientPlatformName,
    ClientPlatformVersion, ClientProcessIndex,
};
use crate::ffi::executable::ExecutableDeserializeAndLoad;
use crate::ffi::{Arguments, RawClient, RawDevice};
use crate::handle::Handle;
use crate::named_value::{Options, Value};
use crate::plugin::Plugin;
use crate::program::mlir_program;

/// A client: a plugin's connection to the devices of this process.
///
/// A client occupies its devices at least until all clones of it and all values made from it have been dropped, and all
/// transfers that use host memory have ended. All of these may be dropped in any order, and on any thread: if the last
/// one is dropped in a callback of the plugin, another thread destroys the client. A client is cheap to clone.
#[derive(Debug, Clone)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    owned: Owned,
    platform_name: String,
    platform_version: String,
    process_index: i64,
    devices: Vec<DeviceEntry>,
    /// Indices into `devices` of the devices that this process can use.
    addressable: Vec<usize>,
}

/// The plugin's client, which is destroyed on drop.
#[derive(Debug)]
struct Owned {
    raw: Handle<RawClient>,
    plugin: Arc<Plugin>,
}

impl Client {
    /// Creates a client, which occupies its devices.
    ///
    /// The options depend on the plugin, such as `cpu_device_count` (an integer) for XLA-CPU, and `visible_devices` (a
    /// list of integers), `memory_fraction` (a float) and `preallocate` (a boolean) for CUDA. Each option must have the
    /// type that the plugin expects: for another type, XLA-CPU throws a C++ exception, which ends the process.
    ///
    /// # Errors
    /// The plugin's error, for example if there is no device or another process uses the device.
    pub fn new(plugin: &Arc<Plugin>, options: &[(&str, Value)]) -> Result<Self, Error> {
        let options = Options::new(options);
        let arguments = ClientCreate {
            create_options: options.as_ptr(),
            num_options: options.len(),
            kv_get_callback: std::ptr::null(),
            kv_get_user_arg: std::ptr::null_mut(),
            kv_put_callback: std::ptr::null(),
            kv_put_user_arg: std::ptr::null_mut(),
            client: std::ptr::null_mut(),
            kv_try_get_callback: std::ptr::null(),
            kv_try_get_user_arg: std::ptr::null_mut(),
        };
        // SAFETY: the options are borrowed for the whole call, and no callbacks of a key-value store are passed.
        let out = unsafe { plugin.api().call(arguments) }?;
        let owned = Owned { raw: Handle::new(out.client, ClientCreate::NAME)?, plugin: Arc::clone(plugin) };
        Ok(Self(Arc::new(Inner::read(owned)?)))
    }

    /// The plugin of the client.
    pub fn plugin(&self) -> &Arc<Plugin> {
        &self.0.owned.plugin
    }

    /// The name of the platform: `cpu`, `tpu`, `cuda`, …
    pub fn platform_name(&self) -> &str {
        &self.0.platform_name
    }

    /// The version of the plugin's runtime: text for people and for cache keys.
    pub fn platform_version(&self) -> &str {
        &self.0.platform_version
    }

    /// The index of this process among the processes that run programs together.
    pub fn process_index(&self) -> i64 {
        self.0.process_index
    }

    /// All devices, including those of other processes.
    pub fn devices(&self) -> Vec<Device> {
        (0..self.0.devices.len()).map(|index| Device::new(self, index)).collect()
    }

    /// The devices that this process can use.
    pub fn addressable_devices(&self) -> Vec<Device> {
        self.0.addressable.iter().map(|index| Device::new(self, *index)).collect()
    }

    /// Compiles a program, StableHLO as text or bytecode, and loads it. The options assign its devices, or leave the
    /// choice to the plugin or to the execution.
    ///
    /// # Errors
    /// The plugin's error, for example [`Code::InvalidArgument`](crate::Code) for an invalid program, or
    /// [`Code::ResourceExhausted`](crate::Code) for a program that is too large.
    pub fn compile(&self, mlir: &[u8], options: &CompileOptions) -> Result<LoadedExecutable, Error> {
        let program = mlir_program(mlir);
        let options = options.encode();
        let arguments = ClientCompile {
            client: self.raw(),
            program: &raw const program,
            compile_options: options.as_ptr().cast(),
            compile_options_size: options.len(),
            executable: std::ptr::null_mut(),
        };
        // SAFETY: `self` keeps the client alive. The program and the options are borrowed for the whole call.
        let out = unsafe { self.api().call(arguments) }?;
        // SAFETY: the executable is new, and nothing else owns it.
        unsafe { LoadedExecutable::new(self, out.executable, ClientCompile::NAME) }
    }

    /// Loads an executable that [`Executable::serialize`](crate::Executable::serialize) wrote with the same build of
    /// the same plugin. If `options` are given, they replace the options with which the executable was compiled.
    ///
    /// # Errors
    /// The plugin's error, for example for bytes that it cannot use.
    pub fn load(&self, serialized: &[u8], options: Option<&CompileOptions>) -> Result<LoadedExecutable, Error> {
        let options = options.map(CompileOptions::encode);
        let arguments = ExecutableDeserializeAndLoad {
            client: self.raw(),
            bytes: serialized.as_ptr().cast(),
            bytes_size: serialized.len(),
            loaded_executable: std::ptr::null_mut(),
            options: options.as_ref().map_or(std::ptr::null(), |options| options.as_ptr().cast()),
            options_size: options.as_ref().map_or(0, Vec::len),
        };
        // SAFETY: `self` keeps the client alive. The bytes and the options are borrowed for the whole call.
        let out = unsafe { self.api().call(arguments) }?;
        // SAFETY: the executable is new, and nothing else owns it.
        unsafe { LoadedExecutable::new(self, out.loaded_executable, ExecutableDeserializeAndLoad::NAME) }
    }

    /// The plugin's pointer to the client.
    pub(crate) fn raw(&self) -> *mut RawClient {
        self.0.owned.raw.get()
    }

    /// The plugin's functions.
    pub(crate) fn api(&self) -> &Api {
        self.0.owned.plugin.api()
    }

    /// True if `self` and `other` are clones of the same client.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The stored facts about the device at `index`.
    pub(crate) fn device_entry(&self, index: usize) -> &DeviceEntry {
        &self.0.devices[index]
    }

    /// True if this process can use the device at `index`.
    pub(crate) fn is_addressable(&self, index: usize) -> bool {
        self.0.addressable.contains(&index)
    }

    /// Returns the device with this pointer.
    ///
    /// # Errors
    /// When the client has no such device. `function` names the C function that returned the pointer.
    pub(crate) fn device_of(&self, raw: *mut RawDevice, function: &'static str) -> Result<Device, Error> {
        let index = position(&self.0.devices, raw, function)?;
        Ok(Device::new(self, index))
    }
}

impl Inner {
    fn read(owned: Owned) -> Result<Self, Error> {
        let (api, client) = (*owned.plugin.api(), owned.raw.get());
        // SAFETY: `owned` keeps the client alive, also during the calls below.
        let name = unsafe { api.call(ClientPlatformName { client, name: std::ptr::null(), name_size: 0 }) }?;
        // SAFETY: the text lives as long as the client.
        let platform_name = unsafe { text(name.name, name.name_size) };
        let arguments = ClientPlatformVersion { client, version: std::ptr::null(), version_size: 0 };
        // SAFETY: as above.
        let version = unsafe { api.call(arguments) }?;
        // SAFETY: as above.
        let platform_version = unsafe { text(version.version, version.version_size) };
        // SAFETY: as above.
        let process = unsafe { api.call(ClientProcessIndex { client, process_index: 0, tail: 0 }) }?;
        // SAFETY: as above.
        let all = unsafe { api.call(ClientDevices { client, devices: std::ptr::null(), num_devices: 0 }) }?;
        // SAFETY: the array and the devices live as long as the client.
        let all = unsafe { array(all.devices, all.num_devices) };
        // SAFETY: as above.
        let devices = all.iter().map(|device| unsafe { DeviceEntry::read(&api, *device) });
        let devices = devices.collect::<Result<Vec<_>, _>>()?;
        let arguments = ClientAddressableDevices { client, devices: std::ptr::null(), num_devices: 0 };
        // SAFETY: as above.
        let ours = unsafe { api.call(arguments) }?;
        // SAFETY: as above.
        let ours = unsafe { array(ours.devices, ours.num_devices) };
        let addressable = ours.iter().map(|device| position(&devices, *device, ClientAddressableDevices::NAME));
        let addressable = addressable.collect::<Result<Vec<_>, _>>()?;
        let process_index = process.process_index.into();
        Ok(Self { owned, platform_name, platform_version, process_index, devices, addressable })
    }
}

fn position(devices: &[DeviceEntry], raw: *mut RawDevice, function: &'static str) -> Result<usize, Error> {
    let found = devices.iter().position(|entry| entry.raw.get() == raw);
    found.ok_or(Error::Contract { function, what: "a device that is not in the client's list" })
}

impl Drop for Owned {
    fn drop(&mut self) {
        let api = *self.plugin.api();
        let Ok(client) = Handle::new(self.raw.get(), ClientDestroy::NAME) else { return };
        let destroy = move || {
            let client = client;
            // SAFETY: everything made from the client keeps its owner alive, so this is the last use of the client. A
            // failure cannot be reported.
            let _unheard = unsafe { api.call(ClientDestroy { client: client.get() }) };
        };
        if is_in_callback() {
            // If no thread can be started, the client is leaked: to destroy it here, this thread might wait for itself.
            let _leaked = std::thread::Builder::new().name("pjrt-destroy".to_owned()).spawn(destroy);
        } else {
            destroy();
        }
    }
}
