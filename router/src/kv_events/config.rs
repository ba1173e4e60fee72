//! `--kv-events-config`: a JSON object with vLLM's keys and defaults.
//!
//! Entry point: [`KvEventsConfig`], which is parsed from text and printed as the same JSON. A mistake is an error that
//! names the key, its value and what is allowed.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::address::{Address, AddressError};

/// The keys of the object.
const KEYS: [&str; 8] = [
    "enable_kv_cache_events",
    "publisher",
    "endpoint",
    "replay_endpoint",
    "buffer_steps",
    "hwm",
    "max_queue_size",
    "topic",
];

/// The maximum number of messages in a queue or buffer.
const MAX_MESSAGES: u64 = 1_000_000;

/// The maximum size of the topic, in bytes.
const MAX_TOPIC_BYTES: usize = 1024;

/// The settings of the publisher of changes of the KV cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct KvEventsConfig {
    /// True if changes are recorded.
    pub enable_kv_cache_events: bool,
    /// The publisher of the recorded changes.
    pub publisher: Publisher,
    /// The address to which subscribers connect, or to which the server connects.
    pub endpoint: String,
    /// The address at which subscribers ask for messages that they missed.
    pub replay_endpoint: Option<String>,
    /// The number of messages that subscribers can ask for again.
    pub buffer_steps: usize,
    /// The number of messages that wait for a slow subscriber.
    pub hwm: usize,
    /// The length of a queue that vLLM has. Here a step's changes are published at once, so it changes nothing.
    pub max_queue_size: usize,
    /// The first frame of each message.
    pub topic: String,
}

/// The publisher of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = KvEventsPublisher)]
#[serde(rename_all = "lowercase")]
pub enum Publisher {
    /// Changes are not published.
    Null,
    /// A ZeroMQ socket.
    Zmq,
}

/// The error for text that is not such an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct KvEventsConfigError(#[from] Reason);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Reason {
    #[error("{0:?} is not a JSON object, such as {{\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://*:5557\"}}")]
    NotAnObject(String),
    #[error("there is no key {0:?}; the keys are {list}", list = KEYS.join(", "))]
    UnknownKey(String),
    #[error("`{key}` is {value}; it must be {allowed}")]
    Value { key: &'static str, value: String, allowed: &'static str },
    #[error("`{key}`: {error}")]
    Address { key: &'static str, error: AddressError },
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        Self {
            enable_kv_cache_events: false,
            publisher: Publisher::Null,
            endpoint: "tcp://*:5557".to_owned(),
            replay_endpoint: None,
            buffer_steps: 10_000,
            hwm: 100_000,
            max_queue_size: 100_000,
            topic: String::new(),
        }
    }
}

impl KvEventsConfig {
    /// True if changes are published.
    pub(crate) fn is_on(&self) -> bool {
        self.enable_kv_cache_events && self.publisher == Publisher::Zmq
    }

    /// Returns the address of the publisher.
    ///
    /// # Errors
    /// When the endpoint is not an address, which is noticed before, when the object is parsed.
    pub(super) fn address(&self) -> Result<Address, AddressError> {
        Address::of_publisher(&self.endpoint)
    }

    /// Returns the address for replays, if there is one.
    ///
    /// # Errors
    /// When the endpoint is not an address, which is noticed before, when the object is parsed.
    pub(super) fn replay_address(&self) -> Result<Option<Address>, AddressError> {
        self.replay_endpoint.as_deref().map(Address::of_replays).transpose()
    }
}

impl FromStr for KvEventsConfig {
    type Err = KvEventsConfigError;

    /// Parses the object. Empty text, such as that of a variable without a value, is an empty object.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(parse(text)?)
    }
}

fn parse(text: &str) -> Result<KvEventsConfig, Reason> {
    let object: Map<String, Value> = match text.trim() {
        "" => Map::new(),
        text => serde_json::from_str(text).map_err(|_| Reason::NotAnObject(text.to_owned()))?,
    };
    if let Some(key) = object.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(Reason::UnknownKey(key.clone()));
    }
    let given = Given(&object);
    let default = KvEventsConfig::default();
    let enable_kv_cache_events = given.flag("enable_kv_cache_events")?;
    let by_default = if enable_kv_cache_events { Publisher::Zmq } else { Publisher::Null };
    let config = KvEventsConfig {
        enable_kv_cache_events,
        publisher: given.publisher()?.unwrap_or(by_default),
        endpoint: given.text("endpoint", "text")?.unwrap_or(default.endpoint),
        replay_endpoint: given.text("replay_endpoint", "text or null")?,
        buffer_steps: given
            .count("buffer_steps", 0, "a whole number from 0 to 1000000")?
            .unwrap_or(default.buffer_steps),
        hwm: given.count("hwm", 1, LEAST_ONE)?.unwrap_or(default.hwm),
        max_queue_size: given.count("max_queue_size", 1, LEAST_ONE)?.unwrap_or(default.max_queue_size),
        topic: given.text("topic", "text")?.unwrap_or(default.topic),
    };
    if config.topic.len() > MAX_TOPIC_BYTES {
        let value = format!("text of {} bytes", config.topic.len());
        return Err(Reason::Value { key: "topic", value, allowed: "text of at most 1024 bytes" });
    }
    config.address().map_err(|error| Reason::Address { key: "endpoint", error })?;
    config.replay_address().map_err(|error| Reason::Address { key: "replay_endpoint", error })?;
    Ok(config)
}

