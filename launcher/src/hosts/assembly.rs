//! Connects the hosts of a slice before any shard starts.
//!
//! Entry point: [`assemble`]. Host 0 calls every other host until all have joined or the time is over, and then tells
//! them that the slice is complete. On the CPU, each shard then gets a socket to every other shard: of two hosts, the
//! one with the lower index calls.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use endpoint::{Endpoint, Stream};
use serde_json::Value;
use signal_hook::iterator::Signals;

use super::door::{Arrival, DoorState, Doorkeeper};
use super::link::Link;
use super::preface::{self, PrefaceError, Purpose};
use super::relay::{Relays, Route};
use super::tls::Tls;
use super::{Host, Hosts, INDEX, News, PeerSockets, Secret, door, pause};
use crate::error::LauncherError;
use crate::event::Event;

/// The pause between two calls to a host that does not accept.
const CALL_INTERVAL: Duration = Duration::from_millis(500);
/// The time between two looks at signals while this host waits for others.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum time of a connection attempt.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// The maximum time to wait until the other hosts have read the last news of this one.
const END_DEADLINE: Duration = Duration::from_secs(1);
/// The interval at which a host that waits logs for whom.
const NOTE_INTERVAL: Duration = Duration::from_secs(30);
/// The maximum number of accepted connections that wait to be handled.
const MAX_ARRIVALS: usize = 256;

/// The facts from which a slice is assembled.
#[derive(Debug)]
pub(crate) struct Assembly<'a> {
    pub(crate) hosts: &'a Hosts,
    pub(crate) caller: Caller,
    /// The settings that all hosts must share: a JSON object.
    pub(crate) settings: Value,
    /// The addresses at which the router reaches the shards of all hosts, in order.
    pub(crate) endpoints: Vec<Endpoint>,
    /// The number of shards of each host.
    pub(crate) num_shard: u32,
    /// True if the shards sum their results through sockets.
    pub(crate) sums: bool,
    pub(crate) timeout: Duration,
}

/// The connections of this host to the other hosts of its slice.
#[derive(Debug, Default)]
pub(crate) struct Slice {
    links: BTreeMap<usize, Link>,
    relays: Relays,
    pub(crate) peers: PeerSockets,
}

impl Slice {
    /// Sends news to all hosts that this one is linked to: on host 0 all others, elsewhere host 0.
    pub(crate) fn tell(&self, news: &News) {
        self.links.values().for_each(|link| link.send(news));
    }

    /// Sends the last news of this host, and waits a moment until the other hosts have read them.
    pub(crate) fn end(&self, news: &News) {
        self.tell(news);
        let until = Instant::now() + END_DEADLINE;
        self.links.values().for_each(|link| link.end(until.saturating_duration_since(Instant::now())));
    }

    /// Closes the router's connections to the shards of a host that is lost.
    pub(crate) fn close(&self, host: usize) {
        self.relays.close(host);
    }
}

/// Connects this host to the others. Returns `None` if a signal to stop comes first.
///
/// # Errors
/// [`LauncherError::SliceRefused`] when hosts do not belong together, [`LauncherError::SliceLost`] when hosts do not
/// come in time or end meanwhile, and errors of listening.
pub(crate) fn assemble(
    assembly: &Assembly<'_>,
    signals: &mut Signals,
    (events_tx, events): (&SyncSender<Event>, &Receiver<Event>),
) -> Result<Option<Slice>, LauncherError> {
    let mut wait = Wait::new(signals, events, Instant::now() + assembly.timeout);
    let mut slice = Slice::default();
    let outcome = match assembly.hosts.is_first() {
        true => assembly.gather(&mut slice, &mut wait, events_tx),
        false => assembly.join(&mut slice, &mut wait, events_tx),
    };
    wait.hand_over(events_tx);
    match outcome {
        Ok(Complete::Yes) => Ok(Some(slice)),
        Ok(Complete::Stopped) => {
            slice.end(&News::Left);
            Ok(None)
        }
        Err(error) => {
            slice.end(&News::Failed(error.to_string()));
            Err(error)
        }
    }
}

/// The outcome of an assembly without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Complete {
    Yes,
    /// A signal to stop came first, on this host or on another one.
    Stopped,
}

/// A wait for other hosts, which a signal ends.
pub(super) struct Wait<'a> {
    signals: &'a mut Signals,
    /// News of the hosts that are linked already.
    events: &'a Receiver<Event>,
    until: Instant,
    /// News for the supervisor: another host may start its shards before this one is connected with all hosts.
    kept: Vec<Event>,
}

