//! A backend on a fake client, for measurements without a device.

use backend::{BackendError, LocalRanks, Membership, ModelGraphs};
use devices::{Device, tpu};
use model::weights::Checkpoint;
use pjrt::testing::plugin;

use super::weights::Source;
use super::{Platform, XlaBackend, XlaOptions};

/// Loads a model onto the devices of the fake plugin, which its control describes: TPUs of one process.
///
/// # Errors
/// When the devices are fewer than the ranks.
pub fn backend(graphs: &ModelGraphs, checkpoint: &Checkpoint, num_ranks: usize) -> Result<XlaBackend, BackendError> {
    let platform = Platform::new(Device::TPU, &tpu::PLATFORM).with_devices(num_ranks);
    let client = platform.client(&plugin())?;
    let ranks = LocalRanks { first: 0, num_local: num_ranks, num_ranks };
    let options = XlaOptions { ranks, membership: Membership::alone(), plugin_path: None, program_cache: None };
    Ok(XlaBackend::on_client(platform, client, options, Source { graphs, checkpoint }, &mut |_, _| ())?)
}
