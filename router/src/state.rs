//! The state that request handlers share: the generator, information about the server, its health, its metrics and
//! more.
//!
//! Sequences, slots and blocks are not here, because the scheduler owns them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proto::{ModelInfo, SamplingDefaults};

use crate::api::ComputeType;
use crate::api_keys::ApiKeys;
use crate::args::GenerationConfig;
use crate::aside::Aside;
use crate::config::{Config, ServingLimits};
use crate::generation::Generator;
use crate::kv_events::KvEventsConfig;
use crate::memory::MemoryBudget;
use crate::metrics::Metrics;
use crate::text::Chat;

/// The state shared by all requests. Clones are cheap.
#[derive(Debug, Clone)]
pub(crate) struct AppState(Arc<Shared>);

/// The configuration, the limits and the model of the server.
#[derive(Debug)]
pub(crate) struct ServerInfo {
    pub(crate) config: Config,
    pub(crate) limits: ServingLimits,
    pub(crate) model: ModelInfo,
    pub(crate) memory: MemoryBudget,
    /// The publisher of changes of the KV cache, if they are published.
    pub(crate) kv_event_source: Option<KvEventsConfig>,
}

/// A flag that is true while requests can be served. Clones share the flag.
#[derive(Debug, Clone)]
pub(crate) struct Health(Arc<AtomicBool>);

#[derive(Debug)]
struct Shared {
    info: ServerInfo,
    generator: Generator,
    chat: Chat,
    metrics: Arc<Metrics>,
    health: Health,
    compute_type: ComputeType,
    sampling_defaults: SamplingDefaults,
    aside: Aside,
}

impl AppState {
    pub(crate) fn new(
        info: ServerInfo,
        generator: Generator,
        chat: Chat,
        metrics: Arc<Metrics>,
        health: Health,
    ) -> Self {
        let compute_type = match &info.config.compute_type {
            Some(compute_type) => ComputeType::new(compute_type),
            None => ComputeType::new(&format!("{}-{}", info.config.num_shards, info.model.device)),
        };
        let sampling_defaults = match info.config.generation_config {
            GenerationConfig::Neutral => SamplingDefaults::default(),
            GenerationConfig::Model => info.model.sampling_defaults.unwrap_or_default(),
        };
        let aside = Aside::new();
        Self(Arc::new(Shared { info, generator, chat, metrics, health, compute_type, sampling_defaults, aside }))
    }

    pub(crate) fn info(&self) -> &ServerInfo {
        &self.0.info
    }

    pub(crate) fn generator(&self) -> &Generator {
        &self.0.generator
    }

    pub(crate) fn chat(&self) -> &Chat {
        &self.0.chat
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.0.health.is_healthy()
    }

    pub(crate) fn api_keys(&self) -> &ApiKeys {
        &self.0.info.config.api_keys
    }

    /// Returns the sampling parameters for requests that do not set them.
    pub(crate) fn sampling_defaults(&self) -> &SamplingDefaults {
        &self.0.sampling_defaults
    }

    /// Returns the name by which clients know the model.
    pub(crate) fn model_id(&self) -> &str {
        &self.served_names()[0]
    }

    /// The names by which clients know the model, at least one.
    pub(crate) fn served_names(&self) -> &[String] {
        &self.0.info.config.served_names
    }

    pub(crate) fn compute_type(&self) -> &ComputeType {
        &self.0.compute_type
    }

    /// Returns the limit under which long work runs on separate threads.
    pub(crate) fn aside(&self) -> &Aside {
        &self.0.aside
    }

    /// Returns the memory budget for requests.
    pub(crate) fn memory(&self) -> &MemoryBudget {
        &self.0.info.memory
    }

    /// Returns the maximum size of a request body, in bytes.
    pub(crate) fn payload_limit_bytes(&self) -> usize {
        self.0.info.config.payload_limit_bytes
    }
}

impl Health {
    /// Creates a healthy state.
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// Marks the server as unhealthy until it ends, because it is stopping or its shards failed.
    pub(crate) fn lose(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn is_healthy(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
