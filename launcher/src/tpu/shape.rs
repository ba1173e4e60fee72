//! Computes the shape of a plan from the number of processes and of devices per process, and checks that these numbers
//! are allowed.

use devices::tpu::Generation;

use crate::tpu::asked::Asked;
use crate::tpu::bounds::Bounds;
use crate::tpu::{Request, devices_per_chip};

/// The maximum number of devices on a host.
pub(crate) const MAX_DEVICES_PER_HOST: u32 = 16;

/// The part of a host that one process owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// All devices of this number of chips.
    Chips(u32),
    /// One of the two devices of a chip. Another process owns the other device.
    Core,
}

/// The processes of one host and the shapes of their chips.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Local {
    form: Form,
    num_chips: u32,
    /// The shape of all chips of this host.
    host: Bounds,
    /// The shape of the chips of one process.
    part: Bounds,
    /// The shape of the processes of the host.
    processes: Bounds,
}

/// The shape of a plan: the used chips, and how the processes of the slice share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    generation: Generation,
    form: Form,
    num_hosts: usize,
    /// The local indices of the chips that are used.
    pub(crate) chips: Vec<u32>,
    pub(crate) process_bounds: Bounds,
    pub(crate) chips_per_process: Bounds,
    pub(crate) devices_per_process: u32,
    /// Which of the three dimensions wrap around, as in [`Bounds::wrap`]; `None` for a slice of one host.
    pub(crate) wrap: Option<String>,
    /// Notes that are shown to the user.
    pub(crate) notes: Vec<String>,
}

impl Shape {
    /// Returns the shape for a request.
    ///
    /// # Errors
    /// When no form has these numbers of processes and devices (the message lists the allowed ones), when the shape of
    /// the slice is unknown, or when the hosts do not fill the slice.
    pub(crate) fn of(request: &Request<'_>, generation: Generation, asked: &Asked) -> Result<Self, String> {
        let devices = request.devices_per_shard.unwrap_or_else(|| default_devices(request, generation, asked));
        let local = Local::of(request.num_shard, devices, generation, asked)
            .ok_or_else(|| no_such_form(request.num_shard, devices, generation, asked))?;
        let num_hosts = asked.hosts.len();
        let slice = slice_shape(&local, generation, asked)?;
        let hosts = slice.divided_by(&local.host).filter(|hosts| hosts.product() as usize == num_hosts);
        let hosts = hosts.ok_or_else(|| {
            format!(
                "a slice of shape {slice} (TPU_TOPOLOGY) does not consist of {num_hosts} hosts (TPU_WORKER_HOSTNAMES) \
                 of shape {}",
                local.host
            )
        })?;
        let (process_bounds, chips_per_process) = (hosts.times(&local.processes), local.part.clone());
        Ok(Self {
            generation,
            form: local.form,
            num_hosts,
            chips: asked.visible[..local.num_chips as usize].to_vec(),
            process_bounds: if local.form == Form::Core { process_bounds.with_cores(2) } else { process_bounds },
            chips_per_process: if local.form == Form::Core {
                chips_per_process.with_cores(1)
            } else {
                chips_per_process
            },
            devices_per_process: devices,
            wrap: (num_hosts > 1).then(|| slice.wrap(is_flat(generation))),
            notes: notes((request, devices), generation, &local, asked),
        })
    }

    /// The name of the slice's type, such as `v6e-8`. For v5e and v6e the number counts chips; for other generations it
    /// counts cores, two per chip.
    pub(crate) fn accelerator_type(&self) -> String {
        let num_chips = self.chips.len() * self.num_hosts;
        let name = if self.generation == Generation::V5e { "v5litepod" } else { self.generation.name() };
        format!("{name}-{}", if is_flat(self.generation) { num_chips } else { 2 * num_chips })
    }

    /// True if the two cores of a chip belong to different processes.
    pub(crate) fn has_process_per_core(&self) -> bool {
        self.form == Form::Core
    }

    /// For each process of this host, the local indices of the chips that it opens, or of its core.
    pub(crate) fn visible(&self) -> Vec<Vec<u32>> {
        match self.form {
            Form::Chips(count) => self.chips.chunks(count as usize).map(<[u32]>::to_vec).collect(),
            Form::Core => self.chips.iter().flat_map(|chip| [vec![2 * chip], vec![2 * chip + 1]]).collect(),
        }
    }
}

impl Local {
    /// Returns the layout of `num_shard` processes with `devices_per_shard` devices each on one host, or `None` if
    /// there is none.
    fn of(num_shard: u32, devices_per_shard: u32, generation: Generation, asked: &Asked) -> Option<Self> {
        let per_chip = devices_per_chip(generation);
        let (form, num_chips) = match devices_per_shard {
            // A single process opens one chip. If the chip has two devices, the process sees both and uses the first.
            1 if num_shard == 1 => (Form::Chips(1), 1),
            // Only tpu7x allows this: no system is known that gives the cores of one chip of another generation to two
            // processes.
            1 if generation == Generation::Tpu7x => (Form::Core, num_shard.is_multiple_of(2).then_some(num_shard / 2)?),
            devices => {
                let chips = devices.is_multiple_of(per_chip).then_some(devices / per_chip)?;
                (Form::Chips(chips), chips.checked_mul(num_shard)?)
            }
        };
        let num_visible = u32::try_from(asked.visible.len()).ok()?;
        let takes_all = num_chips == num_visible;
        let is_legal =
            num_chips > 0 && (takes_all || num_shard == 1 && num_chips < num_visible && asked.hosts.len() == 1);
        let topology = asked.topology.as_ref().filter(|shape| asked.hosts.len() == 1 && shape.product() == num_chips);
        let host = topology.cloned().or_else(|| Bounds::of_chips(num_chips)).filter(|_| is_legal)?;
        let part = match form {
            Form::Chips(_) if num_shard == 1 => host.clone(),
            Form::Chips(count) => Bounds::of_chips(count)?,
            Form::Core => Bounds::of_chips(1)?,
        };
        let processes = host.divided_by(&part)?;
        Some(Self { form, num_chips, host, part, processes })
    }
}

