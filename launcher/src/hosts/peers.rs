//! The sockets between all shards of a slice that sum their results on the CPU. The launchers connect them, and each
//! shard inherits its own.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::FdFlags;

use crate::error::LauncherError;

/// The sockets of the shards of this host: for each shard by number, a socket to each shard of the slice in order, and
/// `None` for itself.
#[derive(Debug, Default)]
pub(crate) struct PeerSockets(BTreeMap<u32, Vec<Option<OwnedFd>>>);

/// The sockets that a shard inherits. Dropping this value closes this process's copies.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// The flag with which the shard finds its sockets.
    pub(crate) flag: String,
    _sockets: Vec<Option<OwnedFd>>,
}

impl PeerSockets {
    /// Connects the shards `own` of this host, among `num_shards` of the slice, with each other.
    ///
    /// # Errors
    /// When the system refuses a pair of sockets.
    pub(super) fn of_host(own: std::ops::Range<u32>, num_shards: u32) -> io::Result<Self> {
        let empty = || (0..num_shards).map(|_| None).collect::<Vec<_>>();
        let mut sockets = Self(own.clone().map(|shard| (shard, empty())).collect());
        for shard in own.clone() {
            for other in own.start..shard {
                let (one, two) = UnixStream::pair()?;
                sockets.insert(shard, other, one.into());
                sockets.insert(other, shard, two.into());
            }
        }
        Ok(sockets)
    }

    /// Takes the socket from shard `shard` of this host to shard `other`. A second socket replaces the first.
    pub(super) fn insert(&mut self, shard: u32, other: u32, socket: OwnedFd) {
        if let Some(place) = self.0.get_mut(&shard).and_then(|sockets| sockets.get_mut(other as usize)) {
            *place = Some(socket);
        }
    }

    /// The pairs of a shard of this host and another one that have no socket yet.
    pub(super) fn missing(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().flat_map(|(shard, sockets)| {
            let others = (0..).zip(sockets).filter(move |(other, socket)| other != shard && socket.is_none());
            others.map(move |(other, _)| (*shard, other))
        })
    }

    /// Takes out the sockets of a shard, which the next child inherits. The caller must drop them after the child has
    /// started, so that a socket ends with its shard.
    ///
    /// # Errors
    /// When the system refuses to change a socket.
    pub(crate) fn take(&mut self, shard: u32) -> Result<Option<Inherited>, LauncherError> {
        let Some(sockets) = self.0.remove(&shard) else { return Ok(None) };
        let name = || format!("shard-{shard}");
        for socket in sockets.iter().flatten() {
            // Close-on-exec is off, so that the child inherits the socket under the same number.
            let set = rustix::io::fcntl_setfd(socket, FdFlags::empty());
            set.map_err(|errno| LauncherError::Spawn { name: name(), source: errno.into() })?;
        }
        let numbers = sockets.iter().map(|socket| socket.as_ref().map(OwnedFd::as_raw_fd));
        let flag = format!("--peer-sockets={}", shard::PeerSockets(numbers.collect()));
        Ok(Some(Inherited { flag, _sockets: sockets }))
    }
}
