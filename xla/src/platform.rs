//! The settings of one kind of device with a plugin, for its clients and programs.

use std::path::Path;
use std::sync::Arc;

use devices::plugins::{self, Surroundings};
use devices::{ClientOption, CompilerFlag, Device, KvCacheForm, PlatformSpec};
use model::graph::DType;
use pjrt::{Client, CompileOptions, OptionValue, Plugin, Value};

use super::program::ProgramForm;
use crate::error::XlaError;

/// One kind of device with a plugin.
#[derive(Debug, Clone)]
pub struct Platform {
    pub(super) device: Device,
    spec: &'static PlatformSpec,
    /// The number of devices of a client, for plugins that let us choose it.
    num_devices: usize,
    pub(super) form: ProgramForm,
}

impl Platform {
    /// Returns the platform of `device`, described by `spec`.
    pub fn new(device: Device, spec: &'static PlatformSpec) -> Self {
        let kv_dtype = match spec.kv_cache {
            KvCacheForm::OfWeights => None,
            KvCacheForm::F32 => Some(DType::F32),
        };
        let form = ProgramForm { decode_heads: spec.decode_heads, chunk_bytes: spec.chunk_bytes, kv_dtype };
        Self { device, spec, num_devices: 1, form }
    }

    /// Returns the same platform with steps that gather `chunk_bytes` of keys, or of values, at a time.
    pub fn with_chunk_bytes(mut self, chunk_bytes: usize) -> Self {
        self.form.chunk_bytes = chunk_bytes;
        self
    }

    /// Returns the same platform with `num_devices` devices, if the plugin lets us choose.
    pub(crate) fn with_devices(self, num_devices: usize) -> Self {
        Self { num_devices, ..self }
    }

    /// Returns the compile options for the devices with these ids, which run each program together.
    pub(super) fn compile_options(&self, device_ids: &[i64]) -> CompileOptions {
        let mut options = CompileOptions::partitioned(device_ids);
        options.use_shardy_partitioner = device_ids.len() > 1;
        let flag = |(name, flag): &(&str, CompilerFlag)| {
            let value = match flag {
                CompilerFlag::Bool(value) => OptionValue::Bool(*value),
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
                ClientOption::NumDevices => Value::I64(self.num_devices as i64),
            };
            (*name, value)
        };
        self.spec.client_options.iter().map(option).collect()
    }

    /// Opens the plugin.
    ///
    /// # Errors
    /// When there is no plugin, or it cannot be loaded.
    pub(super) fn open_plugin(&self, plugin_path: Option<&Path>) -> Result<Arc<Plugin>, XlaError> {
        let found = plugins::find(&self.spec.plugin, plugin_path, &Surroundings::of_process())?;
        // Logged first, because libtpu may look for its chips for minutes.
        tracing::info!(device = %self.device, plugin = %found.path.display(), found = %found.source, "opening plugin");
        Plugin::open(&found.path).map_err(|source| self.failed(source))
    }

    /// Returns the error of this device.
    pub(super) fn failed(&self, source: pjrt::Error) -> XlaError {
        XlaError::Device { device: self.device, source }
    }

    /// Finds and opens the plugin, and creates a client.
    ///
    /// # Errors
    /// When there is no plugin, it cannot be loaded, or there is no such device.
    pub(super) fn open(&self, plugin_path: Option<&Path>) -> Result<Client, XlaError> {
        let plugin = self.open_plugin(plugin_path)?;
        let client = Client::new(&plugin, &self.client_options()).map_err(|source| self.failed(source))?;
        let (major, minor) = plugin.api_version();
        tracing::info!(api = format_args!("{major}.{minor}"), platform = client.platform_name(), "plugin is open");
        Ok(client)
    }
}
