//! The settings of one kind of device with a plugin, for its clients and programs.

use std::path::Path;
use std::sync::Arc;

use devices::plugins::{self, Surroundings};
use devices::{ClientOption, CompilerFlag, DecodeAttention, Device, KvCacheForm, PlatformSpec};
use model::graph::DType;
use pjrt::{Client, CompileOptions, DeviceDescription, OptionValue, Plugin, Topology, Value};

use super::program::ProgramForm;
use crate::error::XlaError;

/// The attribute of a topology that contains the bytes of memory of a device, or of the devices that share one chip's
/// memory.
const MEMORY_ATTRIBUTE: &str = "device_memory_bytes_limit";

/// One kind of device with a plugin.
#[derive(Debug, Clone)]
pub struct Platform {
    pub(super) device: Device,
    spec: &'static PlatformSpec,
    /// The number of devices of a client, if the plugin lets us choose it; `None` for the plugin's choice.
    num_devices: Option<usize>,
    pub(super) form: ProgramForm,
}

impl Platform {
    /// Returns the platform of `device`, described by `spec`.
    pub fn new(device: Device, spec: &'static PlatformSpec) -> Self {
        let kv_dtype = match spec.kv_cache {
            KvCacheForm::OfWeights => None,
            KvCacheForm::F32 => Some(DType::F32),
        };
        let form = ProgramForm {
            min_decode_rows: spec.min_decode_rows,
            decode_heads: spec.decode_heads,
            decode_loop: spec.decode_loop,
            decode_attention: DecodeAttention::Loop,
            chunk_bytes: spec.chunk_bytes,
            lanes: spec.lanes,
            fixed_contexts: spec.fixed_contexts,
            kv_dtype,
        };
        Self { device, spec, num_devices: Some(1), form }
    }

    /// Returns the same platform with the program settings of the devices that the plugin calls `kind`.
    pub(super) fn for_kind(mut self, kind: &str) -> Self {
        self.form.chunk_bytes = self.spec.kind(kind).chunk_bytes;
        self
    }

    /// Returns the same platform with programs whose decoding rows attend to their contexts as `attention` says. A
    /// device whose compiler takes no such kernels keeps the loop.
    #[must_use]
    pub fn with_decode_attention(mut self, attention: DecodeAttention) -> Self {
        if self.spec.has_mosaic {
            self.form.decode_attention = attention;
        }
        self
    }

    /// Returns the same platform with clients of `num_devices` devices, if the plugin lets us choose the number.
    pub(crate) fn with_devices(self, num_devices: usize) -> Self {
        Self { num_devices: Some(num_devices), ..self }
    }

    /// Returns the same platform with clients of as many devices as the plugin chooses.
    pub(crate) fn with_all_devices(self) -> Self {
        Self { num_devices: None, ..self }
    }

    /// Returns the compile options for the devices with these ids, which run each program together.
    pub(super) fn compile_options(&self, device_ids: &[i64]) -> CompileOptions {
        let mut options = CompileOptions::partitioned(device_ids);
        options.use_shardy_partitioner = device_ids.len() > 1;
        let flag = |(name, flag): &(&str, CompilerFlag)| {
            let value = match flag {
                CompilerFlag::Bool(value) => OptionValue::Bool(*value),
                CompilerFlag::Number(value) => OptionValue::I64(*value),
                CompilerFlag::Name(name) => OptionValue::String((*name).to_owned()),
            };
            ((*name).to_owned(), value)
        };
        options.env_option_overrides = self.spec.compiler_flags.iter().map(flag).collect();
        options
    }

    /// Returns the options for creating a client.
    fn client_options(&self) -> Vec<(&'static str, Value)> {
        let option = |(name, option): &(&'static str, ClientOption)| {
            let value = match option {
                ClientOption::Bool(value) => Value::Bool(*value),
                ClientOption::Float(value) => Value::F32(*value),
                ClientOption::FirstDevices => Value::I64List((0..self.num_devices? as i64).collect()),
                ClientOption::NumDevices => Value::I64(self.num_devices? as i64),
            };
            Some((*name, value))
        };
        self.spec.client_options.iter().filter_map(option).collect()
    }

    /// Returns the memory of one device of `topology`, in bytes, or `None` if the plugin does not report it.
    ///
    /// # Errors
    /// When the plugin does not describe the topology's devices.
    pub(super) fn memory_bytes(&self, topology: &Topology) -> Result<Option<u64>, pjrt::Error> {
        let attributes = topology.attributes()?;
        let reported = attributes.iter().find(|(name, _)| name == MEMORY_ATTRIBUTE);
        let reported = reported.and_then(|(_, value)| u64::try_from(value.as_i64()?).ok()).filter(|bytes| *bytes > 0);
        Ok(reported.zip(self.num_sharing(&topology.device_descriptions()?)).map(|(bytes, sharing)| bytes / sharing))
    }

