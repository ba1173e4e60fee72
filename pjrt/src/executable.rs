//! Executables: compiled programs, which may be loaded on devices or not.

#![expect(unsafe_code, reason = "calls the plugin")]

use std::sync::{Arc, OnceLock};

use crate::api::{Api, array, text};
use crate::client::Client;
use crate::device::Device;
use crate::element_type::{ElementType, Shape, dims_from_c};
use crate::error::Error;
use crate::ffi::executable::{
    ExecutableDestroy, ExecutableFingerprint, ExecutableGetCostAnalysis, ExecutableName, ExecutableNumOutputs,
    ExecutableNumPartitions, ExecutableNumReplicas, ExecutableOptimizedProgram, ExecutableOutputDimensions,
    ExecutableOutputElementTypes, ExecutableParameterMemoryKinds, ExecutableSerialize, ExecutableSizeOfGeneratedCode,
    LoadedExecutableAddressableDevices, LoadedExecutableDestroy, LoadedExecutableGetExecutable,
};
use crate::ffi::values::Program;
use crate::ffi::{Arguments, RawExecutable, RawLoadedExecutable, Struct};
use crate::handle::Handle;
use crate::named_value::{Value, read_values};
use crate::plugin::Plugin;
use crate::serialized::Lent;

/// A compiled program, made by [`Topology::compile`](crate::Topology::compile) or part of a [`LoadedExecutable`].
#[derive(Debug)]
pub struct Executable {
    raw: Handle<RawExecutable>,
    plugin: Arc<Plugin>,
    /// Keeps alive the client of the loaded executable, or the client that owns the topology, if there is one.
    _client: Option<Client>,
}

impl Executable {
    /// Takes ownership of an executable that the C function `function` returned.
    ///
    /// # Safety
    /// `raw` is null, or a new executable that nothing else owns.
    pub(crate) unsafe fn new(
        raw: *mut RawExecutable,
        function: &'static str,
        plugin: &Arc<Plugin>,
        client: Option<Client>,
    ) -> Result<Self, Error> {
        Ok(Self { raw: Handle::new(raw, function)?, plugin: Arc::clone(plugin), _client: client })
    }

