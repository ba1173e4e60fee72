//! The environment of the children: that of a shard which drives the devices to try.

use std::path::Path;

use devices::tpu::{self as chips, Chip};
use devices::{Device, Ranks};
use shard::probe::ProbeArgs;

use crate::error::LauncherError;
use crate::hosts::{Hosts, SliceArgs};
use crate::tpu::diagnosis::{self, Diagnosis, Inspection};
use crate::tpu::{FIRST_PORT, Request, Slice, devices_per_chip, free_ports};
use crate::variables::{Setting, Variable, environment, variables};

/// The variables of the children, and remarks about the machine.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) variables: Vec<Variable>,
    pub(super) warnings: Vec<String>,
}

/// Looks at the machine below `root`, and plans one process with all devices, or with the number in `args`.
///
/// # Errors
/// When no plan fits the machine, or its chips cannot be opened.
pub(super) fn look(device: Device, args: &ProbeArgs, root: &Path) -> Result<Found, LauncherError> {
    let environment = environment();
    if device.ranks != Ranks::Slice {
        return Ok(Found { variables: variables(&Setting::Shard(device), &environment), warnings: Vec::new() });
    }
    let chips = chips::find(root).usable;
    let all = chips.iter().map(|chip| devices_per_chip(chip.generation)).sum();
    let hosts = Hosts::read(&SliceArgs::default(), device, &environment).map_err(LauncherError::Arguments)?;
    let request = Request {
        num_shard: 1,
        devices_per_shard: Some(args.num_devices.unwrap_or(all)),
        device_counts: None,
        chips: &chips,
        environment: &environment,
        hosts: &hosts,
        ports: &free_ports(FIRST_PORT, 1, 0),
    };
    let slice = Slice::plan(&request).map_err(LauncherError::Arguments)?;
    let variables = slice.members().next().map(|member| variables(&Setting::Tpu(member), &environment));
    let opened: Vec<&Chip> = slice.chips.iter().map(|index| &chips[*index]).collect();
    let memlock_bytes = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let inspection = Inspection { root, chips: &opened, takes_lock: !slice.shares_host, memlock_bytes };
    let Diagnosis { errors, mut warnings } = diagnosis::check(&inspection);
    if !errors.is_empty() {
        return Err(LauncherError::Device { device, reasons: errors });
    }
    warnings.extend(slice.notes.iter().cloned());
    Ok(Found { variables: variables.unwrap_or_default(), warnings })
}
