//! Where clients come in: an address, with TLS or without, or a Unix socket.
//!
//! Doors: [`Endpoint`], as the arguments say it, and [`Listener`], which accepts. What is said over a connection is
//! `server`'s.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use endpoint::SocketFile;
use tokio::net::{TcpListener, UnixListener};

use crate::args::HttpArgs;
use crate::socket::Stream;
use crate::tls::{Tls, TlsError};

/// Where to listen.
#[derive(Debug, Clone)]
pub struct Endpoint(Place);

#[derive(Debug, Clone)]
enum Place {
    Tcp { address: SocketAddr, tls: Option<Tls> },
    Unix(PathBuf),
}

/// Arguments that name no endpoint.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct EndpointError(#[from] Reason);

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("`hostname` {0:?} is not an IP address, such as 0.0.0.0, 127.0.0.1 or ::")]
    Hostname(String),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("`uds` and `tls_certfile` are both set; a Unix socket is served without TLS")]
    TlsOnUnix,
}

/// Nobody can listen there.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum ListenError {
    #[error("listen on {address}: {error}{}", advice(.error))]
    Address { address: SocketAddr, error: std::io::Error },
    #[error("{0}; --uds names the path")]
    Socket(endpoint::ListenError),
    #[error("listen on {path}: {error}; --uds names the path")]
    Path { path: PathBuf, error: std::io::Error },
}

/// An endpoint that is open. A socket's file is removed when it is dropped.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp { listener: TcpListener, tls: Option<Tls> },
    Unix { listener: UnixListener, path: PathBuf, _file: SocketFile },
}

/// What to change where nobody can listen on an address.
fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrInUse => {
            "; another process listens there: choose another port with --port, or 0 for one that is free"
        }
        ErrorKind::AddrNotAvailable => "; this machine has no such address: choose another with --hostname",
        ErrorKind::PermissionDenied => "; this port needs rights: choose one from 1024 on with --port",
        _ => "; --hostname and --port say where",
    }
}

impl Endpoint {
    /// What the arguments say; files of TLS are read.
    ///
    /// # Errors
    /// When the hostname is no address, there is something wrong with the files, or flags contradict each other.
    pub fn resolve(args: &HttpArgs) -> Result<Self, EndpointError> {
        let tls = Tls::load(args.tls_certfile.as_deref(), args.tls_keyfile.as_deref()).map_err(Reason::from)?;
        if let Some(path) = &args.uds {
            return if tls.is_some() { Err(Reason::TlsOnUnix.into()) } else { Ok(Self(Place::Unix(path.clone()))) };
        }
        let ip: IpAddr = args.hostname.parse().map_err(|_| Reason::Hostname(args.hostname.clone()))?;
        Ok(Self(Place::Tcp { address: SocketAddr::new(ip, args.port), tls }))
    }

    /// Listens and stops at once: what is taken should be noticed before a model is loaded.
    ///
    /// # Errors
    /// When nobody can listen there.
    pub fn probe(&self) -> Result<(), ListenError> {
        match &self.0 {
            Place::Tcp { address, .. } => {
                let listener = std::net::TcpListener::bind(address);
                listener.map(drop).map_err(|error| ListenError::Address { address: *address, error })
            }
            Place::Unix(path) => SocketFile::bind(path).map(drop).map_err(ListenError::Socket),
        }
    }

    /// Listens.
    ///
    /// # Errors
    /// When nobody can listen there.
    pub(crate) async fn listen(&self) -> Result<Listener, ListenError> {
        match &self.0 {
            Place::Tcp { address, tls } => {
                let listener = TcpListener::bind(address).await;
                let listener = listener.map_err(|error| ListenError::Address { address: *address, error })?;
                Ok(Listener::Tcp { listener, tls: tls.clone() })
            }
            Place::Unix(path) => {
                let (file, listener) = SocketFile::bind(path).map_err(ListenError::Socket)?;
                let listener = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
                let listener = listener.map_err(|error| ListenError::Path { path: path.clone(), error })?;
                Ok(Listener::Unix { listener, path: path.clone(), _file: file })
            }
        }
    }
}

impl Listener {
    /// The next connection.
    ///
    /// # Errors
    /// When that one ended before it began, or the system has no room for it.
    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp { listener, .. } => listener.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
            Self::Unix { listener, .. } => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
        }
    }

    /// How to shake hands before anything else.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        match self {
            Self::Tcp { tls, .. } => tls.as_ref(),
            Self::Unix { .. } => None,
        }
    }
}

/// The URL for clients; nginx and curl know `unix:` with a path.
impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { listener, tls } => {
                let scheme = if tls.is_some() { "https" } else { "http" };
                match listener.local_addr() {
                    Ok(address) => write!(f, "{scheme}://{address}"),
                    Err(error) => write!(f, "{scheme}://({error})"),
                }
            }
            Self::Unix { path, .. } => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::args;

    fn resolve(flags: &[&str]) -> Result<Endpoint, String> {
        Endpoint::resolve(&args(flags).http).map_err(|error| error.to_string())
    }

    #[test]
    fn a_hostname_must_be_an_address() {
        let Place::Tcp { address, tls: None } = resolve(&["--hostname=::", "-p", "1"]).unwrap().0 else {
            panic!("TCP")
        };
        assert_eq!(address.to_string(), "[::]:1");
        let error = resolve(&["--hostname=web-1"]).unwrap_err();
        assert!(error.contains("\"web-1\" is not an IP address"), "{error}");
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = format!("--port={}", listener.local_addr().unwrap().port());
        let endpoint = resolve(&["--hostname=127.0.0.1", &port]).unwrap();
        let error = endpoint.probe().unwrap_err().to_string();
        assert!(
            error.starts_with("listen on 127.0.0.1:") && error.contains("choose another port with --port"),
            "{error}"
        );
        assert!(endpoint.listen().await.is_err());
    }

    #[tokio::test]
    async fn a_socket_is_there_while_somebody_listens() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let endpoint = resolve(&[&format!("--uds={}", path.display()), "--hostname=ignored"]).unwrap();
        endpoint.probe().unwrap();
        assert!(!path.exists());
        let listener = endpoint.listen().await.unwrap();
        assert_eq!(listener.to_string(), format!("unix:{}", path.display()));
        assert!(endpoint.probe().unwrap_err().to_string().contains("in use"));
        drop(listener);
        assert!(!path.exists());
        let nowhere = resolve(&["--uds=/no/dir/s"]).unwrap().probe().unwrap_err();
        assert!(std::error::Error::source(&nowhere).is_none(), "{nowhere:?}");
        assert_eq!(
            nowhere.to_string(),
            "listen on /no/dir/s: No such file or directory (os error 2); --uds names the path"
        );
    }
}
