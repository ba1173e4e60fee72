//! Assigns the chips of a TPU slice to processes, and computes the values with which libtpu connects the processes.
//!
//! Entry points: [`Slice::plan`], which is pure; [`Member`], one process of a slice; [`free_ports`] and [`diagnosis`],
//! which look at the machine. A host has one of these forms: one process that opens one, some or all chips; several
//! processes that divide the chips among them; or, on tpu7x, one process per core. A slice may have several hosts of
//! the same form, with one launcher per host.

mod asked;
mod bounds;
pub(crate) mod diagnosis;
mod ports;
mod shape;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use devices::tpu::{Chip, Generation};

use crate::environment::Environment;
use crate::hosts::Hosts;
use crate::tpu::asked::Asked;
pub(crate) use crate::tpu::asked::INPUTS;
use crate::tpu::bounds::Bounds;
pub(crate) use crate::tpu::ports::{FIRST_PORT, free_ports};
pub(crate) use crate::tpu::shape::MAX_DEVICES_PER_HOST;
use crate::tpu::shape::Shape;

/// The input of a plan for TPUs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    /// The number of shard processes on this host.
    pub(crate) num_shard: u32,
    /// The number of devices of each shard. `None` means 1 or, for a single shard, the largest number that a form and
    /// the model allow.
    pub(crate) devices_per_shard: Option<u32>,
    /// The numbers of devices that the model can be split over; `None` if they are not known.
    pub(crate) device_counts: Option<&'a [u32]>,
    /// The chips of this host, by their local index.
    pub(crate) chips: &'a [Chip],
    pub(crate) environment: &'a Environment,
    /// The hosts of the slice.
    pub(crate) hosts: &'a Hosts,
    /// Free ports, one per shard. They are not used for a slice of several hosts, because these must agree on ports.
    pub(crate) ports: &'a [u16],
}

/// A TPU slice as libtpu sees it, and the part of it that this host has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slice {
    generation: Generation,
    pub(crate) process_bounds: Bounds,
    pub(crate) chips_per_process: Bounds,
    pub(crate) devices_per_process: u32,
    /// The name of the slice's type, such as `v6e-8`.
    pub(crate) accelerator_type: String,
    /// All hosts of the slice, in order.
    pub(crate) hosts: Vec<String>,
    pub(crate) worker_id: u32,
    /// The `host:port` of every process of the slice; `None` for a single process that has its host to itself.
    pub(crate) addresses: Option<Vec<String>>,
    /// Which of the three dimensions wrap around (their ends are connected), in libtpu's form, such as
    /// `true,false,false`; `None` for a slice of one host.
    pub(crate) wrap: Option<String>,
    /// True if several processes may use chips of this host: several shards, or a launch that leaves some chips free.
    pub(crate) shares_host: bool,
    /// For each process of this host, the local indices of its chips, or of its core if it has only one.
    visible: Vec<Vec<u32>>,
    sets_visible_chips: bool,
    /// The ports of libtpu's metrics, one for each chip of this host.
    metrics_ports: Option<Vec<String>>,
    /// The local indices of the chips that this launch opens.
    pub(crate) chips: Vec<usize>,
    /// Notes about this plan that are shown to the user.
    pub(crate) notes: Vec<String>,
}

/// One process of a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member<'a> {
    pub(crate) slice: &'a Slice,
    /// The index of this process on its host.
    pub(crate) local: usize,
}