    /// Returns the number of devices that share the memory which the plugin reports for the first of `devices`; `None`
    /// if there is no device.
    fn num_sharing(&self, devices: &[DeviceDescription]) -> Option<u64> {
        let first = devices.first()?;
        let shares = self.spec.kind(&first.kind).shares_memory && first.coords().is_some();
        let sharing = devices.iter().filter(|device| device.coords() == first.coords()).count() as u64;
        Some(if shares { sharing } else { 1 })
    }

    /// Finds and opens the plugin. The libraries that the plugin needs are loaded first: a plugin that lacks one would
    /// only fail when it compiles or runs a program, or crash.
    ///
    /// # Errors
    /// When there is no plugin, or the plugin or a library that it needs cannot be loaded.
    pub(super) fn open_plugin(&self, plugin_path: Option<&Path>) -> Result<Arc<Plugin>, XlaError> {
        let (plugin, surroundings) = (&self.spec.plugin, Surroundings::of_process());
        let found = plugins::find(plugin, plugin_path, &surroundings)?;
        let load = |path: &Path| pjrt::load_library(path).map_err(|error| error.to_string());
        plugin.check_libraries(&found, self.num_devices.unwrap_or(1), &surroundings, load)?;
        // Logged before the plugin is opened, because libtpu may search for its chips for minutes.
        tracing::info!(device = %self.device, plugin = %found.path.display(), found = %found.source, "opening plugin");
        Plugin::open(&found.path).map_err(|source| self.failed(source))
    }

    /// Returns an error of the plugin as an error of this device.
    pub(super) fn failed(&self, source: pjrt::Error) -> XlaError {
        XlaError::Device { device: self.device, source }
    }

    /// Creates a client of the plugin.
    ///
    /// # Errors
    /// When the plugin finds no device, or cannot use it.
    pub(super) fn client(&self, plugin: &Arc<Plugin>) -> Result<Client, XlaError> {
        Client::new(plugin, &self.client_options()).map_err(|source| self.failed(source))
    }

    /// Finds and opens the plugin, and creates a client.
    ///
    /// # Errors
    /// When there is no plugin, the plugin or a library that it needs cannot be loaded, or it cannot create a client.
    pub(super) fn open(&self, plugin_path: Option<&Path>) -> Result<Client, XlaError> {
        let plugin = self.open_plugin(plugin_path)?;
        let client = self.client(&plugin)?;
        let (major, minor) = plugin.api_version();
        tracing::info!(api = format_args!("{major}.{minor}"), platform = client.platform_name(), "plugin is open");
        Ok(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(kind: &str, coords: Option<[i64; 3]>) -> DeviceDescription {
        let coords = coords.map(|coords| ("coords".to_owned(), Value::I64List(coords.to_vec())));
        DeviceDescription {
            id: 0,
            process_index: 0,
            kind: kind.to_owned(),
            debug_string: String::new(),
            attributes: coords.into_iter().collect(),
        }
    }

    #[test]
    fn a_process_opens_only_the_gpus_that_it_uses() {
        let cuda = Platform::new(Device::CUDA, Device::CUDA.platform().unwrap());
        for (num_devices, indices) in [(1, vec![0]), (2, vec![0, 1])] {
            let options = cuda.clone().with_devices(num_devices).client_options();
            assert_eq!(options[0], ("visible_devices", Value::I64List(indices)));
        }
        let options = cuda.with_all_devices().client_options();
        assert!(!options.is_empty() && options.iter().all(|(name, _)| *name != "visible_devices"), "{options:?}");
    }

    #[test]
    fn only_devices_of_some_kinds_share_the_memory_of_a_chip() {
        let tpu = Platform::new(Device::TPU, &devices::tpu::PLATFORM);
        let two_chips = |kind| [[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0]].map(|coords| device(kind, Some(coords)));
        assert_eq!(tpu.num_sharing(&two_chips("TPU v5")), Some(2));
        assert_eq!(tpu.num_sharing(&two_chips("TPU7x")), Some(1));
        assert_eq!(tpu.num_sharing(&[device("TPU v5", None), device("TPU v5", None)]), Some(1));
        assert_eq!(tpu.num_sharing(&[]), None);
    }
}