    /// The name of the program, which is the name of its module.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn name(&self) -> Result<String, Error> {
        let arguments = ExecutableName { executable: self.raw(), name: std::ptr::null(), name_size: 0 };
        // SAFETY: `self` owns the executable.
        let out = unsafe { self.api().call(arguments) }?;
        // SAFETY: the name lives as long as the executable.
        Ok(unsafe { text(out.name, out.name_size) })
    }

    /// The number of copies of the program that compute different data.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn num_replicas(&self) -> Result<usize, Error> {
        let arguments = ExecutableNumReplicas { executable: self.raw(), num_replicas: 0 };
        // SAFETY: `self` owns the executable.
        Ok(unsafe { self.api().call(arguments) }?.num_replicas)
    }

    /// The number of devices that share one copy.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn num_partitions(&self) -> Result<usize, Error> {
        let arguments = ExecutableNumPartitions { executable: self.raw(), num_partitions: 0 };
        // SAFETY: `self` owns the executable.
        Ok(unsafe { self.api().call(arguments) }?.num_partitions)
    }

    /// The number of outputs per device.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn num_outputs(&self) -> Result<usize, Error> {
        let arguments = ExecutableNumOutputs { executable: self.raw(), num_outputs: 0 };
        // SAFETY: `self` owns the executable.
        Ok(unsafe { self.api().call(arguments) }?.num_outputs)
    }

    /// The number of arguments per device. `None` if the plugin cannot return it, for example because its API is older
    /// than 0.104.
    pub fn num_parameters(&self) -> Option<usize> {
        let arguments = ExecutableParameterMemoryKinds {
            executable: self.raw(),
            num_parameters: 0,
            kinds: std::ptr::null(),
            kind_sizes: std::ptr::null(),
        };
        // SAFETY: `self` owns the executable.
        unsafe { self.api().call(arguments) }.ok().map(|out| out.num_parameters)
    }

    /// The element types and dimensions of the outputs of one device.
    ///
    /// # Errors
    /// The plugin's error, [`Error::ElementType`] for a type that is not supported, or [`Error::Contract`] if a
    /// dimension is negative or the lists of types and dimensions differ in length.
    pub fn outputs(&self) -> Result<Vec<Shape>, Error> {
        let arguments =
            ExecutableOutputElementTypes { executable: self.raw(), types: std::ptr::null_mut(), num_types: 0 };
        // SAFETY: `self` owns the executable.
        let types = unsafe { self.api().call(arguments) }?;
        // SAFETY: the array lives as long as the executable.
        let types = unsafe { array(types.types.cast_const(), types.num_types) };
        let arguments = ExecutableOutputDimensions {
            executable: self.raw(),
            num_outputs: 0,
            dims: std::ptr::null(),
            dim_sizes: std::ptr::null(),
        };
        // SAFETY: `self` owns the executable.
        let out = unsafe { self.api().call(arguments) }?;
        // SAFETY: the array lives as long as the executable and has this length.
        let ranks = unsafe { array(out.dim_sizes, out.num_outputs) };
        // SAFETY: as above. The length is the sum of the numbers of dimensions.
        let mut dims = unsafe { array(out.dims, ranks.iter().sum()) };
        if ranks.len() != types.len() {
            let what = "lists of dimensions and of element types that differ in length";
            return Err(Error::Contract { function: ExecutableOutputDimensions::NAME, what });
        }
        let shape = |(number, rank): (&i32, &usize)| {
            let (first, rest) = dims.split_at(*rank);
            dims = rest;
            let dims = dims_from_c(first, ExecutableOutputDimensions::NAME)?;
            Ok(Shape { element_type: ElementType::from_number(*number)?, dims })
        };
        types.iter().zip(ranks).map(shape).collect()
    }

    /// The size of the machine code in bytes.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn size_of_generated_code(&self) -> Result<i64, Error> {
        let arguments = ExecutableSizeOfGeneratedCode { executable: self.raw(), size: 0 };
        // SAFETY: `self` owns the executable.
        Ok(unsafe { self.api().call(arguments) }?.size)
    }

    /// Returns bytes that [`Client::load`] accepts with the same build of the same plugin.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn serialize(&self) -> Result<Vec<u8>, Error> {
        let arguments = ExecutableSerialize {
            executable: self.raw().cast_const(),
            bytes: std::ptr::null(),
            bytes_size: 0,
            serialized: std::ptr::null_mut(),
            deleter: None,
        };
        // SAFETY: `self` owns the executable.
        let out = unsafe { self.api().call(arguments) }?;
        let (bytes, size, serialized, deleter) = (out.bytes, out.bytes_size, out.serialized, out.deleter);
        // SAFETY: all four values were returned by the same call.
        Ok(unsafe { Lent { bytes, size, serialized, deleter }.take() })
    }

    /// The compiler's estimates of the program's cost by name, such as `flops` and `bytes accessed`. The names differ
    /// between plugins.
    ///
    /// # Errors
    /// The plugin's error, with [`Error::is_unimplemented`] if the plugin has no estimates.
    pub fn cost_analysis(&self) -> Result<Vec<(String, Value)>, Error> {
        let arguments =
            ExecutableGetCostAnalysis { executable: self.raw(), num_properties: 0, properties: std::ptr::null() };
        // SAFETY: `self` owns the executable.
        let out = unsafe { self.api().call(arguments) }?;
        // SAFETY: the values live as long as the executable.
        unsafe { read_values(out.properties, out.num_properties, ExecutableGetCostAnalysis::NAME) }
    }

    /// The optimised program: the name of its format and its bytes. The formats `hlo` and `hlo_with_config` are
    /// serialized protobuf messages.
    ///
    /// # Errors
    /// The plugin's error, with [`Error::is_unimplemented`] if the plugin cannot return the program.
    pub fn optimized_program(&self) -> Result<(String, Vec<u8>), Error> {
        let mut program =
            Struct::new(Program { code: std::ptr::null_mut(), code_size: 0, format: std::ptr::null(), format_size: 0 });
        let program_pointer = &raw mut program;
        let mut call = Struct::new(ExecutableOptimizedProgram { executable: self.raw(), program: program_pointer });
        // SAFETY: `self` owns the executable. Without a destination, the call returns the size and copies no bytes.
        unsafe { self.api().call_struct(&mut call) }?;
        // SAFETY: `program` is a local variable that nothing else uses, also during the lines below.
        let mut code = vec![0_u8; unsafe { (*program_pointer).fields.code_size }];
        // SAFETY: as above.
        unsafe { (*program_pointer).fields.code = code.as_mut_ptr().cast() };
        // SAFETY: the destination has the size that the plugin returned.
        unsafe { self.api().call_struct(&mut call) }?;
        let Program { code_size, format, format_size, .. } = program.fields;
        code.truncate(code_size);
        // SAFETY: the plugin owns the format's text, which lives as long as the executable.
        Ok((unsafe { text(format, format_size) }, code))
    }

    /// A fingerprint, which is equal for equal programs that equal compilers compiled with equal options. `None` if the
    /// plugin has no fingerprints.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn fingerprint(&self) -> Result<Option<Vec<u8>>, Error> {
        let arguments =
            ExecutableFingerprint { executable: self.raw(), fingerprint: std::ptr::null(), fingerprint_size: 0 };
        // SAFETY: `self` owns the executable.
        match unsafe { self.api().call(arguments) } {
            // SAFETY: the bytes live as long as the executable.
            Ok(out) => Ok(Some(unsafe { array(out.fingerprint.cast::<u8>(), out.fingerprint_size) }.to_vec())),
            Err(error) if error.is_unimplemented() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The plugin's pointer to the executable.
    pub(crate) fn raw(&self) -> *mut RawExecutable {
        self.raw.get()
    }

    /// The plugin's functions.
    pub(crate) fn api(&self) -> &Api {
        self.plugin.api()
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: `self` owns the executable and is not used afterwards. A failure cannot be reported.
        let _unheard = unsafe { self.api().call(ExecutableDestroy { executable: self.raw() }) };
    }
}

