//! Listening at an endpoint: for all clients, or only for clients on this machine.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use proto::MAX_SOCKET_PATH_BYTES;

use crate::{Endpoint, SocketFile, Stream};

/// A socket that accepts connections.
#[derive(Debug)]
#[expect(missing_docs, reason = "the variants are those of `Endpoint`")]
pub enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// The reason why this process cannot listen at an address.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum ListenError {
    #[error("socket path {path} has {len} bytes, but a Unix socket allows {MAX_SOCKET_PATH_BYTES}; use a shorter one")]
    PathTooLong { path: PathBuf, len: usize },
    #[error("socket {path} is in use by another process")]
    InUse { path: PathBuf },
    #[error("{path} exists and is not a socket; remove it or use another path")]
    NotASocket { path: PathBuf },
    #[error("cannot listen on {path}: {source}")]
    Path { path: PathBuf, source: io::Error },
    #[error("cannot listen on {address}: {source}")]
    Address { address: SocketAddr, source: io::Error },
    #[error("cannot listen on {endpoint}: the host cannot be looked up: {source}")]
    Host { endpoint: Endpoint, source: io::Error },
    #[error(
        "cannot listen on {endpoint}: {ip} is not a loopback address, and connections are not authenticated; use a Unix path or \
         a loopback address, such as tcp://127.0.0.1:9000 or tcp://[::1]:9000"
    )]
    NotLoopback { endpoint: Endpoint, ip: IpAddr },
}

impl Endpoint {
    /// Listens for all clients. For a Unix socket, the process's umask decides which users may connect, and the
    /// socket's file is removed when the returned [`SocketFile`] is dropped.
    ///
    /// # Errors
    /// When the path is too long, is taken or cannot be written, when the address is in use, when it is not an address
    /// of this machine, or when the host cannot be looked up.
    pub fn bind(&self) -> Result<(Listener, Option<SocketFile>), ListenError> {
        match self {
            Self::Unix(path) => SocketFile::bind(path).map(unix),
            Self::Tcp { host, port } => self.bind_first(&self.look_up(host, *port)?),
        }
    }

    /// Listens only for clients on this machine: a Unix socket accepts processes of the same user and of root, and a
    /// TCP address must be a loopback address.
    ///
    /// # Errors
    /// As for [`Endpoint::bind`], and when any address of the host is not a loopback address.
    pub fn bind_private(&self) -> Result<(Listener, Option<SocketFile>), ListenError> {
        match self {
            Self::Unix(path) => SocketFile::bind_private(path).map(unix),
            Self::Tcp { host, port } => {
                let addresses = self.look_up(host, *port)?;
                match addresses.iter().map(SocketAddr::ip).find(|ip| !ip.is_loopback()) {
                    Some(ip) => Err(ListenError::NotLoopback { endpoint: self.clone(), ip }),
                    None => self.bind_first(&addresses),
                }
            }
        }
    }

    fn look_up(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ListenError> {
        let addresses = (host, port).to_socket_addrs().map(Iterator::collect);
        addresses.map_err(|source| ListenError::Host { endpoint: self.clone(), source })
    }

    /// Listens on the first of a host's addresses. Clients on this machine try the addresses of a host in the same
    /// order.
    fn bind_first(&self, addresses: &[SocketAddr]) -> Result<(Listener, Option<SocketFile>), ListenError> {
        let Some(&address) = addresses.first() else {
            let source = io::ErrorKind::AddrNotAvailable.into();
            return Err(ListenError::Host { endpoint: self.clone(), source });
        };
        let listener = TcpListener::bind(address).map_err(|source| ListenError::Address { address, source })?;
        Ok((Listener::Tcp(listener), None))
    }
}

impl Listener {
    /// Waits for the next connection.
    ///
    /// # Errors
    /// When the connection ended before it was accepted, or the system lacks the resources for it.
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            Self::Tcp(listener) => listener.accept().and_then(|(stream, _)| Stream::from_tcp(stream)),
        }
    }
}

fn unix((file, listener): (SocketFile, UnixListener)) -> (Listener, Option<SocketFile>) {
    (Listener::Unix(listener), Some(file))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use test_support::DEADLINE;

    use super::*;

    /// Returns a listener on a loopback address with a port that the system chose, and its endpoint.
    fn open() -> (Listener, Endpoint) {
        let chosen = Endpoint::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
        let (listener, file) = chosen.bind_private().unwrap();
        let Listener::Tcp(tcp) = &listener else { panic!("{listener:?}") };
        assert!(file.is_none());
        let endpoint = format!("tcp://{}", tcp.local_addr().unwrap()).parse().unwrap();
        (listener, endpoint)
    }

    #[test]
    fn bytes_go_both_ways() {
        let directory = tempfile::tempdir().unwrap();
        let path = Endpoint::Unix(directory.path().join("s"));
        let (unix, file) = path.bind().unwrap();
        assert!(file.is_some());
        let (tcp, address) = open();
        for (listener, endpoint) in [(unix, path), (tcp, address)] {
            let mut client = endpoint.connect().unwrap();
            // The client is connected, so this does not wait.
            let mut server = listener.accept().unwrap();
            for stream in [&client, &server] {
                stream.set_read_timeout(Some(DEADLINE)).unwrap();
            }
            let mut bytes = [0; 2];
            client.write_all(b"to").unwrap();
            server.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"to");
            server.write_all(b"fr").unwrap();
            client.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"fr");
            for stream in [&client, &server] {
                if let Stream::Tcp(stream) = stream {
                    assert!(stream.nodelay().unwrap());
                }
            }
            drop(server);
            assert_eq!(client.read(&mut [0]).unwrap(), 0, "{endpoint}");
        }
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let (_listener, endpoint) = open();
        for taken in [endpoint.bind(), endpoint.bind_private()] {
            let error = taken.unwrap_err().to_string();
            let address = endpoint.to_string().replace("tcp://", "");
            assert_eq!(error, format!("cannot listen on {address}: Address already in use (os error 98)"));
        }
    }

    #[test]
    fn private_is_loopback() {
        for host in ["127.0.0.1", "127.9.8.7", "localhost"] {
            let endpoint = Endpoint::Tcp { host: host.to_owned(), port: 0 };
            assert!(endpoint.bind_private().is_ok(), "{host}");
        }
        for host in ["0.0.0.0", "::", "10.1.2.3", "192.0.2.1", "::ffff:10.0.0.1"] {
            let endpoint = Endpoint::Tcp { host: host.to_owned(), port: 9000 };
            let error = endpoint.bind_private().unwrap_err().to_string();
            let expected = format!("cannot listen on {endpoint}: {host} is not a loopback address, and connections");
            assert!(error.starts_with(&expected), "{error}");
            assert!(error.contains("such as tcp://127.0.0.1:9000"), "{error}");
        }
    }

    #[test]
    fn nobody_is_there_after_the_end() {
        let (listener, endpoint) = open();
        drop(listener);
        assert_eq!(endpoint.connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
