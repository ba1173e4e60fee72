//! To add a device that has a PJRT plugin: its row in [`shard::plugins`](crate::plugins), an arm in [`Platform::of`], and its name in
//! [`Device`].
//!
//! What differs between the devices behind plugins, as data; the programs are the same text on all of them.

use std::path::Path;
use std::sync::Arc;

use devices::Device;
use devices::plugins::{self, PluginKind, Surroundings};
use model::graph::DType;
use pjrt::{Client, CompileOptions, OptionValue, Plugin, Value};

use super::program::ProgramForm;
use super::stablehlo::HeadForm;
use crate::error::XlaError;

/// Option of XLA-CPU's client: devices that the processor pretends to be.
const CPU_DEVICE_COUNT: &str = "cpu_device_count";

/// Fits beside everything else in the fast memory of a TPU v5e or v6e, 128 MiB.
const CHUNK_BYTES: usize = 16 << 20;

/// A SparseCore leaves what it gathers in HBM, from where it is read again: 1.5 times the reads of a step.
const TPU_OVERRIDES: [(&str, Flag); 3] = [
    ("xla_tpu_offload_gather_to_sparsecore", Flag::Bool(false)),
    // The same programs by the compiler's own figures, prefills in half the time.
    ("xla_tpu_autofdo", Flag::Bool(false)),
    // Layers that are the same are in the program once: a tenth of its size.
    ("xla_tpu_enable_deduplicated_calls", Flag::Name("ENABLED")),
];

/// Value of a compiler flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flag {
    Bool(bool),
    Name(&'static str),
}

/// One kind of device behind a plugin.
#[derive(Debug, Clone)]
pub struct Platform {
    pub(super) device: Device,
    pub(super) plugin: PluginKind,
    /// What the client is made with.
    client_options: Vec<(&'static str, Value)>,
    pub(super) form: ProgramForm,
    /// Flags of the compiler.
    overrides: &'static [(&'static str, Flag)],
}

impl Flag {
    fn option(self) -> OptionValue {
        match self {
            Self::Bool(value) => OptionValue::Bool(value),
            Self::Name(name) => OptionValue::String(name.to_owned()),
        }
    }
}

impl Platform {
    /// The platform of `device`; `None` for devices that need no plugin.
    pub fn of(device: Device) -> Option<Self> {
        match device {
            Device::XlaCpu => Some(Self {
                device,
                plugin: PluginKind::Cpu,
                client_options: vec![(CPU_DEVICE_COUNT, Value::I64(1))],
                // Of shorter floats its compiler would convert the whole cache in every step.
                form: ProgramForm {
                    decode_heads: HeadForm::Split,
                    chunk_bytes: CHUNK_BYTES,
                    kv_dtype: Some(DType::F32),
                },
                overrides: &[],
            }),
            Device::Tpu => Some(Self::of_tpu(CHUNK_BYTES)),
            Device::Cuda => Some(Self {
                device,
                plugin: PluginKind::Cuda13,
                client_options: vec![("preallocate", Value::Bool(false))],
                form: ProgramForm { decode_heads: HeadForm::Split, chunk_bytes: CHUNK_BYTES, kv_dtype: None },
                overrides: &[],
            }),
            Device::Auto | Device::Cpu | Device::Mock => None,
        }
    }

    /// A TPU whose steps gather `chunk_bytes` of keys, or values, at a time.
    pub fn of_tpu(chunk_bytes: usize) -> Self {
        Self {
            device: Device::Tpu,
            plugin: PluginKind::Tpu,
            client_options: Vec::new(),
            form: ProgramForm { decode_heads: HeadForm::Wide, chunk_bytes, kv_dtype: None },
            overrides: &TPU_OVERRIDES,
        }
    }

    /// The same with at least `num_devices` devices, where that is ours to say.
    pub(crate) fn with_devices(mut self, num_devices: usize) -> Self {
        for (_, value) in self.client_options.iter_mut().filter(|(name, _)| *name == CPU_DEVICE_COUNT) {
            *value = Value::I64(num_devices as i64);
        }
        self
    }

    /// How programs are compiled for the devices with these ids, which run them together.
    pub(super) fn compile_options(&self, device_ids: &[i64]) -> CompileOptions {
        let mut options = CompileOptions::partitioned(device_ids);
        options.use_shardy_partitioner = device_ids.len() > 1;
        options.env_option_overrides =
            self.overrides.iter().map(|(name, value)| (name.to_string(), value.option())).collect();
        options
    }

    /// Opens the plugin.
    ///
    /// # Errors
    /// When there is none, or it cannot be loaded.
    pub(super) fn open_plugin(&self, plugin_path: Option<&Path>) -> Result<Arc<Plugin>, XlaError> {
        let found = plugins::find(self.plugin, plugin_path, &Surroundings::of_process())?;
        // Said before: libtpu may look for its chips for minutes.
        tracing::info!(device = %self.device, plugin = %found.path.display(), found = %found.source, "open plugin");
        Plugin::open(&found.path).map_err(|source| self.failed(source))
    }

    /// The error of this device.
    pub(super) fn failed(&self, source: pjrt::Error) -> XlaError {
        XlaError::Device { device: self.device, source }
    }

    /// Finds and opens the plugin, and makes a client.
    ///
    /// # Errors
    /// When there is no plugin, it cannot be loaded, or there is no such device.
    pub(super) fn open(&self, plugin_path: Option<&Path>) -> Result<Client, XlaError> {
        let plugin = self.open_plugin(plugin_path)?;
        let client = Client::new(&plugin, &self.client_options).map_err(|source| self.failed(source))?;
        let (major, minor) = plugin.api_version();
        tracing::info!(api = format_args!("{major}.{minor}"), platform = client.platform_name(), "plugin is open");
        Ok(client)
    }
}
