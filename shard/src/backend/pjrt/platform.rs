//! To add a device that has a PJRT plugin: its row in [`shard::plugins`](crate::plugins), an arm in [`Platform::of`], and its name in
//! [`Device`].
//!
//! What differs between the devices behind plugins, as data; the programs are the same text on all of them.

use ::pjrt::{Client, Plugin, Value};

use super::program::ProgramForm;
use super::stablehlo::HeadForm;
use crate::args::Device;
use crate::backend::BackendError;
use crate::graph::DType;
use crate::plugins::{self, PluginKind, Surroundings};

/// Fits beside everything else in the fast memory of a TPU v5e or v6e, 128 MiB.
const CHUNK_BYTES: usize = 16 << 20;

/// One kind of device behind a plugin.
#[derive(Debug, Clone)]
pub(crate) struct Platform {
    pub(super) device: Device,
    pub(super) plugin: PluginKind,
    /// What the client is made with.
    client_options: Vec<(&'static str, Value)>,
    pub(super) form: ProgramForm,
}

impl Platform {
    /// The platform of `device`; `None` for devices that need no plugin.
    pub(crate) fn of(device: Device) -> Option<Self> {
        match device {
            Device::XlaCpu => Some(Self {
                device,
                plugin: PluginKind::Cpu,
                client_options: vec![("cpu_device_count", Value::I64(1))],
                // Of shorter floats its compiler would convert the whole cache in every step.
                form: ProgramForm {
                    decode_heads: HeadForm::Split,
                    chunk_bytes: CHUNK_BYTES,
                    kv_dtype: Some(DType::F32),
                },
            }),
            Device::Tpu => Some(Self {
                device,
                plugin: PluginKind::Tpu,
                client_options: Vec::new(),
                form: ProgramForm { decode_heads: HeadForm::Wide, chunk_bytes: CHUNK_BYTES, kv_dtype: None },
            }),
            Device::Cuda => Some(Self {
                device,
                plugin: PluginKind::Cuda13,
                client_options: vec![("preallocate", Value::Bool(false))],
                form: ProgramForm { decode_heads: HeadForm::Split, chunk_bytes: CHUNK_BYTES, kv_dtype: None },
            }),
            Device::Cpu | Device::Mock => None,
        }
    }

    /// Finds and opens the plugin, and makes a client.
    ///
    /// # Errors
    /// When there is no plugin, it cannot be loaded, or there is no such device.
    pub(super) fn open(&self, plugin_path: Option<&std::path::Path>) -> Result<Client, BackendError> {
        let found = plugins::find(self.plugin, plugin_path, &Surroundings::of_process())?;
        let failed = |source| BackendError::Device { device: self.device, source };
        let plugin = Plugin::open(&found.path).map_err(failed)?;
        let client = Client::new(&plugin, &self.client_options).map_err(failed)?;
        let (major, minor) = plugin.api_version();
        tracing::info!(
            device = %self.device,
            plugin = %found.path.display(),
            found = %found.source,
            api = format_args!("{major}.{minor}"),
            platform = client.platform_name(),
            "plugin"
        );
        Ok(client)
    }
}
