//! Events of the KV cache, in vLLM's form: ZeroMQ messages with the blocks that the prefix cache gained and lost, so
//! that gateways can send a prompt to the server that has its beginning in the cache.
//!
//! ```text
//!  batcher ──▶ sink ──▶ log (bounded buffer) ──▶ subscriber, one task per connection
//!               │                          ├────▶ replay, one task per connection
//!               └────▶ state (all blocks) ─┘
//! ```
//!
//! Entry points: [`KvEventsConfig`], the flag; [`probe`], before a model is loaded; [`start`]. Nothing here can hold up
//! the batcher: a slow subscriber misses messages, and then gets all blocks again.

mod accept;
mod address;
mod config;
mod log;
mod payload;
mod peer;
mod replay;
mod sink;
mod state;
mod subscriber;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use endpoint::ListenError;
use metrics::{Counter, Gauge};

pub use config::{KvEventsConfig, KvEventsConfigError, Publisher};
pub(crate) use sink::Sink;

use accept::{Connector, Door, Kind};
use address::{Address, Bound};
use log::{Log, MAX_LOG_BYTES};
use state::Blocks;

use crate::memory::Part;

/// The minimum memory for messages with all blocks, in bytes. Several subscribers of a small cache get theirs at once.
const MIN_WHOLES_BYTES: usize = 4 << 20;

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
    /// The blocks that subscribers should know after the last message.
    blocks: Blocks,
    /// The number of tokens in a block.
    block_size: u32,
    /// The memory of messages with all blocks that are not written yet.
    wholes: Part,
    /// The number of messages that subscribers were too slow for.
    num_missed: Counter,
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

/// Returns the memory that the publisher of a cache with `num_blocks` blocks of `block_size` tokens may hold, in bytes.
pub(crate) fn max_bytes(num_blocks: u32, block_size: u32) -> usize {
    let num_blocks = num_blocks as usize;
    MAX_LOG_BYTES + state::max_bytes(num_blocks, block_size) + wholes_bytes(num_blocks, block_size)
}

/// Returns the memory for messages with all blocks: at least one of the largest, in bytes.
fn wholes_bytes(num_blocks: usize, block_size: u32) -> usize {
    payload::max_bytes(num_blocks, block_size).max(MIN_WHOLES_BYTES)
}

/// Listens for subscribers and starts the tasks of the publisher of a cache with `num_blocks` blocks of `block_size`
/// tokens. Must be called in a runtime. `num_missed` counts messages that subscribers were too slow for, and
/// `num_subscribers` shows the number of peers with a subscription.
///
/// # Errors
/// When an address is in use, or is not one of this machine.
pub(crate) fn start(
    config: &KvEventsConfig,
    (num_blocks, block_size): (u32, u32),
    (num_missed, num_subscribers): (Counter, Gauge),
) -> Result<KvEvents, KvEventsError> {
    let Doors { publisher, replays } = bind(config)?;
    let (hwm, buffer_steps) = (config.hwm, config.buffer_steps);
    let feed = Arc::new(Feed {
        log: Log::new(hwm.max(buffer_steps), MAX_LOG_BYTES),
        blocks: Blocks::default(),
        block_size,
        wholes: Part::new(wholes_bytes(num_blocks as usize, block_size)),
        num_missed,
        topic: config.topic.clone().into_bytes(),
        hwm,
        buffer_steps,
    });
    let mut source = config.clone();
    let open = |bound: Option<Bound>, kind: Kind, address: &mut String| -> io::Result<()> {
        let Some(Bound { listener, file, address: bound }) = bound else { return Ok(()) };
        *address = bound;
        let shown = if kind == Kind::Subscriber { num_subscribers.clone() } else { Gauge::noop() };
        tokio::spawn(Door::new(listener, file, kind, shown)?.serve(Arc::clone(&feed)));
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
    Ok(KvEvents { sink: Sink::new(feed), source })
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
