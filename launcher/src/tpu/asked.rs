//! The user's settings for TPUs in environment variables: chips, hosts, bounds, addresses and ports. A setting that
//! contradicts a plan is found here.

use std::collections::BTreeSet;

use crate::tpu::bounds::Bounds;
use crate::tpu::shape::Shape;
use crate::tpu::{FIRST_PORT, Request};

/// Variables that are read here and that the launcher sets for no child.
pub(crate) const INPUTS: [&str; 3] = ["TPU_TOPOLOGY", "TPU_VISIBLE_DEVICE_PATHS", "TPU_PROCESS_ADDRESSES_PATH"];

/// Variables that libtpu prefers to those of a plan, and what to set instead.
const OVERRIDING: [(&str, &str); 2] = [
    ("TPU_VISIBLE_DEVICE_PATHS", "name the chips with TPU_VISIBLE_CHIPS"),
    ("TPU_PROCESS_ADDRESSES_PATH", "list the addresses in TPU_PROCESS_ADDRESSES"),
];

/// The user's settings about the slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The local indices of the chips that may be used.
    pub(crate) visible: Vec<u32>,
    /// True if the user named the visible chips.
    pub(crate) sets_visible_chips: bool,
    pub(crate) hosts: Vec<String>,
    pub(crate) worker_id: u32,
    pub(crate) topology: Option<Bounds>,
    /// The ports of libtpu's metrics, one for each chip of this host.
    pub(crate) metrics_ports: Option<Vec<String>>,
}

impl Asked {
    /// Reads the variables.
    ///
    /// # Errors
    /// One error for each value that is invalid.
    pub(crate) fn read(request: &Request<'_>) -> Result<Self, Vec<String>> {
        let hosts = request.hosts.all.iter().map(|host| host.name.clone()).collect();
        let worker_id = u32::try_from(request.hosts.index).unwrap_or(u32::MAX);
        let overriding = overriding(request);
        match (visible(request), topology(request), metrics_ports(request)) {
            (Ok((visible, sets_visible_chips)), Ok(topology), Ok(metrics_ports)) if overriding.is_empty() => {
                Ok(Self { visible, sets_visible_chips, hosts, worker_id, topology, metrics_ports })
            }
            (visible, topology, ports) => {
                let errors = [visible.err(), topology.err(), ports.err()];
                Err(errors.into_iter().flatten().chain(overriding).collect())
            }
        }
    }

    /// Replaces the process bounds and the bounds of chips per process with the user's own if the product of these is
    /// that of the plan. Otherwise the value is an error or, under the variable's older name, a note.
    pub(crate) fn bounds(&self, request: &Request<'_>, shape: &mut Shape, errors: &mut Vec<String>) {
        let num_chips = shape.chips_per_process.product();
        for (bounds, [name, old_name], expected, of) in [
            (
                &mut shape.process_bounds,
                ["TPU_PROCESS_BOUNDS", "TPU_HOST_BOUNDS"],
                request.num_shard.saturating_mul(u32::try_from(self.hosts.len()).unwrap_or(u32::MAX)),
                "processes",
            ),
            (
                &mut shape.chips_per_process,
                ["TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS"],
                num_chips,
                "chips per process",
            ),
        ] {
            let fitting = |text: &str| Bounds::parse(text, ',').filter(|bounds| bounds.product() == expected);
            match (request.environment.get(name), request.environment.get(old_name)) {
                (Some(text), _) => match fitting(text) {
                    Some(yours) => *bounds = yours,
                    None => errors.push(format!(
                        "{name} is {text:?}, which is not sizes x,y,z with the product {expected}, this plan's number \
                         of {of}: unset it"
                    )),
                },
                (None, Some(text)) => match fitting(text) {
                    Some(yours) => *bounds = yours,
                    // GKE sets the older names for one process with all chips, even if a pod then starts several
                    // processes.
                    None => shape.notes.push(format!(
                        "{old_name} is {text:?}, but this plan needs {bounds}, which its processes get in {name}"
                    )),
                },
                (None, None) => {}
            }
        }
    }