/// The outcome of a wait.
#[derive(Debug)]
pub(super) enum Waited<T> {
    Came(T),
    News(usize, News),
    Stopped,
    Over,
}

/// The times at which a host that waits has logged for whom.
struct Notes {
    start: Instant,
    last: Instant,
}

impl Notes {
    fn new() -> Self {
        let now = Instant::now();
        Self { start: now, last: now }
    }
}

impl<'a> Wait<'a> {
    pub(super) fn new(signals: &'a mut Signals, events: &'a Receiver<Event>, until: Instant) -> Self {
        Self { signals, events, until, kept: Vec::new() }
    }

    /// Sends the news that were kept for the supervisor.
    pub(super) fn hand_over(self, events: &SyncSender<Event>) {
        self.kept.into_iter().for_each(|event| _ = events.send(event));
    }

    /// Waits like [`Wait::receive`], and logs for whom from time to time.
    fn receive_or_note<T>(
        &mut self,
        receiver: &Receiver<T>,
        notes: &mut Notes,
        sentence: impl Fn(u64) -> String,
    ) -> Waited<T> {
        loop {
            let until = (notes.last + NOTE_INTERVAL).min(self.until);
            match self.receive_until(receiver, until) {
                Waited::Over if until < self.until => {
                    notes.last = Instant::now();
                    tracing::info!("{}", sentence(notes.start.elapsed().as_secs()));
                }
                waited => return waited,
            }
        }
    }

    /// Waits for a message, news of a host, a signal or the end of the time.
    pub(super) fn receive<T>(&mut self, receiver: &Receiver<T>) -> Waited<T> {
        self.receive_until(receiver, self.until)
    }

    fn receive_until<T>(&mut self, receiver: &Receiver<T>, until: Instant) -> Waited<T> {
        loop {
            if self.signals.pending().next().is_some() {
                return Waited::Stopped;
            }
            match self.events.try_recv() {
                Ok(event @ Event::Host(_, News::Started | News::Serving)) => self.kept.push(event),
                Ok(Event::Host(host, news)) => return Waited::News(host, news),
                Ok(_) | Err(_) => {}
            }
            match receiver.recv_timeout(LOOK_INTERVAL) {
                Ok(message) => return Waited::Came(message),
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Waited::Over,
            }
        }
    }
}

