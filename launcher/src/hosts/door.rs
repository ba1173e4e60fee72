//! The door of a host: the port at which the other hosts of a slice connect. Host 0 connects to all others. It has a
//! door too, but only to tell another host 0 of the same slice that there are two.
//!
//! Strangers keep nobody out: connections that have proved nothing wait in a room, and the oldest goes when a new one
//! comes. The addresses of the slice's hosts have a room of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use endpoint::{Dismissal, Endpoint, Stream, WaitingRoom};
use serde_json::Value;
use telemetry::Throttle;

use super::preface::{self, PrefaceError, Purpose, Verdict};
use super::tls::Tls;
use super::{BUILD, HOSTS, Host, Hosts, INDEX, Secret, pause, relay};

/// The maximum number of connections that have proved nothing, once for strangers and once for the addresses of the
/// slice's hosts.
const MAX_UNPROVEN: usize = 64;
/// The interval at which the names of the hosts are looked up. A pod's name may be known late, and its address changes.
const LOOK_UP_INTERVAL: Duration = Duration::from_secs(5);
/// The pause after an accept that failed, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The refusal of a second host 0.
const SECOND_FIRST: &str =
    "it is host 0 of this slice, and so is this host; start each host with an index of its own (--slice-index)";

/// The refusal of a host 0 that calls itself: the name of another host leads to it, or it should have another index.
const ITSELF: &str = "it is this host itself; start each host with an index of its own (--slice-index), at an address \
                      or a port of its own (--slice-hosts)";

/// A connection that the door has accepted.
#[derive(Debug)]
pub(super) enum Arrival {
    /// The link of host 0, with the session that it has chosen.
    Join { session: String, stream: Stream },
    /// A socket between two shards.
    Peer { from: u32, to: u32, stream: Stream },
    /// A socket between two shards that could not be connected.
    NoPeer { error: PrefaceError },
}

/// The facts by which a door decides.
#[derive(Debug)]
pub(super) struct Doorkeeper {
    pub(super) secret: Secret,
    pub(super) tls: Option<Tls>,
    /// The settings that all hosts must share, as this host has them.
    pub(super) settings: Value,
    /// The shards of this host by number, and where they listen.
    pub(super) shards: BTreeMap<u32, Endpoint>,
    pub(super) arrivals: SyncSender<Arrival>,
    pub(super) state: Mutex<DoorState>,
    /// The session of the slice on host 0, where nobody joins; `None` on other hosts.
    pub(super) first_session: Option<String>,
    pub(super) rooms: Mutex<Rooms>,
}

/// The connections that have proved nothing, and the log of the door.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    /// The addresses of the slice's hosts, as far as they are known.
    known: BTreeSet<IpAddr>,
    strangers: WaitingRoom<TcpStream>,
    hosts: WaitingRoom<TcpStream>,
    /// The lines about each known address, and those about all strangers.
    lines: BTreeMap<Option<IpAddr>, Throttle>,
}

/// The history of a door.
#[derive(Debug, Default)]
pub(super) struct DoorState {
    /// The session of the slice that this host has joined, and the address of its host 0.
    session: Option<(String, SocketAddr)>,
    /// The last refusal, for the message of a host that nobody joins.
    pub(super) last_refusal: Option<String>,
}

/// Listens at the host's port, and handles connections on threads until the process ends. The addresses of all `hosts`
/// have places of their own.
///
/// # Errors
/// When this process cannot listen there.
pub(super) fn open(hosts: &Hosts, keeper: Arc<Doorkeeper>) -> io::Result<()> {
    let listener = listen(hosts.own())?;
    tracing::info!(address = %listener.local_addr()?, "waiting for the other hosts of the slice");
    let (all, looking) = (hosts.all.clone(), Arc::clone(&keeper));
    std::thread::spawn(move || {
        loop {
            let addresses = |host: &Host| (host.name.as_str(), host.port).to_socket_addrs().into_iter().flatten();
            let known = all.iter().flat_map(addresses).map(|address| address.ip().to_canonical()).collect();
            looking.rooms().know(known);
            pause(LOOK_UP_INTERVAL);
        }
    });
    std::thread::spawn(move || {
        let mut failures = Throttle::default();
        loop {
            match listener.accept() {
                Ok((stream, address)) => keeper.admit(stream, address),
                Err(error) => {
                    if let Some(num) = failures.count(Instant::now()) {
                        tracing::warn!("a connection of another host cannot be accepted: {error} ({num} times)");
                    }
                    pause(ACCEPT_PAUSE);
                }
            }
        }
    });
    Ok(())
}

/// Listens at an address if the host is one, and otherwise at all addresses, because a pod's name may not be known to
/// the name service before the pod is ready.
fn listen(host: &Host) -> io::Result<TcpListener> {
    match host.name.parse::<IpAddr>() {
        Ok(ip) => TcpListener::bind((ip, host.port)),
        Err(_) if host.name == "localhost" => TcpListener::bind((Ipv4Addr::LOCALHOST, host.port)),
        Err(_) => TcpListener::bind((Ipv6Addr::UNSPECIFIED, host.port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, host.port))),
    }
}

impl Rooms {
    /// Takes the addresses of the slice's hosts as they are now.
    fn know(&mut self, known: BTreeSet<IpAddr>) {
        self.lines.retain(|address, _| address.is_none_or(|address| known.contains(&address)));
        self.known = known;
    }
}