    /// Returns the `host:port` of every process of the slice, in order.
    ///
    /// With several hosts the ports are fixed, because the hosts cannot agree on free ones.
    pub(crate) fn addresses(&self, request: &Request<'_>) -> Result<Vec<String>, String> {
        let num_local = request.num_shard as usize;
        let num_processes = num_local * self.hosts.len();
        if let Some(text) = request.environment.get("TPU_PROCESS_ADDRESSES") {
            let addresses: Vec<String> = text.split(',').map(|address| address.trim().to_owned()).collect();
            let is_address = |address: &String| {
                address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
            };
            return match addresses.iter().find(|address| !is_address(address)) {
                Some(address) => Err(format!("TPU_PROCESS_ADDRESSES has {address:?}, which is not host:port")),
                None if addresses.len() != num_processes => Err(format!(
                    "TPU_PROCESS_ADDRESSES has {} addresses, but this plan has {num_processes} process(es): unset it",
                    addresses.len()
                )),
                None => Ok(addresses),
            };
        }
        if self.hosts.len() > 1 {
            let ports = FIRST_PORT..=FIRST_PORT.saturating_add(u16::try_from(num_local - 1).unwrap_or(u16::MAX));
            let address = |host: &String, port| match host.contains(':') {
                true => format!("[{host}]:{port}"),
                false => format!("{host}:{port}"),
            };
            let of_host = |host: &String| ports.clone().map(|port| address(host, port)).collect::<Vec<_>>();
            return Ok(self.hosts.iter().flat_map(of_host).collect());
        }
        if let Some(port) = request.environment.get("TPU_PROCESS_PORT").filter(|_| num_local == 1) {
            return Ok(vec![format!("localhost:{port}")]);
        }
        Ok(request.ports.iter().take(num_local).map(|port| format!("localhost:{port}")).collect())
    }

    /// Checks the variables that must differ between processes, and returns the errors. With several shards these
    /// variables must be unset; with one shard they must be unset or have the planned value, if there is one.
    pub(crate) fn check_private(&self, request: &Request<'_>, addresses: &[String]) -> Vec<String> {
        let own = addresses.get(self.worker_id as usize).filter(|_| request.num_shard == 1);
        let port = own.and_then(|address| address.rsplit_once(':')).map(|(_, port)| port.to_owned());
        let task_id = own.map(|_| self.worker_id.to_string());
        let mut errors = Vec::new();
        for (name, planned) in [("TPU_PROCESS_PORT", port), ("CLOUD_TPU_TASK_ID", task_id)] {
            match (request.environment.get(name), planned) {
                (Some(yours), Some(planned)) if yours != planned => {
                    errors.push(format!("{name} is {yours:?}, but this plan has {planned}: unset it"));
                }
                (Some(yours), _) if request.num_shard > 1 => errors.push(format!(
                    "{name} is {yours:?}, but each of the {} shards needs its own: unset it",
                    request.num_shard
                )),
                (Some(_) | None, _) => {}
            }
        }
        errors
    }
}

fn visible(request: &Request<'_>) -> Result<(Vec<u32>, bool), String> {
    let num_chips = request.chips.len();
    let names = ["TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"];
    let Some((name, text)) = names.iter().find_map(|name| Some((name, request.environment.get(name)?))) else {
        return Ok(((0..).take(num_chips).collect(), false));
    };
    let indices: Option<Vec<u32>> = text.split(',').map(|index| index.trim().parse().ok()).collect();
    let is_chip = |index: &u32| (*index as usize) < num_chips;
    let is_legal = |indices: &Vec<u32>| {
        indices.iter().all(is_chip) && indices.iter().collect::<BTreeSet<_>>().len() == indices.len()
    };
    indices.filter(is_legal).map(|indices| (indices, true)).ok_or_else(|| {
        let last = num_chips.saturating_sub(1);
        format!("{name} is {text:?}, which is not a list of different chips of this host, 0 to {last}")
    })
}

/// Returns an error for each variable that libtpu would prefer to the plan.
fn overriding(request: &Request<'_>) -> Vec<String> {
    let error = |(name, advice): (&str, &str)| {
        let yours = request.environment.get(name)?;
        Some(format!("{name} is {yours:?}, which libtpu prefers to this plan: unset it and {advice}"))
    };
    OVERRIDING.into_iter().filter_map(error).collect()
}

fn metrics_ports(request: &Request<'_>) -> Result<Option<Vec<String>>, String> {
    const NAME: &str = "TPU_RUNTIME_METRICS_PORTS";
    let Some(text) = request.environment.get(NAME) else { return Ok(None) };
    let num_chips = request.chips.len();
    let ports: Vec<String> = text.split(',').map(|port| port.trim().to_owned()).collect();
    match ports.len() == num_chips && ports.iter().all(|port| port.parse::<u16>().is_ok()) {
        true => Ok(Some(ports)),
        false => Err(format!(
            "{NAME} is {text:?}, which is not a list of {num_chips} ports, one for each chip of this host: unset it"
        )),
    }
}

fn topology(request: &Request<'_>) -> Result<Option<Bounds>, String> {
    let Some(text) = request.environment.get("TPU_TOPOLOGY") else { return Ok(None) };
    match Bounds::parse(text, 'x').filter(|bounds| bounds.num_dims() == 3) {
        Some(bounds) => Ok(Some(bounds)),
        None => Err(format!("TPU_TOPOLOGY is {text:?}, which is not a shape such as 2x4 or 2x2x1")),
    }
}
