//! The hosts of a slice: machines that serve one model together, each with a launcher and with shards of its own.
//!
//! Entry points: [`Hosts::read`], which says who the hosts are and which one this is; [`assemble`], which connects them
//! before any shard starts; [`Slice`], the connections of this host while it serves.
//!
//! ```text
//!  host 0                                     host 1                        every host is started by the same command
//!  launcher ◀── link: beats, news ──────────▶ launcher
//!  router ──▶ relay ──── door of host 1 ────▶ relay ──▶ shard 1             frames of steps
//!  shard 0 ◀────────── socket ──────────────────────▶ shard 1             sums, on the CPU only
//! ```
//!
//! Host 0 has the router. Every host listens at one port, its door; at that of host 0 only a second host 0 is told
//! that there are two. Whoever connects proves that it knows the shared secret (`preface`), and only hosts with equal
//! settings join. Connections of shards are made by the launchers and inherited by the shards (`peers`), or relayed
//! (`relay`), so shards and the router know no secret and no host. If any host ends, is cut off or is silent, all hosts
//! end, because the model's state is lost.

mod assembly;
mod door;
mod link;
mod owner;
mod peers;
mod preface;
mod relay;
mod secret;
#[cfg(test)]
mod tests;
mod tls;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use devices::{Device, Ranks};

use crate::environment::Environment;
pub(crate) use assembly::{Assembly, Caller, Slice, assemble};
pub(crate) use link::News;
pub(crate) use peers::PeerSockets;
pub(crate) use secret::{Secret, readable_by_all};
pub(crate) use tls::Tls;

/// The heading in the help for flags about several hosts.
const SEVERAL_HOSTS: &str = "Several hosts";

/// The name of the setting with the build of a host's executable.
pub(crate) const BUILD: &str = "the build";

/// The name of the setting with the list of hosts.
pub(crate) const HOSTS: &str = "the list of hosts";

/// The name of the setting with the index of the host that is called.
const INDEX: &str = "the index of the host";

/// The maximum number of hosts of a slice.
const MAX_HOSTS: usize = 64;

/// The maximum of `--slice-timeout`: a year, in seconds. The time of the end is then one that the clock can have.
const MAX_TIMEOUT: u64 = 365 * 24 * 60 * 60;

/// Variables that are read here and that no child needs.
pub(crate) const INPUTS: [&str; 3] = ["LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"];

/// The arguments about several hosts.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = SEVERAL_HOSTS)]
pub(crate) struct SliceArgs {
    /// Hosts that serve the model together, each started with the same flags: names or addresses with commas, the first
    /// one serves HTTP [default: TPU_WORKER_HOSTNAMES on TPUs, or the pods of a LeaderWorkerSet, or this host alone]
    #[arg(long, env, value_delimiter = ',')]
    pub(crate) slice_hosts: Vec<String>,

    /// Index of this host in --slice-hosts, from 0 [default: TPU_WORKER_ID on TPUs, or LWS_WORKER_INDEX]
    #[arg(long, env)]
    pub(crate) slice_index: Option<usize>,

    /// Port at which the hosts of a slice reach each other
    #[arg(long, env, default_value_t = 8495, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) slice_port: u16,

    /// File with the secret that the hosts of a slice share, at least 16 bytes; needed unless all hosts are loopback
    /// addresses
    #[arg(long, env)]
    pub(crate) slice_secret_file: Option<PathBuf>,

    /// Encrypt the connections between hosts with TLS 1.3; needs --slice-secret-file, and no certificates
    #[arg(long, env)]
    pub(crate) slice_tls: bool,

    /// Seconds to wait until all hosts of the slice are connected
    #[arg(long, env, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=MAX_TIMEOUT))]
    pub(crate) slice_timeout: u64,
}

/// A host of a slice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Host {
    /// A name or an IP address.
    pub(crate) name: String,
    /// The port of its door.
    pub(crate) port: u16,
}

/// The hosts of a slice, in order, and the index of this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hosts {
    /// At least one.
    pub(crate) all: Vec<Host>,
    pub(crate) index: usize,
}

impl Hosts {
    /// Returns the hosts that the flags name; otherwise those of `TPU_WORKER_HOSTNAMES`, for a TPU, or of a
    /// LeaderWorkerSet; otherwise this host alone.
    ///
    /// # Errors
    /// Each value that is invalid or missing.
    pub(crate) fn read(args: &SliceArgs, device: Device, environment: &Environment) -> Result<Self, Vec<String>> {
        let is_tpu = device.ranks == Ranks::Slice;
        let named = if !args.slice_hosts.is_empty() {
            Named { what: "--slice-hosts", names: args.slice_hosts.clone(), index: None, index_name: "--slice-index" }
        } else if let Some(text) = environment.get("TPU_WORKER_HOSTNAMES").filter(|_| is_tpu) {
            let index = environment.get("TPU_WORKER_ID");
            Named { what: "TPU_WORKER_HOSTNAMES", names: split(text), index, index_name: "TPU_WORKER_ID" }
        } else if let Some(pods) = pods(environment)? {
            pods
        } else {
            // A slice of one TPU host may have a number without names.
            let index = environment.get("TPU_WORKER_ID").filter(|_| is_tpu);
            Named { what: "", names: vec!["localhost".to_owned()], index, index_name: "TPU_WORKER_ID" }
        };
        named.resolve(args)
    }

    /// This host alone.
    pub(crate) fn alone() -> Self {
        Self { all: vec![Host { name: "localhost".to_owned(), port: 0 }], index: 0 }
    }

