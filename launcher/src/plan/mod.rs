//! Turns arguments into a plan: the children to run, with their arguments, variables and sockets. A plan is a pure
//! value: no file, socket or process is touched here, so tests can check every plan by looking at it.
//!
//! Entry points: [`LaunchPlan::new`], and [`text`], which prints a plan.

#[cfg(test)]
mod tests;
pub(crate) mod text;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use devices::tpu::Chip;
use devices::{Asked, BackendKind, Device, Ranks};
use endpoint::Endpoint;
use serde_json::Value;

use crate::args::LaunchArgs;
use crate::download::Snapshot;
use crate::environment::Environment;
use crate::error::LauncherError;
use crate::event::ChildId;
use crate::hosts::Hosts;
use crate::stop;
use crate::tpu::{Request, Slice};
use crate::variables::{Setting, Variable, variables};

/// The facts about this machine that a plan depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    /// TPU chips by their local index; empty unless the device is a TPU.
    pub(crate) chips: Vec<Chip>,
    pub(crate) environment: Environment,
    /// Free ports for the processes of a TPU slice, one per shard; empty unless the device is a TPU.
    pub(crate) ports: Vec<u16>,
}

/// The facts that all processes of this launch on this host share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    /// The device to compute on, already chosen when `--device` is `auto`.
    pub(crate) device: Device,
    /// The address of the shards, to which each shard adds its number: a socket path without `-<shard>`, or
    /// `tcp://host:port` with the first port.
    pub(crate) shard_uds_path: &'a str,
    /// The shared memory through which shards limit how many of them load a weight at the same time and, on the CPU,
    /// exchange activations.
    pub(crate) collective_path: Option<PathBuf>,
    /// The snapshot of a model from the Hub. `None` for another model, whose id is a path or `demo`.
    pub(crate) snapshot: Option<&'a Snapshot>,
    /// The numbers of devices that the model can be split over; `None` if they are not known yet.
    pub(crate) device_counts: Option<Vec<u32>>,
}

/// One process to start: this executable with these arguments and variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChildPlan {
    pub(crate) id: ChildId,
    pub(crate) argv: Vec<OsString>,
    /// The variables that the child needs. It inherits those that the user set; the launcher sets the others.
    pub(crate) variables: Vec<Variable>,
}

/// A shard: its process and the address where it will listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShardPlan {
    pub(crate) child: ChildPlan,
    pub(crate) endpoint: Endpoint,
}

/// All decisions about a launch: the processes to start, and the settings of the supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaunchPlan {
    /// The shards of this host.
    pub(crate) shards: Vec<ShardPlan>,
    /// The addresses of the shards of all hosts, in order. Those of other hosts are relayed on host 0.
    pub(crate) endpoints: Vec<Endpoint>,
    /// The router; `None` on a host that is not the first.
    pub(crate) router: Option<ChildPlan>,
    pub(crate) hosts: Hosts,
    /// The settings that all hosts must share, as a JSON object.
    pub(crate) settings: Value,
    /// True if shards of several hosts sum their results through sockets.
    pub(crate) sums: bool,
    /// The TPU slice to which the shards belong; `None` on other devices.
    pub(crate) slice: Option<Slice>,
    pub(crate) devices_per_shard: u32,
    pub(crate) shutdown_timeout: Duration,
    /// The maximum time that a shard gets to end, once the router has ended.
    pub(crate) shard_deadline: Duration,
    pub(crate) json_output: bool,
}

impl LaunchPlan {
    /// Plans the processes. [`Endpoint::of_shard`] computes the address of each shard.
    ///
    /// # Errors
    /// [`LauncherError::Arguments`] with all problems that were found.
    pub(crate) fn new(args: &LaunchArgs, place: &Place<'_>, machine: &Machine) -> Result<Self, LauncherError> {
        let num_shard = args.num_shard.unwrap_or(1);
        let mut errors = check(args, place);
        let hosts = Hosts::read(&args.slice, place.device, &machine.environment);
        errors.extend(hosts.as_ref().err().into_iter().flatten().cloned());
        let hosts = hosts.unwrap_or_else(|_| Hosts::alone());
        errors.extend(check_hosts(&hosts, args, place));
        let slice = if errors.is_empty() { slice(args, place, machine, &hosts) } else { Ok(None) };
        errors.extend(slice.as_ref().err().into_iter().flatten().cloned());
        let (Ok(slice), true) = (slice, errors.is_empty()) else {
            return Err(LauncherError::Arguments(errors));
        };
        let num_shards = num_shard.saturating_mul(u32::try_from(hosts.num()).unwrap_or(u32::MAX));
        let first_shard = num_shard.saturating_mul(u32::try_from(hosts.index).unwrap_or(u32::MAX));
        let of_slice = slice.as_ref().map(|slice| slice.devices_per_process);
        let devices_per_shard = of_slice.or(args.devices_per_shard).unwrap_or(1);
        let shard = |local: u32| {
            let mut shard = shard(args, place, first_shard + local, [num_shards, devices_per_shard])?;
            let member = slice.as_ref().and_then(|slice| slice.members().nth(local as usize));
            let setting = member.map_or(Setting::Shard(place.device), Setting::Tpu);
            shard.child.variables = variables(&setting, &machine.environment);
            Ok::<_, LauncherError>(shard)
        };
        let endpoints = (0..num_shards).map(|shard| endpoint(place, shard)).collect::<Result<_, _>>();
        Ok(Self {
            shards: (0..num_shard).map(shard).collect::<Result<_, _>>()?,
            endpoints: endpoints.map_err(|error| LauncherError::Arguments(vec![error]))?,
            router: hosts.is_first().then(|| router(args, place, num_shards)),
            sums: hosts.num() > 1 && matches!(place.device.backend, BackendKind::Cpu),
            settings: settings(args, place, [num_shard, devices_per_shard], &hosts),
            hosts,
            slice,
            devices_per_shard,
            shutdown_timeout: Duration::from_secs(args.shutdown_timeout),
            shard_deadline: stop::shard_deadline(place.device),
            json_output: args.log.json_output,
        })
    }