const LEAST_ONE: &str = "a whole number from 1 to 1000000";

/// The keys that the user gave.
struct Given<'a>(&'a Map<String, Value>);

impl Given<'_> {
    /// Returns the value of a key as `read` understands it. Returns `None` if the key is absent or null.
    fn value<T>(
        &self,
        key: &'static str,
        allowed: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, Reason> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match read(value) {
                Some(value) => Ok(Some(value)),
                None => Err(Reason::Value { key, value: value.to_string(), allowed }),
            },
        }
    }

    fn flag(&self, key: &'static str) -> Result<bool, Reason> {
        Ok(self.value(key, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    fn text(&self, key: &'static str, allowed: &'static str) -> Result<Option<String>, Reason> {
        self.value(key, allowed, |value| value.as_str().map(str::to_owned))
    }

    fn count(&self, key: &'static str, least: u64, allowed: &'static str) -> Result<Option<usize>, Reason> {
        let is_allowed = |number: &u64| (least..=MAX_MESSAGES).contains(number);
        self.value(key, allowed, |value| value.as_u64().filter(is_allowed).map(|number| number as usize))
    }

    fn publisher(&self) -> Result<Option<Publisher>, Reason> {
        self.value("publisher", "\"zmq\" or \"null\"", |value| match value.as_str()? {
            "zmq" => Some(Publisher::Zmq),
            "null" => Some(Publisher::Null),
            _ => None,
        })
    }
}

impl fmt::Display for KvEventsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_vllm() {
        let config: KvEventsConfig = r#"{"enable_kv_cache_events": true}"#.parse().unwrap();
        assert!(config.is_on());
        let expected = r#"{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":null,"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":""}"#;
        assert_eq!(config.to_string(), expected);
        assert_eq!(expected.parse(), Ok(config));
        for off in ["", "{}", r#"{"publisher": "zmq"}"#, r#"{"enable_kv_cache_events": true, "publisher": "null"}"#] {
            assert!(!off.parse::<KvEventsConfig>().unwrap().is_on(), "{off}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("[]", r#""[]" is not a JSON object, such as"#),
            ("{", r#""{" is not a JSON object, such as"#),
            (r#"{"port": 1}"#, r#"there is no key "port"; the keys are enable_kv_cache_events, publisher, endpoint, "#),
            (r#"{"enable_kv_cache_events": 1}"#, "`enable_kv_cache_events` is 1; it must be true or false"),
            (r#"{"publisher": "kafka"}"#, r#"`publisher` is "kafka"; it must be "zmq" or "null""#),
            (r#"{"hwm": 0}"#, "`hwm` is 0; it must be a whole number from 1 to 1000000"),
            (r#"{"hwm": 1.5}"#, "`hwm` is 1.5; it must be a whole number"),
            (r#"{"max_queue_size": 1000001}"#, "`max_queue_size` is 1000001; it must be a whole number"),
            (r#"{"buffer_steps": -1}"#, "`buffer_steps` is -1; it must be a whole number from 0"),
            (r#"{"topic": 7}"#, "`topic` is 7; it must be text"),
            (r#"{"endpoint": "5557"}"#, "`endpoint`: \"5557\" is not an address"),
            (r#"{"replay_endpoint": "tcp://a:1"}"#, "`replay_endpoint`: \"tcp://a:1\" is not an address"),
        ] {
            let error = text.parse::<KvEventsConfig>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        let long = format!(r#"{{"topic": "{}"}}"#, "x".repeat(1025));
        let error = long.parse::<KvEventsConfig>().unwrap_err().to_string();
        insta::assert_snapshot!(error, @"`topic` is text of 1025 bytes; it must be text of at most 1024 bytes");
    }
}
