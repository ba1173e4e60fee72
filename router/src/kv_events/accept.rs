//! The connections of the publisher: peers that connect, and the peer to which the publisher connects.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use endpoint::{Endpoint, SocketFile};
use metrics::Gauge;
use telemetry::Throttle;
use tokio::net::TcpStream;
use tokio::time::Instant;
use zmtp::SocketType;

use super::peer::{Peer, PeerError};
use super::{Feed, replay, subscriber};
use crate::connections::CONNECTION_BYTES;
use crate::memory::Part;
use crate::places::{Place, Places, Rule, address};
use sockets::{Listener, Socket, Stream};

/// The maximum numbers of open connections. For another one, the subscriber that has waited longest without a
/// subscription goes, or the peer whose last request for a replay is longest ago.
const MAX_SUBSCRIBERS: usize = 64;
const MAX_REPLAYS: usize = 16;

/// The pause after an accept that failed, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The pauses between attempts to connect. Each is twice as long as the one before, up to the maximum.
const MIN_CONNECT_PAUSE: Duration = Duration::from_millis(100);
const MAX_CONNECT_PAUSE: Duration = Duration::from_secs(5);

/// The maximum time of an attempt to connect.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// The kernel closes a connection whose peer does not respond for about this time: it asks after [`KEEPALIVE_IDLE`],
/// then every [`KEEPALIVE_INTERVAL`].
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Subscriber,
    Replay,
}

/// A listener, and the purpose of its connections.
#[derive(Debug)]
pub(super) struct Door {
    listener: Listener,
    kind: Kind,
    places: Places,
    /// The file of a Unix socket, which is removed at the end.
    _file: Option<SocketFile>,
}

/// A subscriber that listens, and to which the publisher connects again and again.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) endpoint: Endpoint,
}

impl Door {
    /// Converts a listener of the standard library. `num_subscribers` shows the number of connections that have
    /// subscribed.
    ///
    /// # Errors
    /// When the system refuses to register the listener.
    pub(super) fn new(
        listener: endpoint::Listener,
        file: Option<SocketFile>,
        kind: Kind,
        num_subscribers: Gauge,
    ) -> io::Result<Self> {
        let memory = Part::new(kind.max_connections() * CONNECTION_BYTES);
        let places = Places::new(memory, (kind.name(), Rule::EqualShares), num_subscribers);
        Ok(Self { listener: Listener::from_std(listener)?, kind, places, _file: file })
    }

    /// Accepts and serves connections for ever.
    pub(super) async fn serve(self, feed: Arc<Feed>) {
        let mut failures = Throttle::default();
        loop {
            match self.listener.accept().await {
                Ok(stream) => {
                    let place = Arc::new(self.places.take(address(&stream)).await);
                    let (kind, feed) = (self.kind, Arc::clone(&feed));
                    tokio::spawn(async move {
                        let error = tokio::select! {
                            error = kind.serve(prepare(stream), Some(Arc::clone(&place)), feed) => error,
                            () = place.dismissed() => PeerError::Dismissed,
                        };
                        tracing::debug!(?kind, "a connection for KV events has ended: {error}");
                    });
                }
                Err(error) => {
                    if let Some(num) = failures.count(Instant::now().into_std()) {
                        tracing::warn!(
                            "a connection for KV events cannot be accepted: {error} ({num} since the last such line)"
                        );
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl Connector {
    /// Connects and publishes for ever.
    pub(super) async fn serve(self, feed: Arc<Feed>) {
        let mut pause = MIN_CONNECT_PAUSE;
        loop {
            let began_at = Instant::now();
            let connected = tokio::time::timeout(CONNECT_DEADLINE, Socket::connect(&self.endpoint)).await;
            let reason = match connected {
                Ok(Ok(socket)) => {
                    socket.tcp().map_or(Ok(()), set_options).unwrap_or_else(|error| note(&error));
                    tracing::info!(endpoint = %self.endpoint, "connected, to publish KV events");
                    Kind::Subscriber.serve(socket, None, Arc::clone(&feed)).await.to_string()
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no connection within {} s", CONNECT_DEADLINE.as_secs()),
            };
            // A peer that ends each connection at once is not asked more often than one that does not listen.
            if began_at.elapsed() > 2 * CONNECT_DEADLINE {
                pause = MIN_CONNECT_PAUSE;
            }
            if pause == MIN_CONNECT_PAUSE {
                tracing::warn!(endpoint = %self.endpoint, "no gateway receives KV events yet; connecting again: {reason}");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_CONNECT_PAUSE);
        }
    }
}

impl Kind {
    fn max_connections(self) -> usize {
        match self {
            Self::Subscriber => MAX_SUBSCRIBERS,
            Self::Replay => MAX_REPLAYS,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Subscriber => "subscribers of KV events",
            Self::Replay => "replays of KV events",
        }
    }

    /// Serves a connection until it ends. A connection that this server has made has no place. Returns the reason of
    /// the end.
    async fn serve(self, socket: Socket, place: Option<Arc<Place>>, feed: Arc<Feed>) -> PeerError {
        match self {
            Self::Subscriber => subscriber::serve(Peer::new(socket, SocketType::Pub, place), feed).await,
            Self::Replay => replay::serve(Peer::new(socket, SocketType::Router, place), feed).await,
        }
    }
}

fn prepare(stream: Stream) -> Socket {
    let socket = Socket::new(stream);
    socket.tcp().map_or(Ok(()), set_options).unwrap_or_else(|error| note(&error));
    socket
}

fn note(error: &io::Error) {
    tracing::debug!("the options of a connection for KV events cannot be set: {error}");
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    // Keep-alive packets are not sent while other bytes wait to be acknowledged.
    let silence = KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_PROBES;
    Ok(sockopt::set_tcp_user_timeout(stream, u32::try_from(silence.as_millis()).unwrap_or(u32::MAX))?)
}