impl Assembly<'_> {
    /// Returns the keeper of this host's door. `first_session` is the session of the slice if this is host 0.
    fn keeper(&self, arrivals: SyncSender<Arrival>, first_session: Option<String>) -> Arc<Doorkeeper> {
        let endpoints = self.own_shards().map(|shard| (shard, self.endpoints[shard as usize].clone()));
        Arc::new(Doorkeeper {
            secret: self.caller.secret.clone(),
            tls: self.caller.tls.clone(),
            settings: with_index(&self.settings, self.hosts.index),
            shards: endpoints.collect(),
            arrivals,
            state: Mutex::new(DoorState::default()),
            first_session,
            rooms: Mutex::default(),
        })
    }

    /// Host 0: opens a door at which another host 0 of this slice learns that there are two. If the port is taken, asks
    /// there for a host of this slice.
    fn be_the_only_first(&self, session: &str) -> Result<(), LauncherError> {
        let own = self.hosts.own();
        let keeper = self.keeper(mpsc::sync_channel(1).0, Some(session.to_owned()));
        let anywhere = || Hosts { all: vec![Host { name: String::new(), port: own.port }], index: 0 };
        let opened = match door::open(self.hosts, Arc::clone(&keeper)) {
            // The address may be one that only the other hosts know.
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => door::open(&anywhere(), keeper),
            opened => opened,
        };
        let Err(error) = opened else { return Ok(()) };
        let purpose = Purpose::Join { session: session.to_owned(), settings: with_index(&self.settings, 0) };
        match self.caller.call(own, &purpose) {
            Err(PrefaceError::Refused(refusal)) if door::is_of_same_slice(&refusal) => {
                Err(LauncherError::SliceRefused(format!("{}: {refusal}", self.hosts.name(0))))
            }
            _ => {
                tracing::info!("another host 0 of this slice would not be noticed: {own}: {error}");
                Ok(())
            }
        }
    }

    /// Host 0: calls all other hosts until each has joined.
    fn gather(
        &self,
        slice: &mut Slice,
        wait: &mut Wait<'_>,
        events: &SyncSender<Event>,
    ) -> Result<Complete, LauncherError> {
        let session = session()?;
        self.be_the_only_first(&session)?;
        let last_errors: Arc<Mutex<BTreeMap<usize, LastErrors>>> = Arc::default();
        let joined = self.call_all(&session, wait.until, &last_errors);
        tracing::info!("waiting for {} other host(s) of the slice", self.hosts.num() - 1);
        let mut notes = Notes::new();
        while slice.links.len() + 1 < self.hosts.num() {
            match wait.receive_or_note(&joined, &mut notes, |seconds| self.missing(slice, &last_errors, seconds)) {
                Waited::Came((host, Ok(stream))) => {
                    tracing::info!("{} has joined", self.hosts.name(host));
                    let link = Link::start(stream, host, events.clone());
                    slice.links.insert(host, link.map_err(|error| self.lost(host, &error.to_string()))?);
                }
                Waited::Came((host, Err(error))) if !error.may_pass() => {
                    return Err(LauncherError::SliceRefused(format!("{}: {error}", self.hosts.name(host))));
                }
                Waited::News(host, news) => {
                    if let Some(outcome) = self.judge(host, &news) {
                        return outcome;
                    }
                }
                Waited::Stopped => return Ok(Complete::Stopped),
                Waited::Came(_) | Waited::Over => {
                    return Err(LauncherError::SliceLost(self.missing(slice, &last_errors, self.timeout.as_secs())));
                }
            }
        }
        slice.tell(&News::Assembled);
        self.relay_shards(slice, &session)?;
        self.connect_peers(&mut slice.peers, &session, Arrivals::new(), wait)
    }

    /// Calls every other host on a thread of its own, and returns the receiver of their sockets.
    fn call_all(
        &self,
        session: &str,
        until: Instant,
        last_errors: &Arc<Mutex<BTreeMap<usize, LastErrors>>>,
    ) -> Receiver<(usize, Result<Stream, PrefaceError>)> {
        let (joined_tx, joined) = mpsc::sync_channel(self.hosts.num());
        for host in 1..self.hosts.num() {
            let purpose = Purpose::Join { session: session.to_owned(), settings: with_index(&self.settings, host) };
            let (address, caller) = (self.hosts.all[host].clone(), self.caller.clone());
            let (joined, last_errors) = (joined_tx.clone(), Arc::clone(last_errors));
            std::thread::spawn(move || {
                let note = |error: &PrefaceError| lock(&last_errors).entry(host).or_default().note(error);
                let _ = joined.send((host, caller.call_until(&address, &purpose, Until { until, note: &note })));
            });
        }
        joined
    }

    /// Decides if news of a host end the assembly, and how.
    fn judge(&self, host: usize, news: &News) -> Option<Result<Complete, LauncherError>> {
        let name = self.hosts.name(host);
        match news.loss(&name) {
            Some(error) => Some(Err(error)),
            None if news.is_end() => {
                tracing::info!("{name} was asked to stop");
                Some(Ok(Complete::Stopped))
            }
            None => None,
        }
    }

    fn lost(&self, host: usize, reason: &str) -> LauncherError {
        LauncherError::SliceLost(format!("{} is lost: {reason}", self.hosts.name(host)))
    }

    /// Returns a sentence that names the hosts that have not joined.
    fn missing(&self, slice: &Slice, last_errors: &Mutex<BTreeMap<usize, LastErrors>>, seconds: u64) -> String {
        let last_errors = lock(last_errors);
        let missing = (1..self.hosts.num()).filter(|host| !slice.links.contains_key(host));
        let reason = |host| last_errors.get(&host).map_or_else(|| "no answer".to_owned(), LastErrors::to_string);
        let missing: Vec<String> = missing.map(|host| format!("{}: {}", self.hosts.name(host), reason(host))).collect();
        let (timeout, missing) = (self.timeout.as_secs(), missing.join("; "));
        format!("the slice is not complete after {seconds} s of {timeout} s (--slice-timeout); missing: {missing}")
    }

    /// Other hosts: open the door, and wait until host 0 has come and the slice is complete.
    fn join(
        &self,
        slice: &mut Slice,
        wait: &mut Wait<'_>,
        events: &SyncSender<Event>,
    ) -> Result<Complete, LauncherError> {
        let mut arrivals = Arrivals::new();
        let keeper = self.keeper(arrivals.sender.clone(), None);
        let host = self.hosts.own();
        door::open(self.hosts, Arc::clone(&keeper))
            .map_err(|source| LauncherError::Door { host: host.to_string(), source })?;
        tracing::info!("waiting for {}", self.hosts.name(0));
        let mut notes = Notes::new();
        let (session, stream) = loop {
            match wait.receive_or_note(&arrivals.receiver, &mut notes, |seconds| self.not_called(&keeper, seconds)) {
                Waited::Came(Arrival::Join { session, stream }) => break (session, stream),
                // Another host may know before this one that the slice is complete, and connect its shards.
                Waited::Came(arrival) => arrivals.early.push(arrival),
                Waited::News(..) => {}
                Waited::Stopped => return Ok(Complete::Stopped),
                Waited::Over => return Err(LauncherError::SliceLost(self.not_called(&keeper, self.timeout.as_secs()))),
            }
        };
        let link = Link::start(stream, 0, events.clone()).map_err(|error| self.lost(0, &error.to_string()))?;
        slice.links.insert(0, link);
        tracing::info!("{} has connected; waiting for the other hosts", self.hosts.name(0));
        loop {
            match wait.receive(&arrivals.receiver) {
                Waited::News(_, News::Assembled) => break,
                Waited::News(host, news) => {
                    if let Some(outcome) = self.judge(host, &news) {
                        return outcome;
                    }
                }
                Waited::Came(arrival) => arrivals.early.push(arrival),
                Waited::Stopped => return Ok(Complete::Stopped),
                Waited::Over => return Err(self.lost(0, "the slice was not complete in time")),
            }
        }
        self.connect_peers(&mut slice.peers, &session, arrivals, wait)
    }

    /// Returns a sentence about host 0, which has not come.
    fn not_called(&self, keeper: &Doorkeeper, seconds: u64) -> String {
        let refusal = keeper.lock().last_refusal.clone();
        let refusal = refusal.map_or_else(String::new, |text| format!("; the last refused connection: {text}"));
        let (first, timeout) = (self.hosts.name(0), self.timeout.as_secs());
        format!("{first} has not connected within {seconds} s of {timeout} s (--slice-timeout){refusal}")
    }

    /// The numbers of the shards of this host.
    fn own_shards(&self) -> std::ops::Range<u32> {
        let first = u32::try_from(self.hosts.index).unwrap_or(u32::MAX).saturating_mul(self.num_shard);
        first..first + self.num_shard
    }

    /// Listens for the router at the address of each shard of another host.
    fn relay_shards(&self, slice: &mut Slice, session: &str) -> Result<(), LauncherError> {
        for (shard, endpoint) in (0..).zip(&self.endpoints) {
            let host = self.host_of(shard);
            if host != self.hosts.index {
                let (hosts, caller, session) = (self.hosts.clone(), self.caller.clone(), session.to_owned());
                let route = Route { hosts, host, caller, session, shard, timeout: self.timeout };
                slice.relays.listen(endpoint, route).map_err(|error| LauncherError::Relay(Box::new(error)))?;
            }
        }
        Ok(())
    }

    /// Connects the shards of this host with all others, if they sum their results. Of two hosts, the one with the
    /// lower index calls.
    fn connect_peers(
        &self,
        sockets: &mut PeerSockets,
        session: &str,
        arrivals: Arrivals,
        wait: &mut Wait<'_>,
    ) -> Result<Complete, LauncherError> {
        if !self.sums {
            return Ok(Complete::Yes);
        }
        let failed = |what: String| LauncherError::SliceLost(what);
        *sockets = PeerSockets::of_host(self.own_shards(), u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX))
            .map_err(|error| failed(format!("sockets between shards cannot be made: {error}")))?;
        for (shard, other) in sockets.missing().filter(|(_, other)| self.host_of(*other) > self.hosts.index) {
            self.call_peer(session, [shard, other], (wait.until, arrivals.sender.clone()));
        }
        let mut early = arrivals.early.into_iter();
        loop {
            let missing = sockets.missing().next();
            let Some((shard, other)) = missing else { return Ok(Complete::Yes) };
            let name = || {
                format!(
                    "shard {shard} cannot be connected with shard {other} on {}",
                    self.hosts.name(self.host_of(other))
                )
            };
            match early.next().map_or_else(|| wait.receive(&arrivals.receiver), Waited::Came) {
                Waited::Came(Arrival::Peer { from, to, stream }) => sockets.insert(to, from, owned(stream)),
                Waited::Came(Arrival::NoPeer { error }) => return Err(failed(format!("{}: {error}", name()))),
                Waited::Came(Arrival::Join { .. }) => {}
                Waited::News(host, news) => {
                    if let Some(outcome) = self.judge(host, &news) {
                        return outcome;
                    }
                }
                Waited::Stopped => return Ok(Complete::Stopped),
                Waited::Over => return Err(failed(format!("{} in time", name()))),
            }
        }
    }

    /// Calls the host of shard `other` on a thread, to connect it with shard `shard` of this host. The connection, or
    /// the error, arrives like a call of another host.
    fn call_peer(&self, session: &str, [shard, other]: [u32; 2], (until, arrivals): (Instant, SyncSender<Arrival>)) {
        let purpose = Purpose::Peer { session: session.to_owned(), from: shard, to: other };
        let (address, caller) = (self.hosts.all[self.host_of(other)].clone(), self.caller.clone());
        std::thread::spawn(move || {
            let arrival = match caller.call_until(&address, &purpose, Until { until, note: &|_| () }) {
                Ok(stream) => Arrival::Peer { from: other, to: shard, stream },
                Err(error) => Arrival::NoPeer { error },
            };
            let _ = arrivals.send(arrival);
        });
    }

    /// The index of the host of a shard.
    fn host_of(&self, shard: u32) -> usize {
        (shard / self.num_shard) as usize
    }
}

