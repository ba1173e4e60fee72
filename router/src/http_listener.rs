//! The endpoint to which clients connect: a TCP address, with or without TLS, or a Unix socket.
//!
//! Entry points: [`HttpEndpoint`], which is made from the arguments, and [`HttpListener`], which accepts connections.
//! `server` speaks HTTP over these connections.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use endpoint::{Endpoint, SocketFile};
use liveness::AwakeTime;

use crate::args::HttpArgs;
use crate::tls::{Tls, TlsError};
use sockets::{Listener, Stream};

/// The number of connections that may wait to be accepted, if the system allows as many (`net.core.somaxconn`). If more
/// come at once, the kernel drops the packets of some, and these are sent again after a second.
const BACKLOG: i32 = 4096;

/// The maximum time that the launcher takes to close the port when the router asks for it.
const HANDOVER_DEADLINE: Duration = Duration::from_secs(5);
/// The time between two attempts to open the port.
const HANDOVER_INTERVAL: Duration = Duration::from_millis(2);

/// The address at which the server listens, and its TLS identity.
#[derive(Debug, Clone)]
pub struct HttpEndpoint {
    endpoint: Endpoint,
    /// The certificate and key. `None` without TLS, and always on a Unix socket.
    tls: Option<Tls>,
}

/// The error when the arguments do not name a valid endpoint.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct HttpEndpointError(#[from] Reason);

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("`hostname` {0:?} is not an IP address, such as 0.0.0.0, 127.0.0.1 or ::")]
    Hostname(String),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("`uds` and `tls_certfile` are both set; a Unix socket is served without TLS")]
    TlsOnUnix,
}

/// The error when the server cannot listen at an address.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum ListenError {
    #[error("{error}{}", advice(.error))]
    Bind { error: endpoint::ListenError },
    #[error("cannot listen on {endpoint}: {error}")]
    Open { endpoint: Endpoint, error: io::Error },
}

impl ListenError {
    /// True if another process listens there.
    fn is_in_use(&self) -> bool {
        let Self::Bind { error: endpoint::ListenError::Address { source, .. } } = self else { return false };
        source.kind() == ErrorKind::AddrInUse
    }
}

/// An endpoint at which the server listens. The file of a Unix socket is removed when the listener is dropped.
#[derive(Debug)]
pub(crate) struct HttpListener {
    listener: Listener,
    tls: Option<Tls>,
    /// The URL for clients. For a Unix socket it is `unix:` and the path, as in nginx.
    url: String,
    _file: Option<SocketFile>,
}

/// Returns advice for a user whose server cannot listen.
fn advice(error: &endpoint::ListenError) -> &'static str {
    use endpoint::ListenError::{Address, Host, InUse, NotASocket, NotLoopback, Path, PathTooLong};
    let source = match error {
        PathTooLong { .. } | InUse { .. } | NotASocket { .. } | Path { .. } => return "; --uds sets the path",
        Host { .. } | NotLoopback { .. } => return "; --hostname and --port set the address",
        Address { source, .. } => source,
    };
    match source.kind() {
        ErrorKind::AddrInUse => {
            "; another process listens there: choose another port with --port, or 0 for one that is free"
        }
        ErrorKind::AddrNotAvailable => "; this machine has no such address: choose another with --hostname",
        ErrorKind::PermissionDenied => "; this port needs special rights: choose one above 1023 with --port",
        _ => "; --hostname and --port set the address",
    }
}

impl HttpEndpoint {
    /// Returns the endpoint that the arguments name, and reads the TLS files.
    ///
    /// # Errors
    /// When the hostname is not an IP address, a TLS file is invalid, or flags contradict each other.
    pub fn resolve(args: &HttpArgs) -> Result<Self, HttpEndpointError> {
        let tls = Tls::load(args.tls_certfile.as_deref(), args.tls_keyfile.as_deref()).map_err(Reason::from)?;
        if let Some(path) = &args.uds {
            return match tls {
                Some(_) => Err(Reason::TlsOnUnix.into()),
                None => Ok(Self { endpoint: Endpoint::Unix(path.clone()), tls }),
            };
        }
        let ip: IpAddr = args.hostname.parse().map_err(|_| Reason::Hostname(args.hostname.clone()))?;
        Ok(Self { endpoint: Endpoint::Tcp { host: ip.to_string(), port: args.port }, tls })
    }

