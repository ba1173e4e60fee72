//! Addresses in ZeroMQ's form: `tcp://*:5557`, `tcp://host:5557`, `ipc:///path`.
//!
//! The publisher listens at an address with `*` or `::` and at a path, and connects to any other address, as in vLLM.
//! The socket for replays always listens.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use endpoint::{Endpoint, ListenError, Listener, SocketFile};

/// A documentation address (RFC 5737), to which only the default route leads. No packet is sent to it.
const SOMEWHERE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

/// An address, and the side that connects to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    /// Peers connect to this process.
    Listen(Endpoint),
    /// This process connects to a peer.
    Connect(Endpoint),
}

/// The error for text that is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum AddressError {
    #[error(
        "{0:?} is not an address; it must be tcp://*:port or ipc:///path, at which the server listens, or tcp://host:port, \
         to which the server connects"
    )]
    Publisher(String),
    #[error(
        "{0:?} is not an address at which the server can listen; it must be tcp://*:port, tcp:// with an IP address of \
         this machine and a port, or ipc:///path"
    )]
    Replays(String),
}

/// An address at which this process listens.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) listener: Listener,
    /// The file of a Unix socket, which is removed when this value is dropped.
    pub(super) file: Option<SocketFile>,
    /// The address for peers. The port is the one that the system chose, if the user gave 0.
    pub(super) address: String,
}

impl Address {
    /// Parses the address of the publisher.
    ///
    /// # Errors
    /// When `text` is not an address.
    pub(super) fn of_publisher(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError::Publisher(text.to_owned());
        if text.contains('*') || text.contains("::") || text.starts_with("ipc:") {
            return to_listen(text).map(Self::Listen).ok_or_else(error);
        }
        match text.parse() {
            Ok(endpoint @ Endpoint::Tcp { .. }) => Ok(Self::Connect(endpoint)),
            Ok(Endpoint::Unix(_)) | Err(_) => Err(error()),
        }
    }

    /// Parses the address of the socket for replays.
    ///
    /// # Errors
    /// When `text` is not an address.
    pub(super) fn of_replays(text: &str) -> Result<Self, AddressError> {
        to_listen(text).map(Self::Listen).ok_or_else(|| AddressError::Replays(text.to_owned()))
    }

    /// Listens at the address, which the user gave as `text`. Returns `None` if peers do not connect to it.
    ///
    /// # Errors
    /// When the address is in use, or is not one of this machine.
    pub(super) fn bind(&self, text: &str) -> Result<Option<Bound>, ListenError> {
        let Self::Listen(endpoint) = self else { return Ok(None) };
        let (listener, file) = endpoint.bind()?;
        let address = match (&listener, endpoint) {
            (Listener::Tcp(listener), Endpoint::Tcp { host, port: 0 }) => {
                let port = listener.local_addr().map_or(0, |address| address.port());
                let ip = host.parse().ok().filter(|ip: &IpAddr| !ip.is_unspecified()).unwrap_or_else(own_ip);
                Endpoint::Tcp { host: ip.to_string(), port }.to_string()
            }
            _ => text.to_owned(),
        };
        Ok(Some(Bound { listener, file, address }))
    }
}

/// Parses an address at which this process listens. `*` as a host is every IPv4 address of the machine; `*` or 0 as a
/// port lets the system choose.
fn to_listen(text: &str) -> Option<Endpoint> {
    if let Some(path) = text.strip_prefix("ipc://") {
        let is_path = !path.is_empty() && !path.starts_with('@') && path != "*";
        return is_path.then(|| Endpoint::Unix(path.into()));
    }
    let (host, port) = text.strip_prefix("tcp://")?.rsplit_once(':')?;
    let port = if port == "*" { 0 } else { port.parse().ok()? };
    let ip: IpAddr = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?.into(),
        None if host == "*" => Ipv4Addr::UNSPECIFIED.into(),
        None => host.parse::<Ipv4Addr>().ok()?.into(),
    };
    Some(Endpoint::Tcp { host: ip.to_string(), port })
}

/// Returns the address of this machine on the network that its default route leads to, or the loopback address if there
/// is no route.
fn own_ip() -> IpAddr {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let address = socket.and_then(|socket| socket.connect(SOMEWHERE).and_then(|()| socket.local_addr()));
    address.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn wildcards_and_paths_listen_and_hosts_are_connected_to() {
        for (text, expected) in [
            ("tcp://*:5557", Address::Listen(tcp("0.0.0.0", 5557))),
            ("tcp://*:*", Address::Listen(tcp("0.0.0.0", 0))),
            ("tcp://127.0.0.1:*", Address::Listen(tcp("127.0.0.1", 0))),
            ("tcp://[::]:1", Address::Listen(tcp("::", 1))),
            ("tcp://[::1]:1", Address::Listen(tcp("::1", 1))),
            ("ipc:///run/kv.sock", Address::Listen(Endpoint::Unix("/run/kv.sock".into()))),
            ("tcp://epp.svc.cluster.local:5557", Address::Connect(tcp("epp.svc.cluster.local", 5557))),
            ("tcp://0.0.0.0:5557", Address::Connect(tcp("0.0.0.0", 5557))),
        ] {
            assert_eq!(Address::of_publisher(text), Ok(expected), "{text}");
        }
        assert_eq!(Address::of_replays("tcp://0.0.0.0:1"), Ok(Address::Listen(tcp("0.0.0.0", 1))));
    }

    #[test]
    fn other_text_is_refused() {
        for text in
            ["", "*", "tcp://*", "tcp://*:x", "tcp://host", "ipc://", "ipc://*", "ipc://@a", "inproc://a::b", "/a"]
        {
            assert_eq!(Address::of_publisher(text), Err(AddressError::Publisher(text.to_owned())));
        }
        for text in ["tcp://host:1", "tcp://eth0:1", "tcp://::1:1", "udp://*:1"] {
            assert_eq!(Address::of_replays(text), Err(AddressError::Replays(text.to_owned())));
        }
    }

    #[test]
    fn the_port_that_the_system_chose_is_shown() {
        let shown = |text: &str| Address::of_replays(text).unwrap().bind(text).unwrap().unwrap().address;
        let port = shown("tcp://127.0.0.1:*").strip_prefix("tcp://127.0.0.1:").unwrap().parse::<u16>().unwrap();
        assert_ne!(port, 0);
        assert!(!shown("tcp://*:0").contains('*'));
    }
}
