//! The trial of a device and its plugin, without a model.
//!
//! Entry points: [`ProbeArgs`], [`run`]. [`xla::probe()`] has the probes; this module turns arguments into its options.

use std::path::PathBuf;

use clap::Args;
use devices::{Asked, Device, listed};
use xla::{Platform, ProbeOptions};

use crate::compile::topology::Slice;

pub use xla::{PROBES, Probe, ProbeEvent, ProbeLine};

/// The number of devices that XLA-CPU makes of a processor for the probes, so that collectives have something to do.
const XLA_CPU_DEVICES: usize = 2;

/// The device to try.
#[derive(Debug, Clone, Args)]
pub struct ProbeArgs {
    #[arg(
        long,
        env,
        value_enum,
        default_value_t = Asked::Auto,
        help = "Device to try: tpu, cuda or xla-cpu; `auto` takes what this machine has"
    )]
    pub device: Asked,

    /// PJRT plugin of the device: its shared library, or a folder that contains it [default: searched for, see `plugin
    /// list`]
    #[arg(long, env = "HILO_PLUGIN_PATH")]
    pub plugin_path: Option<PathBuf>,

    /// Number of devices to open [default: all; 2 for xla-cpu]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub num_devices: Option<u32>,
}

/// The error for a device that no plugin drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("--device is {device}, which probe cannot try: it tries {}", listed(|device| device.platform().is_some()))]
pub struct NoPluginError {
    /// The device.
    pub device: Device,
}

/// Runs the probes from the index `first` of [`PROBES`] on. `report` is called at the start of each probe, and with
/// each line of its results.
///
/// # Errors
/// When no plugin drives `device`.
pub fn run(
    device: Device,
    args: &ProbeArgs,
    first: usize,
    report: &mut dyn FnMut(ProbeEvent),
) -> Result<(), NoPluginError> {
    let platform = Platform::new(device, device.platform().ok_or(NoPluginError { device })?);
    let usual = device.uses_host_memory.then_some(XLA_CPU_DEVICES);
    let num_devices = args.num_devices.map(|number| number as usize).or(usual);
    let plugin_path = args.plugin_path.clone();
    xla::probe(&ProbeOptions { platform, plugin_path, num_devices, first, slices: Slice::of_devices }, report);
    Ok(())
}