    /// Checks that the server can listen: listens and stops at once. So an address in use is noticed before a model is
    /// loaded.
    ///
    /// # Errors
    /// When the server cannot listen there.
    pub fn probe(&self) -> Result<(), ListenError> {
        self.endpoint.bind().map(drop).map_err(|error| ListenError::Bind { error })
    }

    /// Listens at the endpoint.
    ///
    /// # Errors
    /// When the server cannot listen there.
    pub(crate) fn listen(&self) -> Result<HttpListener, ListenError> {
        let (listener, file) = self.endpoint.bind().map_err(|error| ListenError::Bind { error })?;
        self.open(listener, file).map_err(|error| ListenError::Open { endpoint: self.endpoint.clone(), error })
    }

    /// Listens at the endpoint, and waits a moment if another process still listens there.
    ///
    /// # Errors
    /// When the server cannot listen there.
    pub(crate) async fn listen_soon(&self) -> Result<HttpListener, ListenError> {
        let mut waited = AwakeTime::start(Instant::now());
        loop {
            match self.listen() {
                Err(error) if error.is_in_use() && waited.look(Instant::now()) < HANDOVER_DEADLINE => {
                    tokio::time::sleep(HANDOVER_INTERVAL).await;
                }
                result => return result,
            }
        }
    }

    fn open(&self, listener: endpoint::Listener, file: Option<SocketFile>) -> io::Result<HttpListener> {
        // The standard library's limit is 128. A second call of `listen` changes it.
        match &listener {
            endpoint::Listener::Tcp(listener) => rustix::net::listen(listener, BACKLOG)?,
            endpoint::Listener::Unix(listener) => rustix::net::listen(listener, BACKLOG)?,
        }
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let url = match &listener {
            endpoint::Listener::Tcp(listener) => format!("{scheme}://{}", listener.local_addr()?),
            endpoint::Listener::Unix(_) => format!("unix:{}", self.endpoint),
        };
        Ok(HttpListener { listener: Listener::from_std(listener)?, tls: self.tls.clone(), url, _file: file })
    }
}

impl HttpListener {
    /// Returns the next connection.
    ///
    /// # Errors
    /// When the connection ended before it was accepted, or the system lacks resources for it.
    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        self.listener.accept().await
    }

    /// Returns the TLS identity for handshakes, if TLS is used.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }
}

impl fmt::Display for HttpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::args;

    fn resolve(flags: &[&str]) -> Result<HttpEndpoint, String> {
        HttpEndpoint::resolve(&args(flags).http).map_err(|error| error.to_string())
    }

    #[test]
    fn a_hostname_must_be_an_address() {
        let HttpEndpoint { endpoint, tls } = resolve(&["--hostname=::", "-p", "1"]).unwrap();
        assert!(tls.is_none());
        assert_eq!(endpoint.to_string(), "tcp://[::]:1");
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
            error.starts_with("cannot listen on 127.0.0.1:") && error.contains("choose another port with --port"),
            "{error}"
        );
        assert!(endpoint.listen().is_err());
    }

    #[tokio::test]
    async fn many_clients_may_come_before_one_is_accepted() {
        let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let num_clients = allowed.trim().parse().unwrap_or(128).min(200);
        let listener = resolve(&["--hostname=127.0.0.1", "--port=0"]).unwrap().listen().unwrap();
        let address = listener.to_string().strip_prefix("http://").unwrap().parse().unwrap();
        // A connection for which there is no room is never made, because nobody accepts.
        let connect = |_| std::net::TcpStream::connect_timeout(&address, crate::testing::DEADLINE).unwrap();
        let clients: Vec<std::net::TcpStream> = (0..num_clients).map(connect).collect();
        assert_eq!(clients.len(), num_clients);
    }

    #[tokio::test]
    async fn a_socket_is_there_while_somebody_listens() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let endpoint = resolve(&[&format!("--uds={}", path.display()), "--hostname=ignored"]).unwrap();
        endpoint.probe().unwrap();
        assert!(!path.exists());
        let listener = endpoint.listen().unwrap();
        assert_eq!(listener.to_string(), format!("unix:{}", path.display()));
        assert!(endpoint.probe().unwrap_err().to_string().contains("in use"));
        drop(listener);
        assert!(!path.exists());
        let nowhere = resolve(&["--uds=/no/dir/s"]).unwrap().probe().unwrap_err();
        assert!(std::error::Error::source(&nowhere).is_none(), "{nowhere:?}");
        insta::assert_snapshot!(
            nowhere,
            @"cannot listen on /no/dir/s: No such file or directory (os error 2); --uds sets the path"
        );
    }
}
