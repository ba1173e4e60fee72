//! Events of the KV cache, in vLLM's form: ZeroMQ messages with the blocks that the prefix cache gained and lost, so
//! that gateways can send a prompt to the server that has its beginning in the cache.
//!
//! ```text
//!  batcher ──sink (bounded queue)──▶ encoder ──▶ log (bounded buffer) ──▶ subscriber, one task per connection
//!                                                                    └──▶ replay, one task per connection
//! ```
//!
//! Entry points: [`KvEventsConfig`], the flag; [`probe`], before a model is loaded; [`start`]. Nothing here can hold up
//! the batcher: a full queue drops events, and a slow subscriber misses messages.

mod accept;
mod address;
mod config;
mod log;
mod payload;
mod peer;
mod replay;
mod sink;
mod subscriber;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use endpoint::ListenError;
use metrics::Counter;

pub use config::{KvEventsConfig, KvEventsConfigError, Publisher};
pub(crate) use sink::Sink;

use accept::{Connector, Door, Kind};
use address::{Address, Bound};
use log::{Log, MAX_LOG_BYTES};
use sink::MAX_QUEUE_BYTES;

/// The memory that the queue and the log may hold, in bytes.
pub(crate) const MAX_BYTES: usize = MAX_LOG_BYTES + MAX_QUEUE_BYTES;

/// The error when the server cannot listen for subscribers.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum KvEventsError {
    #[error("`{key}` of `kv_events_config`: {error}; choose another address, or port 0 for one that is free")]
    Listen { key: &'static str, error: ListenError },
    #[error("the sockets of `kv_events_config` cannot be registered")]
    Register { source: io::Error },
}

/// The published messages, and the rules for who gets which.
#[derive(Debug)]
struct Feed {
    log: Log,
    topic: Vec<u8>,
    /// The number of messages that a subscriber may be behind.
    hwm: usize,
    /// The number of messages that a replay may contain.
    buffer_steps: usize,
}

/// A running publisher.
#[derive(Debug)]
pub(crate) struct KvEvents {
    pub(crate) sink: Sink,
    /// The configuration, with the addresses for peers.
    pub(crate) source: KvEventsConfig,
}

/// The addresses at which the server listens.
#[derive(Debug)]
struct Doors {
    /// `None` if the server connects to its subscriber.
    publisher: Option<Bound>,
    replays: Option<Bound>,
}

/// Checks that the server can listen for subscribers: listens and stops at once.
///
/// # Errors
/// When an address is in use, or is not one of this machine.
pub fn probe(config: &KvEventsConfig) -> Result<(), KvEventsError> {
    if config.is_on() { bind(config).map(drop) } else { Ok(()) }
}

/// Listens for subscribers and starts the tasks of the publisher. Must be called in a runtime. `num_dropped` counts the
/// steps whose events were dropped.
///
/// # Errors
/// When an address is in use, or is not one of this machine.
pub(crate) fn start(config: &KvEventsConfig, block_size: u32, num_dropped: Counter) -> Result<KvEvents, KvEventsError> {
    let Doors { publisher, replays } = bind(config)?;
    let (hwm, buffer_steps) = (config.hwm, config.buffer_steps);
    let log = Log::new(hwm.max(buffer_steps), MAX_LOG_BYTES);
    let feed = Arc::new(Feed { log, topic: config.topic.clone().into_bytes(), hwm, buffer_steps });
    let (sink, batches_rx) = Sink::new(config.max_queue_size, num_dropped);
    let mut source = config.clone();
    let open = |bound: Option<Bound>, kind: Kind, address: &mut String| -> io::Result<()> {
        let Some(Bound { listener, file, address: bound }) = bound else { return Ok(()) };
        *address = bound;
        tokio::spawn(Door::new(listener, file, kind)?.serve(Arc::clone(&feed)));
        Ok(())
    };
    let register = |source| KvEventsError::Register { source };
    open(publisher, Kind::Subscriber, &mut source.endpoint).map_err(register)?;
    if let Some(address) = &mut source.replay_endpoint {
        open(replays, Kind::Replay, address).map_err(register)?;
    }
    if let Ok(Address::Connect(endpoint)) = config.address() {
        tokio::spawn(Connector { endpoint }.serve(Arc::clone(&feed)));
    }
    let replay = source.replay_endpoint.as_deref().unwrap_or("none");
    tracing::info!(endpoint = source.endpoint, replay, topic = source.topic, "KV events are published");
    tokio::spawn(sink::encode_all(batches_rx, feed, block_size));
    Ok(KvEvents { sink, source })
}

fn bind(config: &KvEventsConfig) -> Result<Doors, KvEventsError> {
    let listen = |key, address: Option<Address>, text: &str| match address {
        Some(address) => address.bind(text).map_err(|error| KvEventsError::Listen { key, error }),
        None => Ok(None),
    };
    // Both addresses were parsed with the configuration.
    let publisher = listen("endpoint", config.address().ok(), &config.endpoint)?;
    let replay_text = config.replay_endpoint.as_deref().unwrap_or_default();
    let replays = listen("replay_endpoint", config.replay_address().ok().flatten(), replay_text)?;
    Ok(Doors { publisher, replays })
}
