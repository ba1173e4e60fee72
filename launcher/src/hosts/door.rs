//! The door of a host: the port at which the other hosts of a slice connect. Host 0 has none, because it connects to
//! all others.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use endpoint::{Endpoint, Stream};
use serde_json::Value;

use super::preface::{self, PrefaceError, Purpose, Verdict};
use super::tls::{Channel, Tls};
use super::{Host, Secret, pause, relay};

/// The maximum number of connections that are in their preface or wait for a shard. More are closed at once.
const MAX_OPENING: usize = 64;
/// The pause after an accept that failed, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
}

/// The history of a door.
#[derive(Debug, Default)]
pub(super) struct DoorState {
    /// The session of the slice that this host has joined, and the address of its host 0.
    session: Option<(String, SocketAddr)>,
    /// The last refusal, for the message of a host that nobody joins.
    pub(super) last_refusal: Option<String>,
}

/// Listens at the host's port, and handles connections on threads until the process ends.
///
/// # Errors
/// When this process cannot listen there.
pub(super) fn open(host: &Host, keeper: Arc<Doorkeeper>) -> io::Result<()> {
    let listener = listen(host)?;
    tracing::info!(address = %listener.local_addr()?, "waiting for the other hosts of the slice");
    std::thread::spawn(move || {
        let num_opening = Arc::new(AtomicUsize::new(0));
        loop {
            match listener.accept() {
                Ok((stream, address)) if num_opening.load(Ordering::Relaxed) < MAX_OPENING => {
                    num_opening.fetch_add(1, Ordering::Relaxed);
                    let (keeper, num_opening) = (Arc::clone(&keeper), Arc::clone(&num_opening));
                    std::thread::spawn(move || {
                        keeper.receive(stream, address);
                        num_opening.fetch_sub(1, Ordering::Relaxed);
                    });
                }
                Ok((_, address)) => tracing::warn!("a connection from {address} is closed: {MAX_OPENING} are opening"),
                Err(error) => {
                    tracing::warn!("a connection of another host cannot be accepted: {error}");
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

impl Doorkeeper {
    /// Handles one connection.
    fn receive(&self, stream: TcpStream, address: SocketAddr) {
        let mut channel = match Channel::accepted(stream, self.tls.as_ref()) {
            Ok(channel) => channel,
            Err(error) => return tracing::warn!("a connection from {address} is refused: TLS failed: {error}"),
        };
        let purpose = match preface::answer(&mut channel, &self.secret, |purpose| self.decide(purpose, address)) {
            Ok(purpose) => purpose,
            // A port scan, a health check of a load balancer, or host 0, which has ended before it knew the verdict.
            Err(error @ PrefaceError::Io(_)) => {
                self.lock().session.take_if(|(_, first)| *first == address);
                return tracing::debug!("a connection from {address} ended: {error}");
            }
            Err(error) => {
                tracing::warn!("a connection from {address} is refused: {error}");
                self.lock().last_refusal = Some(format!("{address}: {error}"));
                return;
            }
        };
        let stream = channel.stream;
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

    fn decide(&self, purpose: &Purpose, address: SocketAddr) -> Verdict {
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
            (_, Some((session, _))) if session == purpose.session() => Verdict::Accepted,
            (_, _) => Verdict::Refused("it belongs to another slice, or to none".to_owned()),
        }
    }

    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, DoorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a sentence about the first setting that differs between host 0 and this host.
fn difference(first: &Value, own: &Value) -> Option<String> {
    let names = |value: &Value| value.as_object().into_iter().flat_map(|map| map.keys()).cloned().collect::<Vec<_>>();
    let all: Vec<String> = [first, own].into_iter().flat_map(names).collect();
    let shown = |value: Option<&Value>| value.map_or_else(|| "not set".to_owned(), Value::to_string);
    let name = all.into_iter().find(|name| first.get(name) != own.get(name))?;
    let [first, own] = [first.get(&name), own.get(&name)].map(shown);
    Some(format!("{name} is {first} on host 0, but {own} there; start all hosts with the same flags"))
}