/// Returns the number of devices of each shard if the request has none: for a single shard the largest number of this
/// host's devices for which there is a form, and over which the model can be split; 1 if there are several shards.
fn default_devices(request: &Request<'_>, generation: Generation, asked: &Asked) -> u32 {
    if request.num_shard > 1 {
        return 1;
    }
    let num_hosts = u32::try_from(asked.hosts.len()).unwrap_or(u32::MAX);
    let is_possible = |devices: &u32| {
        let splits = request.device_counts.is_none_or(|counts| counts.contains(&devices.saturating_mul(num_hosts)));
        splits && Local::of(1, *devices, generation, asked).is_some()
    };
    (1..=MAX_DEVICES_PER_HOST).rev().find(is_possible).unwrap_or(1)
}

/// True if slices of this generation have two dimensions.
fn is_flat(generation: Generation) -> bool {
    matches!(generation, Generation::V5e | Generation::V6e)
}

fn slice_shape(local: &Local, generation: Generation, asked: &Asked) -> Result<Bounds, String> {
    let num_hosts = asked.hosts.len();
    if num_hosts == 1 {
        return Ok(local.host.clone());
    }
    let total = local.num_chips.saturating_mul(u32::try_from(num_hosts).unwrap_or(u32::MAX));
    asked.topology.clone().or_else(|| Bounds::of_slice(total, is_flat(generation))).ok_or_else(|| {
        format!(
            "the shape of a slice of {num_hosts} hosts with {} chips each is not known: set TPU_TOPOLOGY to it, such \
             as 2x4",
            local.num_chips
        )
    })
}

fn no_such_form(num_shard: u32, devices_per_shard: u32, generation: Generation, asked: &Asked) -> String {
    let legal =
        |devices| (1..=MAX_DEVICES_PER_HOST).filter(move |n| Local::of(*n, devices, generation, asked).is_some());
    let list = |counts: Vec<u32>| counts.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ");
    let shards: Vec<u32> = legal(devices_per_shard).collect();
    let allowed = if shards.is_empty() {
        let devices: Vec<u32> = (1..=MAX_DEVICES_PER_HOST).filter(|devices| legal(*devices).next().is_some()).collect();
        if devices.is_empty() {
            // On one host, one process with one device is always possible.
            "on each of several hosts, 1, 2, 4 or 8 chips must be visible (TPU_VISIBLE_CHIPS)".to_owned()
        } else {
            format!("--devices-per-shard may be {}", list(devices))
        }
    } else {
        let per_chip = devices_per_chip(generation);
        let by_chips: Vec<u32> = legal(per_chip).filter(|_| devices_per_shard != per_chip).collect();
        let others = if by_chips.is_empty() {
            String::new()
        } else {
            format!(", or --devices-per-shard {per_chip} with --num-shard {}", list(by_chips))
        };
        format!("use --devices-per-shard {devices_per_shard} with --num-shard {}{others}", list(shards))
    };
    format!(
        "`num_shard` is {num_shard} and `devices_per_shard` {devices_per_shard}, but this host has {} visible TPU {} \
         chip(s) of {} device(s) each: {allowed}",
        asked.visible.len(),
        generation.name(),
        devices_per_chip(generation),
    )
}

/// Notes about choices on which sources disagree, that no other system is known to make, that are not tried yet, or
/// that leave a device idle.
fn notes((request, devices): (&Request<'_>, u32), generation: Generation, local: &Local, asked: &Asked) -> Vec<String> {
    let mut notes = Vec::new();
    let num_visible = asked.visible.len();
    if request.devices_per_shard.is_none() && request.num_shard == 1 && (local.num_chips as usize) < num_visible {
        notes.push(format!(
            "{} of {num_visible} chips are used: the model cannot be split over more, or no form has more",
            local.num_chips
        ));
    }
    if local.num_chips == 8 && asked.hosts.len() == 1 && asked.topology.is_none() {
        notes.push(
            "8 chips are used in the shape 2,4,1, but some sources say 4,2,1: if libtpu fails, set TPU_TOPOLOGY=4x2"
                .into(),
        );
    }
    if request.num_shard > 1 && matches!(local.form, Form::Chips(2..)) {
        notes.push("several processes with several chips each on one host: no other system is known to do this".into());
    }
    if generation == Generation::V5p {
        notes.push(
            "the two cores of a v5p chip are used as two devices, as `compile` does: this is not tried on a v5p yet"
                .into(),
        );
    }
    if local.form == Form::Core {
        notes.push(
            "one process per core: sources disagree whether TPU_VISIBLE_CHIPS then counts cores or chips; if libtpu \
             fails, pass --devices-per-shard 2 and half as many shards"
                .into(),
        );
    }
    if devices < devices_per_chip(generation) && local.form == Form::Chips(1) {
        notes.push("one of the two devices of the chip is idle: --devices-per-shard 2 uses both".into());
    }
    notes
}
