//! The devices of the client, compared with topologies that have a name: would a program that is compiled elsewhere for
//! the name be the same?

use pjrt::{CompileOptions, DeviceDescription, Topology};

use super::ProbeOptions;
use super::compiled::fingerprint;
use super::page::{Failure, Page};
use super::rig::Rig;
use crate::stablehlo::probes;

/// The number of elements of the program's array.
const LEN: usize = 1024;

/// Adds a line for each name that the devices can have. Only the first must give the same program: its name is the one
/// for which programs are compiled ahead of time.
pub(super) fn compare(rig: &Rig, options: &ProbeOptions, page: &mut Page<'_>) -> Result<(), Failure> {
    let devices = rig.client.devices();
    let descriptions: Vec<&DeviceDescription> = devices.iter().map(pjrt::Device::description).collect();
    let kind = descriptions.first().map_or("", |device| &device.kind);
    let names = bounds(&descriptions).map(|bounds| (options.slices)(kind, &bounds)).unwrap_or_default();
    if names.is_empty() {
        page.line("topologies by name", "none for devices of this kind");
        return Ok(());
    }
    let live = rig.client.topology()?;
    let live = [number(&live), program(rig, &live)?];
    page.line("program for this topology", &*live[1]);
    for (index, name) in names.iter().enumerate() {
        let topology = Topology::new(rig.client.plugin(), &name.name, &name.options);
        let found = topology.map_err(Failure::from).and_then(|named| Ok([number(&named), program(rig, &named)?]));
        match found {
            Ok([topology, program]) if program == live[1] => {
                let is_equal = if topology == live[0] { "equal" } else { &topology };
                page.line(&name.text, format!("the program is equal; topology fingerprint {is_equal}"));
            }
            Ok([topology, program]) => {
                let text = format!("another program, {program}; topology fingerprint {topology}");
                if index == 0 { page.failed(&name.text, text) } else { page.line(&name.text, text) }
            }
            Err(Failure(reason)) if index == 0 => page.failed(&name.text, reason),
            Err(Failure(reason)) => page.line(&name.text, format!("refused: {reason}")),
        }
    }
    Ok(())
}

/// Returns the sizes of the box that contains the coordinates of all devices. `None` if there are no devices, or one
/// has no coordinates.
pub(super) fn bounds(devices: &[&DeviceDescription]) -> Option<Vec<usize>> {
    let coords: Vec<&[i64]> = devices.iter().map(|device| device.coords()).collect::<Option<_>>()?;
    let size = |dim: usize| {
        let along = coords.iter().filter_map(|coords| coords.get(dim));
        let (lowest, highest) = (along.clone().min()?, along.max()?);
        usize::try_from(highest - lowest + 1).ok()
    };
    (0..coords.first()?.len()).map(size).collect()
}

fn number(topology: &Topology) -> String {
    topology.fingerprint().map_or_else(|| "not offered".to_owned(), |number| format!("{number:016x}"))
}

/// Compiles a sum over all devices of a topology, and returns the executable's fingerprint.
fn program(rig: &Rig, topology: &Topology) -> Result<String, Failure> {
    let mut ids: Vec<i64> = topology.device_descriptions()?.iter().map(|device| device.id).collect();
    ids.sort_unstable();
    let options: CompileOptions = rig.platform.compile_options(&ids);
    fingerprint(&topology.compile(probes::summed(LEN, ids.len()).as_bytes(), &options)?)
}