    /// The shards that the router waits for: those of all hosts.
    pub(crate) fn all_shards(&self) -> impl Iterator<Item = ChildId> {
        (0..).zip(&self.endpoints).map(|(shard, _)| ChildId::Shard(shard))
    }

    /// The shards of other hosts: the index of the host, the shard and the address at which the router reaches it.
    /// Empty on a host that is not the first.
    pub(crate) fn remote_shards(&self) -> impl Iterator<Item = (usize, ChildId, &Endpoint)> {
        let num_shard = self.shards.len();
        let all = (0..).zip(&self.endpoints).filter(|_| self.hosts.is_first());
        let all = all.map(move |(shard, endpoint)| (shard as usize / num_shard, ChildId::Shard(shard), endpoint));
        all.filter(|(host, ..)| *host != self.hosts.index)
    }
}

/// The maximum number of shards that sum their results: as many as `collectives` supports.
const MAX_SUMMING: u32 = 64;

/// Flags of a shard that may differ between the hosts of a slice.
const OF_ONE_HOST: [&str; 3] = ["--plugin-path", "--program-cache", "--threads"];

/// Returns the settings that all hosts of a slice must share: counts, hosts and the flags of the model.
fn settings(args: &LaunchArgs, place: &Place<'_>, counts: [u32; 2], hosts: &Hosts) -> Value {
    let model = shard::ModelArgs { device: Asked::Device(place.device), ..args.model.clone() };
    let words: Vec<String> = model.to_argv().iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let flags = words.chunks_exact(2).filter(|pair| !OF_ONE_HOST.contains(&pair[0].as_str()));
    let mut settings: serde_json::Map<String, Value> =
        flags.map(|pair| (pair[0].clone(), pair[1].clone().into())).collect();
    let [num_shard, devices_per_shard] = counts;
    let names: Vec<String> = hosts.all.iter().map(ToString::to_string).collect();
    let of_launch = [
        ("--num-shard", Value::from(num_shard)),
        ("--slice-tls", args.slice.slice_tls.into()),
        ("the number of devices per shard", devices_per_shard.into()),
        (crate::hosts::HOSTS, names.join(",").into()),
    ];
    settings.extend(of_launch.map(|(name, value)| (name.to_owned(), value)));
    Value::Object(settings)
}

/// Checks that the device's shards can run on several hosts, and that the last shard has an address.
fn check_hosts(hosts: &Hosts, args: &LaunchArgs, place: &Place<'_>) -> Option<String> {
    let num_hosts = u32::try_from(hosts.num()).unwrap_or(u32::MAX);
    if num_hosts > 1 && place.device.ranks == Ranks::OneProcess {
        let device = place.device;
        return Some(format!("a slice has {num_hosts} hosts, but --device {device} runs a model in one process"));
    }
    let num_shards = args.num_shard.unwrap_or(1).saturating_mul(num_hosts);
    if num_hosts > 1 && num_shards > MAX_SUMMING && matches!(place.device.backend, BackendKind::Cpu) {
        return Some(format!(
            "{num_hosts} hosts with {} shards each are {num_shards} shards, but at most {MAX_SUMMING} can share a model on \
             CPUs",
            num_shards / num_hosts
        ));
    }
    check_endpoint(place, num_shards.saturating_sub(1)).err()
}

fn slice(args: &LaunchArgs, place: &Place<'_>, machine: &Machine, hosts: &Hosts) -> Result<Option<Slice>, Vec<String>> {
    if place.device.ranks != Ranks::Slice {
        return Ok(None);
    }
    let request = Request {
        num_shard: args.num_shard.unwrap_or(1),
        devices_per_shard: args.devices_per_shard,
        device_counts: place.device_counts.as_deref(),
        chips: &machine.chips,
        environment: &machine.environment,
        hosts,
        ports: &machine.ports,
    };
    Slice::plan(&request).map(Some)
}