/// The connections of other hosts that this host has accepted, or made, and not handled.
struct Arrivals {
    sender: SyncSender<Arrival>,
    receiver: Receiver<Arrival>,
    /// Connections between shards that were taken from `receiver` too early.
    early: Vec<Arrival>,
}

impl Arrivals {
    fn new() -> Self {
        let (sender, receiver) = mpsc::sync_channel(MAX_ARRIVALS);
        Self { sender, receiver, early: Vec::new() }
    }
}

/// The means to call other hosts.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) secret: Secret,
    /// The encryption of connections, if there is one.
    pub(crate) tls: Option<Tls>,
}

/// The end of the attempts to call a host, and what is done with the error of each.
#[derive(Clone, Copy)]
pub(super) struct Until<'a> {
    pub(super) until: Instant,
    pub(super) note: &'a dyn Fn(&PrefaceError),
}

impl Caller {
    /// Calls a host until it accepts, refuses for good, or the time is over.
    pub(super) fn call_until(
        &self,
        host: &Host,
        purpose: &Purpose,
        Until { until, note }: Until<'_>,
    ) -> Result<Stream, PrefaceError> {
        loop {
            match self.call(host, purpose) {
                Err(error) if error.may_pass() && Instant::now() < until => {
                    note(&error);
                    pause(CALL_INTERVAL);
                }
                result => return result.inspect_err(note),
            }
        }
    }

