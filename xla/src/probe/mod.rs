//! A trial of a device through its plugin: what it is, what it can do, and how long each thing takes.
//!
//! Entry point: [`probe`], which runs the probes of [`PROBES`] in order and reports lines. If a probe fails, a line has
//! the reason, and the next probe runs unless it needs the failed one. A plugin can also hang, or end the process.
//! Therefore a caller can run [`probe`] in a child process, end the child when a probe exceeds its time limit, and go
//! on with the next probe in another child ([`ProbeOptions::first`]). `stablehlo::probes` has the programs.

mod arguments;
mod collectives;
mod compiled;
mod facts;
mod launches;
mod page;
mod rig;
mod scatter;
mod slices;
#[cfg(test)]
mod tests;
mod transfers;
mod versions;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pjrt::{Client, Plugin, Value};

use crate::platform::Platform;
use page::{Failure, Page, duration};
pub use page::{ProbeEvent, ProbeLine};
use rig::Rig;

/// The options of [`probe`].
#[derive(Debug, Clone)]
pub struct ProbeOptions {
    /// The kind of device.
    pub platform: Platform,
    /// Path of the plugin; if `None`, the plugin is searched for.
    pub plugin_path: Option<PathBuf>,
    /// The number of devices to open, if the plugin lets us choose; `None` for the plugin's choice.
    pub num_devices: Option<usize>,
    /// The index in [`PROBES`] of the first probe to run. The plugin and the client are opened in any case.
    pub first: usize,
    /// Returns the topologies that devices can have, from their kind and from the number of chips along each dimension.
    /// The first is the one for which programs are compiled ahead of time.
    pub slices: fn(&str, &[usize]) -> Vec<NamedTopology>,
}

/// A topology that a plugin knows by its name.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTopology {
    /// The plugin's name, such as `v5e:2x4`.
    pub name: String,
    /// The options besides the name.
    pub options: Vec<(&'static str, Value)>,
    /// The name on the page.
    pub text: String,
}

/// A probe: its name, and the time that it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// The name, as on the page.
    pub name: &'static str,
    /// The time after which the probe counts as hung.
    pub limit: Duration,
    /// True if the later probes need the result of this one.
    pub is_needed: bool,
}

/// A probe that uses an open client.
type Run = fn(&Rig, &mut Page<'_>) -> Result<(), Failure>;

/// The index of the probe that opens the plugin.
const PLUGIN: usize = 0;
/// The index of the probe that creates the client.
const CLIENT: usize = 1;
/// The index of the probe that compares the devices with topologies by name.
const SLICES: usize = TEARDOWN - 1;
/// The index of the last probe, which closes the client.
const TEARDOWN: usize = PROBES.len() - 1;

/// All probes, in their order. The probe at [`CLIENT`] creates the client that the later ones use.
pub const PROBES: [Probe; 19] = [
    // libtpu looks for its chips, and asks a server in the cloud, which may take minutes.
    Probe::new("plugin", 120).needed(),
    // All processes of a slice wait for each other here.
    Probe::new("client", 300).needed(),
    Probe::new("devices", 30),
    Probe::new("memory", 30),
    Probe::new("topology", 30),
    Probe::new("layouts", 60),
    Probe::new("small program", 120),
    Probe::new("element types", 60),
    Probe::new("large transfers", 120),
    Probe::new("small transfers", 60),
    Probe::new("empty launch", 120),
    Probe::new("launch with 356 arguments", 120),
    Probe::new("two launches", 300),
    Probe::new("scatter in place", 120),
    Probe::new("all-reduce", 120),
    Probe::new("ahead of time, one device", 120),
    Probe::new("ahead of time, all devices", 120),
    Probe::new("topologies by name", 300),
    Probe::new("teardown", 120),
];

/// The functions of probes `CLIENT + 1` to `SLICES - 1`, in order.
const RUNS: [Run; SLICES - CLIENT - 1] = [
    facts::places,
    facts::memory,
    facts::topology,
    facts::layouts,
    compiled::small_program,
    transfers::element_types,
    transfers::large,
    transfers::small,
    launches::empty,
    arguments::many,
    launches::back_to_back,
    scatter::in_place,
    collectives::all_reduce,
    compiled::ahead_of_one,
    compiled::ahead_of_all,
];

impl Probe {
    const fn new(name: &'static str, seconds: u64) -> Self {
        Self { name, limit: Duration::from_secs(seconds), is_needed: false }
    }

    const fn needed(self) -> Self {
        Self { is_needed: true, ..self }
    }
}

/// Runs the probes from [`ProbeOptions::first`] on. `report` is called at the start of each probe, and with each line.
/// Without a plugin or a client, every later probe has a line that says so.
pub fn probe(options: &ProbeOptions, report: &mut dyn FnMut(ProbeEvent)) {
    let mut page = Page::new(report);
    let platform = options.platform.clone();
    let platform = match options.num_devices {
        Some(num_devices) => platform.with_devices(num_devices),
        None => platform.with_all_devices(),
    };
    let opened = open_plugin(&platform, options, &mut page);
    let Some(plugin) = page.outcome(PLUGIN, opened) else { return skip(options.first.max(CLIENT), &mut page) };
    let opened = open_client(&platform, options, &plugin, &mut page);
    let Some(client) = page.outcome(CLIENT, opened) else { return skip(options.first.max(CLIENT + 1), &mut page) };
    let rig = Rig::new(platform, client);
    for (index, run) in (CLIENT + 1..SLICES).zip(RUNS).filter(|(index, _)| *index >= options.first) {
        page.begin(index);
        let outcome = run(&rig, &mut page);
        page.outcome(index, outcome);
    }
    if options.first <= SLICES {
        page.begin(SLICES);
        let outcome = slices::compare(&rig, options, &mut page);
        page.outcome(SLICES, outcome);
    }
    page.begin(TEARDOWN);
    let start = Instant::now();
    drop(rig);
    drop(plugin);
    page.line(PROBES[TEARDOWN].name, duration(start.elapsed()));
}

/// Opens the plugin. Its facts are reported unless a child before this one has reported them.
fn open_plugin(platform: &Platform, options: &ProbeOptions, page: &mut Page<'_>) -> Result<Arc<Plugin>, Failure> {
    page.begin(PLUGIN);
    let start = Instant::now();
    let plugin = platform.open_plugin(options.plugin_path.as_deref())?;
    if options.first == PLUGIN {
        versions::plugin(&plugin, start.elapsed(), page);
    }
    Ok(plugin)
}

/// Creates the client. Its facts are reported unless a child before this one has reported them.
fn open_client(
    platform: &Platform,
    options: &ProbeOptions,
    plugin: &Arc<Plugin>,
    page: &mut Page<'_>,
) -> Result<Client, Failure> {
    page.begin(CLIENT);
    let start = Instant::now();
    let client = platform.client(plugin)?;
    if options.first <= CLIENT {
        versions::client(&client, start.elapsed(), page);
    }
    Ok(client)
}

/// Reports that the probes from `first` on did not run.
fn skip(first: usize, page: &mut Page<'_>) {
    for probe in PROBES.iter().skip(first) {
        page.failed(probe.name, "not tried, because there is no client");
    }
}