/// A compiled program that is loaded on its devices and can be executed.
#[derive(Debug)]
pub struct LoadedExecutable {
    executable: Executable,
    owned: OwnedLoaded,
    devices: Vec<Device>,
    num_outputs: usize,
    num_parameters: Option<usize>,
    /// The shapes of the outputs, which the first successful execution stores. The shapes never change.
    output_shapes: OnceLock<Vec<Arc<Shape>>>,
}

/// The plugin's loaded executable, which is destroyed on drop.
#[derive(Debug)]
struct OwnedLoaded {
    raw: Handle<RawLoadedExecutable>,
    client: Client,
}

impl LoadedExecutable {
    /// Takes ownership of an executable that the C function `function` returned.
    ///
    /// # Safety
    /// `raw` is null, or a new executable that nothing else owns.
    pub(crate) unsafe fn new(
        client: &Client,
        raw: *mut RawLoadedExecutable,
        function: &'static str,
    ) -> Result<Self, Error> {
        let owned = OwnedLoaded { raw: Handle::new(raw, function)?, client: client.clone() };
        let arguments = LoadedExecutableGetExecutable { loaded_executable: raw, executable: std::ptr::null_mut() };
        // SAFETY: `owned` keeps the executable alive, also during the call below.
        let out = unsafe { client.api().call(arguments) }?;
        let plugin = client.plugin();
        // SAFETY: the C function returned a new executable, which its caller owns.
        let executable = unsafe {
            Executable::new(out.executable, LoadedExecutableGetExecutable::NAME, plugin, Some(client.clone()))
        }?;
        let arguments =
            LoadedExecutableAddressableDevices { executable: raw, devices: std::ptr::null(), num_devices: 0 };
        // SAFETY: as above.
        let out = unsafe { client.api().call(arguments) }?;
        // SAFETY: the array lives as long as the executable.
        let devices = unsafe { array(out.devices, out.num_devices) }.iter();
        let devices = devices.map(|raw| client.device_of(*raw, LoadedExecutableAddressableDevices::NAME));
        let devices = devices.collect::<Result<Vec<_>, _>>()?;
        let (num_outputs, num_parameters) = (executable.num_outputs()?, executable.num_parameters());
        Ok(Self { executable, owned, devices, num_outputs, num_parameters, output_shapes: OnceLock::new() })
    }

    /// The compiled program, without its devices.
    pub fn executable(&self) -> &Executable {
        &self.executable
    }

    /// The devices of this process that run the program, in the order of the lists of arguments and outputs.
    pub fn addressable_devices(&self) -> &[Device] {
        &self.devices
    }

    /// The client into which the program is loaded.
    pub fn client(&self) -> &Client {
        &self.owned.client
    }

    /// The number of outputs per device.
    pub fn num_outputs(&self) -> usize {
        self.num_outputs
    }

    /// The number of arguments per device, if the plugin reports this number.
    pub(crate) fn num_parameters(&self) -> Option<usize> {
        self.num_parameters
    }

    /// The cell in which the first successful execution stores the shapes of the outputs.
    pub(crate) fn output_shapes(&self) -> &OnceLock<Vec<Arc<Shape>>> {
        &self.output_shapes
    }

    /// The plugin's pointer to the executable.
    pub(crate) fn raw(&self) -> *mut RawLoadedExecutable {
        self.owned.raw.get()
    }
}

impl Drop for OwnedLoaded {
    fn drop(&mut self) {
        let arguments = LoadedExecutableDestroy { executable: self.raw.get() };
        // SAFETY: `self` owns the executable and is not used afterwards. A failure cannot be reported.
        let _unheard = unsafe { self.client.api().call(arguments) };
    }
}