fn check(args: &LaunchArgs, place: &Place<'_>) -> Vec<String> {
    let mut errors = Vec::new();
    match (args.sharded, args.num_shard) {
        (_, Some(0)) => errors.push("`num_shard` is 0, but must be at least 1".to_owned()),
        (Some(true), None | Some(1)) => errors.push(
            "`sharded` is true, but `num_shard` is 1; pass --num-shard with 2 or more, or leave --sharded out"
                .to_owned(),
        ),
        _ => {}
    }
    let num_shard = args.num_shard.unwrap_or(1);
    let ranks = place.device.check_ranks(num_shard, args.devices_per_shard.unwrap_or(1));
    errors.extend(ranks.err().map(|error| error.to_string()));
    if let (Some(revision), None) = (&args.model.revision, place.snapshot) {
        let model_id = &args.model.model_id;
        errors.push(format!(
            "`revision` is {revision:?}, but {model_id:?} does not come from the Hub and has no revisions; leave --revision out"
        ));
    }
    errors.extend(args.limits.check(&args.batching));
    errors.extend(args.foreign.refusals());
    errors
}

fn check_endpoint(place: &Place<'_>, shard: u32) -> Result<(), String> {
    let endpoint = endpoint(place, shard)?;
    let Endpoint::Unix(path) = &endpoint else { return Ok(()) };
    let (len, max) = (path.as_os_str().len(), proto::MAX_SOCKET_PATH_BYTES);
    if len > max {
        return Err(format!(
            "socket path {endpoint} has {len} bytes, but a Unix socket allows {max}; use a shorter --shard-uds-path"
        ));
    }
    Ok(())
}

/// The address where this shard listens.
fn endpoint(place: &Place<'_>, shard: u32) -> Result<Endpoint, String> {
    Endpoint::of_shard(place.shard_uds_path, shard).map_err(|error| format!("`shard_uds_path`: {error}"))
}

/// The arguments of the shard with this number. `counts` are the number of shards and of devices of each.
///
/// # Errors
/// [`LauncherError::Arguments`] when its address is invalid.
pub(crate) fn shard_args(
    args: &LaunchArgs,
    place: &Place<'_>,
    shard: u32,
    [num_shards, devices_per_shard]: [u32; 2],
) -> Result<shard::ShardArgs, LauncherError> {
    let mut model = args.model.clone();
    model.device = Asked::Device(place.device);
    if let Some(snapshot) = place.snapshot {
        model.model_id = snapshot.path.display().to_string();
        model.revision = None;
    }
    let on_host = args.num_shard.unwrap_or(1);
    Ok(shard::ShardArgs {
        model,
        uds_path: endpoint(place, shard).map_err(|error| LauncherError::Arguments(vec![error]))?,
        shard,
        num_shards,
        devices_per_shard,
        shards_on_host: (on_host != num_shards).then_some(on_host),
        collective_path: place.collective_path.clone(),
        // The supervisor passes this flag when it starts the shard.
        peer_sockets: None,
        json_output: true,
        log_level: args.log.log_level.clone(),
    })
}

fn shard(args: &LaunchArgs, place: &Place<'_>, shard: u32, counts: [u32; 2]) -> Result<ShardPlan, LauncherError> {
    let args = shard_args(args, place, shard, counts)?;
    Ok(ShardPlan { child: child(ChildId::Shard(shard), "shard", args.to_argv()), endpoint: args.uds_path })
}

/// The arguments of the router.
pub(crate) fn router_args(args: &LaunchArgs, place: &Place<'_>, num_shards: u32) -> router::RouterArgs {
    router::RouterArgs {
        model_id: args.model.model_id.clone(),
        model_path: place.snapshot.map(|snapshot| snapshot.path.clone()),
        revision: place.snapshot.and_then(|snapshot| snapshot.commit.clone()),
        shard_uds_path: place.shard_uds_path.to_owned(),
        num_shards,
        shutdown_timeout: args.shutdown_timeout,
        // The supervisor passes this flag when it starts the router.
        ready_path: None,
        http: args.http.clone(),
        chat: args.chat.clone(),
        limits: args.limits.clone(),
        batching: args.batching.clone(),
        json_output: true,
        log_level: args.log.log_level.clone(),
    }
}

/// The settings of jemalloc in the router, whose memory is mostly that of requests.
const ALLOCATOR: &str = "dirty_decay_ms:500,muzzy_decay_ms:0,narenas:2";

fn router(args: &LaunchArgs, place: &Place<'_>, num_shards: u32) -> ChildPlan {
    let mut child = child(ChildId::Router, "router", router_args(args, place, num_shards).to_argv());
    let reason =
        "API keys of clients; not passed as an argument, because other users can read the arguments of a process";
    let key = |value| Variable { name: "API_KEY", value, reason, is_yours: false };
    child.variables.extend(args.http.api_key_variable().map(key));
    let reason = "memory of finished requests returns to the system within seconds, and few threads need few arenas";
    child.variables.push(Variable { name: "_RJEM_MALLOC_CONF", value: ALLOCATOR.to_owned(), reason, is_yours: false });
    child
}

fn child(id: ChildId, subcommand: &str, mut argv: Vec<OsString>) -> ChildPlan {
    argv.insert(0, subcommand.into());
    ChildPlan { id, argv, variables: Vec::new() }
}
