//! Relays bytes between a Unix socket on this host and a connection to another host, so that the router talks to a
//! shard on another host as if it were on this one.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use endpoint::{Endpoint, ListenError, Listener, SocketFile, Stream};
use liveness::AwakeTime;

use super::Hosts;
use super::assembly::{Caller, Until};
use super::pause;
use super::preface::Purpose;

/// The maximum time until a shard listens on its socket, which it does before it loads the model.
const SHARD_DEADLINE: Duration = Duration::from_secs(20);
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// The size of a relay's buffer in each direction, in bytes. Most frames are smaller.
const BUFFER_BYTES: usize = 64 << 10;

/// The relays of host 0: for each shard of another host, a socket at which the router connects.
#[derive(Debug, Default)]
pub(super) struct Relays {
    open: Arc<Mutex<Open>>,
    files: Vec<SocketFile>,
}

/// The router's connections by the index of the host to which they lead, the shard, and a number of their own.
type Open = BTreeMap<(usize, u32, u64), Stream>;

/// The route to a shard of another host.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) hosts: Hosts,
    pub(super) host: usize,
    pub(super) caller: Caller,
    pub(super) session: String,
    pub(super) shard: u32,
    /// The maximum time to reach the door of the host.
    pub(super) timeout: Duration,
}

impl Relays {
    /// Listens at `endpoint` and relays each connection along the route.
    ///
    /// # Errors
    /// When this process cannot listen there.
    pub(super) fn listen(&mut self, endpoint: &Endpoint, route: Route) -> Result<(), ListenError> {
        let (listener, file) = endpoint.bind_private()?;
        self.files.extend(file);
        let open = Arc::clone(&self.open);
        std::thread::spawn(move || accept(&listener, &route, &open));
        Ok(())
    }

    /// Closes the router's connections to the shards of a host, so that the router learns at once that they are gone.
    pub(super) fn close(&self, host: usize) {
        for (_, stream) in lock(&self.open).extract_if((host, 0, 0)..=(host, u32::MAX, u64::MAX), |_, _| true) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept(listener: &Listener, route: &Route, open: &Arc<Mutex<Open>>) {
    for number in 0.. {
        let Ok(own) = listener.accept() else {
            pause(RETRY_INTERVAL);
            continue;
        };
        let Ok(copy) = own.try_clone() else { continue };
        let key = (route.host, route.shard, number);
        lock(open).insert(key, copy);
        let (route, open) = (route.clone(), Arc::clone(open));
        std::thread::spawn(move || {
            follow(&route, own);
            if let Some(copy) = lock(&open).remove(&key) {
                let _ = copy.shutdown(Shutdown::Both);
            }
        });
    }
}

/// Relays a connection of the router along the route until both sides have ended it.
fn follow(route: &Route, own: Stream) {
    let purpose = Purpose::Shard { session: route.session.clone(), shard: route.shard };
    let until = Instant::now() + route.timeout;
    match route.caller.call_until(&route.hosts.all[route.host], &purpose, Until { until, note: &|_| () }) {
        Ok(theirs) => relay(own, theirs),
        Err(error) => {
            let (shard, host) = (route.shard, route.hosts.name(route.host));
            tracing::warn!("shard {shard} on {host} cannot be reached: {error}");
        }
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Relays a connection of host 0 to a shard of this host, until both sides have ended it.
pub(super) fn to_shard(theirs: Stream, shard: u32, endpoint: &Endpoint) {
    let mut waited = AwakeTime::start(Instant::now());
    let own = loop {
        match endpoint.connect() {
            Ok(own) => break own,
            Err(error) if waited.look(Instant::now()) > SHARD_DEADLINE => {
                return tracing::warn!("shard {shard} does not listen at {endpoint}: {error}");
            }
            Err(_) => pause(RETRY_INTERVAL),
        }
    };
    std::thread::spawn(move || relay(own, theirs));
}

/// Copies bytes in both directions until both have ended.
pub(super) fn relay(one: Stream, two: Stream) {
    for stream in [&one, &two] {
        // The preface has set deadlines, which do not hold for what follows.
        if stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(None)).is_err() {
            return;
        }
    }
    let (Ok(one_again), Ok(two_again)) = (one.try_clone(), two.try_clone()) else { return };
    let back = std::thread::spawn(move || copy(two_again, one_again));
    copy(one, two);
    let _ = back.join();
}

/// Copies bytes until the end or an error of either side, and passes the end on.
fn copy(mut from: Stream, mut to: Stream) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(num_bytes) => {
                if to.write_all(&buffer[..num_bytes]).is_err() {
                    // The other direction ends too, because nobody would read what it still carries.
                    let _ = from.shutdown(Shutdown::Both);
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