    /// Connects to a host and begins a connection with this purpose.
    ///
    /// # Errors
    /// When the host cannot be reached or does not accept.
    fn call(&self, host: &Host, purpose: &Purpose) -> Result<Stream, PrefaceError> {
        let stream = connect(host).map_err(PrefaceError::Unreachable)?;
        preface::call(stream, (&self.secret, self.tls.as_ref()), purpose)
    }
}

/// The last errors of the calls to a host.
#[derive(Debug, Default)]
struct LastErrors {
    /// The last answer of the host. It says more than later attempts that found nobody.
    of_host: Option<String>,
    unreachable: Option<String>,
}

impl LastErrors {
    fn note(&mut self, error: &PrefaceError) {
        match error {
            PrefaceError::Unreachable(_) => self.unreachable = Some(error.to_string()),
            _ => *self = Self { of_host: Some(error.to_string()), unreachable: None },
        }
    }
}

impl fmt::Display for LastErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors: Vec<&str> = [&self.of_host, &self.unreachable].into_iter().flatten().map(String::as_str).collect();
        f.write_str(&errors.join(", and later "))
    }
}

/// Tries the host's addresses in order and returns the first that connects.
fn connect(host: &Host) -> std::io::Result<TcpStream> {
    let addresses = (host.name.as_str(), host.port).to_socket_addrs()?;
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_DEADLINE) {
            // If no process listens on loopback, the system may connect a socket to itself.
            Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {
                last = std::io::ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn owned(stream: Stream) -> OwnedFd {
    match stream {
        Stream::Unix(stream) => stream.into(),
        Stream::Tcp(stream) => stream.into(),
    }
}

/// The settings for one host: those of all hosts, and its index, which the host must share too.
fn with_index(settings: &Value, index: usize) -> Value {
    let mut settings = settings.clone();
    settings[INDEX] = index.into();
    settings
}

/// Returns a random name for a session.
fn session() -> Result<String, LauncherError> {
    let bytes = preface::nonce();
    let bytes =
        bytes.map_err(|error| LauncherError::SliceLost(format!("the system has no random numbers: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