impl Slice {
    /// Plans the processes that this host has in the slice.
    ///
    /// # Errors
    /// Problems that were found: chips or numbers of processes that no form allows, and values in the environment that
    /// contradict the plan and must not be overridden.
    pub(crate) fn plan(request: &Request<'_>) -> Result<Self, Vec<String>> {
        let generation = generation(request.chips)?;
        let asked = Asked::read(request)?;
        let mut shape = Shape::of(request, generation, &asked).map_err(|error| vec![error])?;
        let mut errors = Vec::new();
        asked.bounds(request, &mut shape, &mut errors);
        if asked.metrics_ports.is_some() && shape.has_process_per_core() {
            errors.push(
                "TPU_RUNTIME_METRICS_PORTS has one port for each chip, but each chip has two processes: unset it"
                    .into(),
            );
        }
        let shares_host = request.num_shard > 1 || shape.chips.len() < request.chips.len();
        let addresses = (shares_host || asked.hosts.len() > 1).then(|| asked.addresses(request)).transpose();
        let addresses = addresses.unwrap_or_else(|error| {
            errors.push(error);
            None
        });
        errors.extend(asked.check_private(request, addresses.as_deref().unwrap_or_default()));
        if !errors.is_empty() {
            return Err(errors);
        }
        let accelerator_type = shape.accelerator_type();
        if let Some(yours) = request.environment.get("TPU_ACCELERATOR_TYPE").filter(|yours| *yours != accelerator_type)
        {
            shape.notes.push(format!("TPU_ACCELERATOR_TYPE is {yours:?}; this plan is for {accelerator_type}"));
        }
        Ok(Self {
            generation,
            accelerator_type,
            visible: shape.visible(),
            sets_visible_chips: shares_host || asked.sets_visible_chips,
            chips: shape.chips.iter().map(|chip| *chip as usize).collect(),
            process_bounds: shape.process_bounds,
            chips_per_process: shape.chips_per_process,
            devices_per_process: shape.devices_per_process,
            wrap: shape.wrap,
            notes: shape.notes,
            metrics_ports: asked.metrics_ports,
            hosts: asked.hosts,
            worker_id: asked.worker_id,
            addresses,
            shares_host,
        })
    }

    /// The processes of this host.
    pub(crate) fn members(&self) -> impl Iterator<Item = Member<'_>> {
        (0..self.visible.len()).map(|local| Member { slice: self, local })
    }

    /// True if libtpu needs a flag to make the two cores of a chip two devices.
    pub(crate) fn splits_chips(&self) -> bool {
        self.generation == Generation::V5p
    }

    /// The value of `TPU_MEGACORE` that makes the two cores of a v4 chip one device; `None` for other generations.
    pub(crate) fn megacore(&self) -> Option<&'static str> {
        (self.generation == Generation::V4).then_some("megacore_dense")
    }
}

impl Member<'_> {
    /// The index of this process in the slice; `None` for a single process that has its host to itself.
    pub(crate) fn task_id(&self) -> Option<usize> {
        self.slice.addresses.as_ref().map(|_| self.slice.worker_id as usize * self.slice.visible.len() + self.local)
    }

    /// The port on which this process listens for the others; `None` for a single process that has its host to itself.
    pub(crate) fn port(&self) -> Option<&str> {
        let address = self.slice.addresses.as_ref()?.get(self.task_id()?)?;
        address.rsplit_once(':').map(|(_, port)| port)
    }

    /// The ports of libtpu's metrics for the chips of this process; `None` if the user sets none.
    pub(crate) fn metrics_ports(&self) -> Option<String> {
        let ports = self.slice.metrics_ports.as_ref()?;
        let chips = self.slice.visible[self.local].iter().filter_map(|chip| ports.get(*chip as usize));
        Some(chips.map(String::as_str).collect::<Vec<_>>().join(","))
    }

    /// The indices of the chips (or of the core) that this process opens, as a list with commas; `None` if it opens all
    /// chips and the user named none.
    pub(crate) fn visible(&self) -> Option<String> {
        let indices: Vec<String> = self.slice.visible[self.local].iter().map(u32::to_string).collect();
        self.slice.sets_visible_chips.then(|| indices.join(","))
    }
}

/// The number of devices that a PJRT client sees per chip.
pub(crate) fn devices_per_chip(generation: Generation) -> u32 {
    match generation {
        Generation::V5p | Generation::Tpu7x | Generation::V2OrV3 => 2,
        Generation::V4 | Generation::V5e | Generation::V6e | Generation::Tpu8i | Generation::Tpu8t => 1,
    }
}

/// Returns the generation of the chips. It is an error if they have several generations or one that is not supported.
fn generation(chips: &[Chip]) -> Result<Generation, Vec<String>> {
    let Some(first) = chips.first() else { return Err(vec!["this machine has no TPU chip".to_owned()]) };
    if let Some(other) = chips.iter().find(|chip| chip.generation != first.generation) {
        let [first, other] = [first, other].map(|chip| chip.generation.name());
        return Err(vec![format!("this machine has TPU chips of two kinds, {first} and {other}")]);
    }
    match first.generation {
        Generation::V4 | Generation::V5e | Generation::V5p | Generation::V6e | Generation::Tpu7x => {
            Ok(first.generation)
        }
        Generation::V2OrV3 | Generation::Tpu8i | Generation::Tpu8t => Err(vec![format!(
            "this machine has TPU {} chips, which are not supported; only v4, v5e, v5p, v6e and tpu7x are",
            first.generation.name()
        )]),
    }
}