impl Doorkeeper {
    /// Lets in a connection and handles it on a thread. If there are too many that have proved nothing, the oldest one
    /// of those goes first.
    fn admit(self: &Arc<Self>, stream: TcpStream, address: SocketAddr) {
        let ip = address.ip().to_canonical();
        let Ok(closing) = stream.try_clone() else { return };
        let is_known = self.rooms().known.contains(&ip);
        let ticket = loop {
            let mut rooms = self.rooms();
            let room = if is_known { &mut rooms.hosts } else { &mut rooms.strangers };
            if room.len() < MAX_UNPROVEN {
                break room.enter(Some(ip), Instant::now(), closing);
            }
            match room.dismiss(Instant::now()) {
                Dismissal::Gone(oldest) => {
                    let _ = oldest.shutdown(Shutdown::Both);
                    drop(rooms);
                    self.note(ip, &format!("{MAX_UNPROVEN} connections have proved nothing: the oldest one is closed"));
                }
                Dismissal::Later(time) => {
                    drop(rooms);
                    pause(time);
                }
                Dismissal::Empty => {}
            }
        };
        let keeper = Arc::clone(self);
        std::thread::spawn(move || {
            let leave = || {
                let mut rooms = keeper.rooms();
                let room = if is_known { &mut rooms.hosts } else { &mut rooms.strangers };
                room.leave(&ticket);
            };
            keeper.receive(stream, address, &leave);
            leave();
        });
    }

    /// Handles one connection. Calls `proved` as soon as it is known to be a host's.
    fn receive(&self, stream: TcpStream, address: SocketAddr, proved: &dyn Fn()) {
        let known = (&self.secret, self.tls.as_ref());
        let (stream, purpose) = match preface::answer(stream, known, proved, |purpose| self.decide(purpose, address)) {
            Ok(answered) => answered,
            // A port scan, a health check of a load balancer, or host 0, which has ended before it knew the verdict.
            Err(error @ PrefaceError::Io(_)) => {
                self.lock().session.take_if(|(_, first)| *first == address);
                return tracing::debug!("a connection from {address} ended: {error}");
            }
            Err(error) => {
                self.note(address.ip().to_canonical(), &format!("a connection from {address} is refused: {error}"));
                let mut state = self.lock();
                if state.last_refusal.is_none() || !error.is_of_anybody() {
                    state.last_refusal = Some(format!("{address}: {error}"));
                }
                return;
            }
        };
        match purpose {
            Purpose::Join { session, .. } => _ = self.arrivals.send(Arrival::Join { session, stream }),
            Purpose::Peer { from, to, .. } => _ = self.arrivals.send(Arrival::Peer { from, to, stream }),
            Purpose::Shard { shard, .. } => {
                if let Some(endpoint) = self.shards.get(&shard) {
                    relay::to_shard(stream, shard, endpoint);
                }
            }
        }
    }

    /// Logs something about a connection, for strangers and for each known address once in a while.
    fn note(&self, ip: IpAddr, text: &str) {
        let mut rooms = self.rooms();
        let address = Some(ip).filter(|ip| rooms.known.contains(ip));
        if let Some(num) = rooms.lines.entry(address).or_default().count(Instant::now()) {
            tracing::warn!("{text} ({num} such connections since the last such line)");
        }
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide(&self, purpose: &Purpose, address: SocketAddr) -> Verdict {
        if let (Purpose::Join { session, settings }, Some(own)) = (purpose, &self.first_session) {
            return if session == own {
                Verdict::Refused(ITSELF.to_owned())
            } else if settings.get(HOSTS) == self.settings.get(HOSTS) {
                Verdict::Refused(SECOND_FIRST.to_owned())
            } else {
                Verdict::Busy("it is host 0 of another slice".to_owned())
            };
        }
        let mut state = self.lock();
        match (purpose, &state.session) {
            (Purpose::Join { .. }, Some((_, first))) => {
                Verdict::Busy(format!("it belongs to the slice of the host at {first} already"))
            }
            (Purpose::Join { session, settings }, None) => match difference(settings, &self.settings) {
                Some(difference) => Verdict::Refused(difference),
                None => {
                    state.session = Some((session.clone(), address));
                    Verdict::Accepted
                }
            },
            (Purpose::Shard { shard, .. }, _) if !self.shards.contains_key(shard) => {
                Verdict::Refused(format!("shard {shard} does not run there"))
            }
            (Purpose::Peer { from, to, .. }, _) if !self.shards.contains_key(to) || self.shards.contains_key(from) => {
                Verdict::Refused(format!("shard {to} does not run there, or shard {from} does"))
            }
            (_, Some((session, _))) if session == purpose.session() => Verdict::Accepted,
            (_, _) => Verdict::Refused("it belongs to another slice, or to none".to_owned()),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, DoorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if this refusal comes from a host of the slice that listens at the address of host 0.
pub(super) fn is_of_same_slice(refusal: &str) -> bool {
    refusal == SECOND_FIRST || refusal.starts_with(INDEX)
}

/// Returns a sentence about the first setting that differs between host 0 and this host.
pub(super) fn difference(first: &Value, own: &Value) -> Option<String> {
    let names = |value: &Value| value.as_object().into_iter().flat_map(|map| map.keys()).cloned().collect::<Vec<_>>();
    let all: Vec<String> = [own, first].into_iter().flat_map(names).collect();
    let shown = |value: Option<&Value>| value.map_or_else(|| "not set".to_owned(), Value::to_string);
    let name = all.into_iter().find(|name| first.get(name) != own.get(name))?;
    let [first, own] = [first.get(&name), own.get(&name)].map(shown);
    let remedy = match name.as_str() {
        BUILD => "run the same executable or image on every host",
        INDEX => "start each host with an index of its own (--slice-index), at an address or a port of its own",
        _ => "start all hosts with the same flags",
    };
    Some(format!("{name} is {first} on host 0, but {own} there; {remedy}"))
}