    /// The number of hosts.
    pub(crate) fn num(&self) -> usize {
        self.all.len()
    }

    /// True if this host has the router.
    pub(crate) fn is_first(&self) -> bool {
        self.index == 0
    }

    /// This host.
    pub(crate) fn own(&self) -> &Host {
        &self.all[self.index]
    }

    /// The host with this index, for messages.
    pub(crate) fn name(&self, index: usize) -> String {
        format!("host {index} ({})", self.all[index])
    }

    /// True if every host is a loopback address.
    fn are_loopback(&self) -> bool {
        self.all.iter().all(Host::is_loopback)
    }
}

/// The hosts as a flag or a variable names them.
struct Named<'a> {
    /// The flag or variable with the names; empty if nothing names hosts.
    what: &'static str,
    names: Vec<String>,
    /// The index as text, if a variable gives it.
    index: Option<&'a str>,
    /// The flag or variable with the index.
    index_name: &'static str,
}

impl Named<'_> {
    fn resolve(self, args: &SliceArgs) -> Result<Hosts, Vec<String>> {
        let Self { what, names, index, index_name } = self;
        let num = names.len();
        let text = names.join(",");
        let hosts: Option<Vec<Host>> = names.iter().map(|name| Host::parse(name.trim(), args.slice_port)).collect();
        let are_different = |hosts: &Vec<Host>| hosts.iter().collect::<BTreeSet<_>>().len() == hosts.len();
        let hosts = hosts.filter(are_different).ok_or_else(|| {
            format!("{what} is {text:?}, which is not a list of different host names or addresses, such as a,b")
        });
        let index = match (args.slice_index, index) {
            (Some(index), _) => Ok(Some(index)),
            (None, Some(text)) => text.parse().map(Some).map_err(|_| format!("{index_name} is {text:?}, not a number")),
            (None, None) => Ok(None),
        };
        let index_name = if args.slice_index.is_some() { "--slice-index" } else { index_name };
        let index = index.and_then(|index| match index {
            Some(index) if index < num => Ok(index),
            Some(index) if what.is_empty() => {
                Err(format!("{index_name} is {index}, but no other host is named: name all hosts with --slice-hosts"))
            }
            Some(index) => {
                let last = num - 1;
                Err(format!(
                    "{index_name} is {index}, but {what} names {num} host(s): it must be a number from 0 to {last}"
                ))
            }
            None if num > 1 => Err(format!(
                "{what} names {num} hosts: set {index_name} to the index of this host in that list, from 0"
            )),
            None => Ok(0),
        });
        let too_many =
            (num > MAX_HOSTS).then(|| format!("{what} names {num} hosts, but a slice has at most {MAX_HOSTS}"));
        match (hosts, index, too_many) {
            (Ok(all), Ok(index), None) => Ok(Hosts { all, index }),
            (hosts, index, too_many) => Err([hosts.err(), index.err(), too_many].into_iter().flatten().collect()),
        }
    }
}

impl Host {
    fn is_loopback(&self) -> bool {
        match self.name.parse::<IpAddr>() {
            Ok(ip) => ip.is_loopback(),
            Err(_) => self.name == "localhost",
        }
    }

    /// Parses a name or an address, with or without a port; an IPv6 address with a port has brackets.
    fn parse(text: &str, default_port: u16) -> Option<Self> {
        if text.parse::<IpAddr>().is_ok() {
            return Some(Self { name: text.to_owned(), port: default_port });
        }
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (name, port.parse().ok().filter(|port| *port > 0)?),
            None => (text, default_port),
        };
        let name = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            Some(address) => address.parse::<IpAddr>().ok()?.to_string(),
            None => name.to_owned(),
        };
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let is_name = !name.is_empty() && (name.parse::<IpAddr>().is_ok() || name.chars().all(is_allowed));
        is_name.then_some(Self { name, port })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

fn split(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}

/// Returns the pods of a LeaderWorkerSet's group, if this is one of several. A worker has the leader's name with its
/// index appended: the leader is `set-0.set.namespace`, the first worker `set-0-1.set.namespace`.
fn pods(environment: &Environment) -> Result<Option<Named<'_>>, Vec<String>> {
    let [leader, size, index] = INPUTS.map(|name| environment.get(name));
    let Some(size) = size else { return Ok(None) };
    let num: usize = match size.parse() {
        Ok(1) => return Ok(None),
        Ok(num @ 2..=MAX_HOSTS) => num,
        _ => return Err(vec![format!("LWS_GROUP_SIZE is {size:?}, which is not a number from 1 to {MAX_HOSTS}")]),
    };
    let Some(leader) = leader else {
        return Err(vec![
            "LWS_GROUP_SIZE is set, but LWS_LEADER_ADDRESS is not: set it to the leader's name".to_owned(),
        ]);
    };
    let (first, rest) =
        leader.split_once('.').map_or((leader, String::new()), |(first, rest)| (first, format!(".{rest}")));
    let worker = |index: usize| if index == 0 { leader.to_owned() } else { format!("{first}-{index}{rest}") };
    let names = (0..num).map(worker).collect();
    Ok(Some(Named { what: "LWS_GROUP_SIZE", names, index, index_name: "LWS_WORKER_INDEX" }))
}

/// Waits between two attempts.
fn pause(time: Duration) {
    // Nobody unparks these threads, and a wait that ends early only means an earlier attempt.
    std::thread::park_timeout(time);
}
