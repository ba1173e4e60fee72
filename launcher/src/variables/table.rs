//! To add a variable whose value follows from the slice: add one row to [`TABLE`], with its reason. A variable that a
//! plugin always needs is listed with its device (`devices/src/lib.rs`).

use super::Setting;

/// A flag of every process that loads libtpu. `compile` sets it too, because a server finds compiled programs only
/// under the flags with which they were compiled.
pub(super) const LAUNCH_BARRIER: &str = "--xla_tpu_use_enhanced_launch_barrier=false";

/// The flag that makes the two cores of a v5p chip two devices. If they were one device, the compiler would leave the
/// values that attention gathers in slow memory (docs/tpu-attention.md). `compile` makes programs for two devices.
pub(super) const TWO_DEVICES_PER_CHIP: &str = "--deepsea_chip_config_name=legacy";

/// Variables whose values are secrets. No child inherits one, because shards run the code of plugins, and every process
/// of this user can read the environment of a child. The plan sets a variable with the API keys for the router only.
pub(crate) const SECRETS: [&str; 5] =
    ["API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN", "NGROK_AUTHTOKEN"];

/// A variable with its value, which depends on the purpose of the child, and the reason for it.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) reason: &'static str,
    /// The value, or `None` if the child does not need the variable.
    pub(super) value: fn(&Setting<'_>) -> Option<String>,
    /// True if the value in the table takes the user's own value into account and therefore replaces it.
    pub(super) replaces_yours: bool,
}

/// The variables whose values follow from the slice.
pub(super) const TABLE: [Row; 18] = [
    Row::new("TPU_PROCESS_BOUNDS", "processes of the slice along x, y, z", |to| {
        Some(to.tpu()?.slice.process_bounds.to_string())
    }),
    Row::new("TPU_CHIPS_PER_PROCESS_BOUNDS", "chips of one process along x, y, z", |to| {
        Some(to.tpu()?.slice.chips_per_process.to_string())
    }),
    Row::new("TPU_HOST_BOUNDS", "older name of TPU_PROCESS_BOUNDS", |to| {
        Some(to.tpu()?.slice.process_bounds.to_string())
    }),
    Row::new("TPU_CHIPS_PER_HOST_BOUNDS", "older name of TPU_CHIPS_PER_PROCESS_BOUNDS", |to| {
        Some(to.tpu()?.slice.chips_per_process.to_string())
    }),
    Row::new("CLOUD_TPU_TASK_ID", "number of this process in the slice", |to| {
        to.tpu()?.task_id().map(|id| id.to_string())
    }),
    Row::new("TPU_PROCESS_ADDRESSES", "addresses of the slice's processes, in the order of their numbers", |to| {
        Some(to.tpu()?.slice.addresses.as_ref()?.join(","))
    }),
    Row::new("TPU_PROCESS_PORT", "port of this process in TPU_PROCESS_ADDRESSES", |to| {
        to.tpu()?.port().map(str::to_owned)
    }),
    Row::new("TPU_VISIBLE_CHIPS", "chips that this process opens", |to| to.tpu()?.visible()).replacing_yours(),
    Row::new("TPU_VISIBLE_DEVICES", "older name of TPU_VISIBLE_CHIPS", |to| to.tpu()?.visible()).replacing_yours(),
    // GKE sets a port for each chip of the host, and every process would try to listen on the first.
    Row::new("TPU_RUNTIME_METRICS_PORTS", "ports of libtpu's metrics, one for each chip of this process", |to| {
        to.tpu()?.metrics_ports()
    })
    .replacing_yours(),
    Row::new(
        "ALLOW_MULTIPLE_LIBTPU_LOAD",
        "processes on this host open different devices, so no lock is needed",
        |to| match to {
            Setting::Ahead => Some("1".into()),
            Setting::Tpu(member) => member.slice.shares_host.then(|| "1".into()),
            Setting::Shard(_) => None,
        },
    ),
    // Where there is no metadata server, each query takes long. On a host of a larger pod, the server returns facts
    // about the whole pod.
    Row::new("TPU_SKIP_MDS_QUERY", "these variables replace the replies of the metadata server", |to| to.libtpu("1")),
    Row::new("TPU_ACCELERATOR_TYPE", "type of the slice, instead of the metadata server's reply", |to| match to {
        // The command line names the topology to compile for; libtpu only needs any valid type.
        Setting::Ahead => Some("v5litepod-4".into()),
        Setting::Tpu(member) => Some(member.slice.accelerator_type.clone()),
        Setting::Shard(_) => None,
    }),
    Row::new("TPU_WORKER_HOSTNAMES", "hosts of the slice", |to| match to {
        Setting::Ahead => Some("localhost".into()),
        Setting::Tpu(member) => Some(member.slice.hosts.join(",")),
        Setting::Shard(_) => None,
    }),
    Row::new("TPU_WORKER_ID", "index of this host in TPU_WORKER_HOSTNAMES", |to| {
        Some(to.tpu()?.slice.worker_id.to_string())
    }),
    Row::new("TPU_TOPOLOGY_WRAP", "dimensions whose ends are connected", |to| to.tpu()?.slice.wrap.clone()),
    Row::new("TPU_MEGACORE", "a v4 chip is one device", |to| to.tpu()?.slice.megacore().map(str::to_owned)),
    // Compiled programs depend on this variable, so `compile` sets it too.
    Row::new(
        "LIBTPU_INIT_ARGS",
        "processes may launch different programs, and the enhanced barrier would hang then",
        |to| match to {
            Setting::Tpu(member) if member.slice.splits_chips() => {
                Some(format!("{LAUNCH_BARRIER} {TWO_DEVICES_PER_CHIP}"))
            }
            Setting::Ahead | Setting::Tpu(_) => Some(LAUNCH_BARRIER.to_owned()),
            Setting::Shard(_) => None,
        },
    )
    .replacing_yours(),
];

impl Row {
    const fn new(name: &'static str, reason: &'static str, value: fn(&Setting<'_>) -> Option<String>) -> Self {
        Self { name, reason, value, replaces_yours: false }
    }

    const fn replacing_yours(self) -> Self {
        Self { replaces_yours: true, ..self }
    }
}
