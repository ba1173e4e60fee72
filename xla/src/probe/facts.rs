//! The devices: their places, their memory, their topology, and the layouts of arrays.

use pjrt::{Device, ElementType, MemoryStats};

use super::page::{Failure, Page, bytes};
use super::rig::Rig;
use super::versions::{attributes, numbers};
use crate::placement;

/// Dimensions of KV caches: blocks, tokens of a block, elements of a token. A token's elements fill half of the 128
/// lanes of a TPU's vector, or all of them.
const CACHES: [[usize; 3]; 2] = [[4096, 16, 64], [4096, 16, 128]];

/// Adds a line for each device.
pub(super) fn places(rig: &Rig, page: &mut Page<'_>) -> Result<(), Failure> {
    let devices = rig.client.devices();
    page.line("devices", format!("{}, {} of this process", devices.len(), rig.devices.len()));
    for device in &devices {
        page.line(format!("device {}", device.id()), place(device));
    }
    rig.first().map(|_| ())
}

fn place(device: &Device) -> String {
    let description = device.description();
    let local = device.local_hardware_id().map_or_else(String::new, |id| format!(", local id {id}"));
    let is_ours = if device.is_addressable() { "" } else { ", of another process" };
    let coords = device.coords().map_or_else(|| "none".to_owned(), |coords| numbers(&coords));
    let process = description.process_index;
    let others: Vec<_> = device.attributes().iter().filter(|(name, _)| name != "coords").cloned().collect();
    format!("{}, coordinates {coords}, process {process}{local}{is_ours}; {}", device.kind(), attributes(&others))
}

/// Adds the memory of each device by the runtime, of one device by the topology, and the memory that a server plans
/// with.
pub(super) fn memory(rig: &Rig, page: &mut Page<'_>) -> Result<(), Failure> {
    for device in &rig.devices {
        page.offered(format!("memory of device {}", device.id()), device.memory_stats().map(stats));
    }
    let nominal = rig.client.topology().and_then(|topology| rig.platform.memory_bytes(&topology));
    let text = |nominal: Option<u64>| nominal.map_or_else(|| "not reported".to_owned(), bytes);
    page.offered("memory by the topology", nominal.clone().map(text));
    if rig.platform.device.uses_host_memory {
        page.line("memory that a server plans with", "the host's");
        return Ok(());
    }
    let limit = |device: &Device| u64::try_from(device.memory_stats().ok()?.bytes_limit?).ok();
    let limit = rig.devices.iter().filter_map(limit).filter(|limit| *limit > 0).min();
    match placement::memory_bytes(nominal.ok().flatten(), limit) {
        Some(planned) => page.line("memory that a server plans with", bytes(planned)),
        None => page.failed("memory that a server plans with", "neither the runtime nor the topology reports any"),
    }
    Ok(())
}

fn stats(stats: MemoryStats) -> String {
    let MemoryStats { bytes_in_use, bytes_limit, bytes_reserved, largest_free_block_bytes, .. } = stats;
    let number = |number: Option<i64>| number.map_or_else(|| "not reported".to_owned(), |number| number.to_string());
    format!(
        "limit {}, {bytes_in_use} in use, reserved {}, largest free block {}",
        bytes_limit.and_then(|limit| u64::try_from(limit).ok()).map_or_else(|| number(bytes_limit), bytes),
        number(bytes_reserved),
        number(largest_free_block_bytes)
    )
}

/// Adds the fingerprint and the attributes of the topology.
pub(super) fn topology(rig: &Rig, page: &mut Page<'_>) -> Result<(), Failure> {
    let topology = match rig.client.topology() {
        Ok(topology) => topology,
        Err(error) => {
            page.offered("topology", Err(error));
            return Ok(());
        }
    };
    let fingerprint = topology.fingerprint();
    let fingerprint = fingerprint.map_or_else(|| "not offered".to_owned(), |number| format!("{number:016x}"));
    page.line("topology fingerprint", fingerprint);
    let devices = topology.device_descriptions()?;
    let ids: Vec<i64> = devices.iter().map(|device| device.id).collect();
    page.line("topology devices, in its order", numbers(&ids));
    page.offered("topology attributes", topology.attributes().map(|found| attributes(&found)));
    Ok(())
}

/// Adds the default layouts of KV caches.
pub(super) fn layouts(rig: &Rig, page: &mut Page<'_>) -> Result<(), Failure> {
    for dims in CACHES {
        let layout = rig.client.default_layout(ElementType::Bf16, &dims);
        page.offered(format!("layout of {dims:?} bf16"), layout.map(|layout| layout.to_string()));
    }
    Ok(())
}
