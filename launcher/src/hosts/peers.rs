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
                sockets.set(shard, other, one.into());
                sockets.set(other, shard, two.into());
            }
        }
        Ok(sockets)
    }

    /// Takes the socket from shard `shard` of this host to shard `other` of another host. A second socket replaces the
    /// first, because a host calls again if it got no reply. The sockets of this host's shards with each other stay.
    pub(super) fn insert(&mut self, shard: u32, other: u32, socket: OwnedFd) {
        if !self.0.contains_key(&other) {
            self.set(shard, other, socket);
        }
    }

    fn set(&mut self, shard: u32, other: u32, socket: OwnedFd) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> OwnedFd {
        UnixStream::pair().unwrap().0.into()
    }

    #[test]
    fn a_host_replaces_no_socket_of_this_hosts_shards_with_each_other() {
        let mut sockets = PeerSockets::of_host(0..2, 3).unwrap();
        let number =
            |sockets: &PeerSockets, shard: u32, other: usize| sockets.0[&shard][other].as_ref().map(|s| s.as_raw_fd());
        let [first, own] = [number(&sockets, 0, 1), number(&sockets, 0, 0)];
        for (shard, other) in [(0, 1), (0, 0), (0, 7), (7, 0)] {
            sockets.insert(shard, other, socket());
        }
        assert_eq!([number(&sockets, 0, 1), number(&sockets, 0, 0)], [first, own]);
        assert_eq!(sockets.missing().collect::<Vec<_>>(), [(0, 2), (1, 2)]);
        sockets.insert(0, 2, socket());
        let called_again = socket();
        let expected = called_again.as_raw_fd();
        sockets.insert(0, 2, called_again);
        assert_eq!(number(&sockets, 0, 2), Some(expected));
    }
}
