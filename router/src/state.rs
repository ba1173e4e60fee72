//! The state that request handlers share: the generator, information about the server, its health, its metrics and
//! more.
//!
//! Sequences, slots and blocks are not here, because the scheduler owns them.

use std::sync::Arc;

use proto::{ModelInfo, SamplingDefaults};
use tokio::sync::watch;

use crate::api::ComputeType;
use crate::api_keys::ApiKeys;
use crate::args::GenerationConfig;
use crate::aside::Aside;
use crate::config::{Config, ServingLimits};
use crate::generation::Generator;
use crate::kv_events::KvEventsConfig;
use crate::lifecycle::{Shutdown, Stage};
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
    /// True while every shard gives signs of life.
    pub(crate) beating: watch::Receiver<bool>,
    /// The publisher of changes of the KV cache, if they are published.
    pub(crate) kv_event_source: Option<KvEventsConfig>,
}

#[derive(Debug)]
struct Shared {
    info: ServerInfo,
    generator: Generator,
    chat: Chat,
    metrics: Arc<Metrics>,
    shutdown: Shutdown,
    compute_type: ComputeType,
    /// The value of the field `system_fingerprint` of OpenAI's API.
    system_fingerprint: String,
    sampling_defaults: SamplingDefaults,
    aside: Aside,
}

impl AppState {
    pub(crate) fn new(
        info: ServerInfo,
        generator: Generator,
        chat: Chat,
        metrics: Arc<Metrics>,
        shutdown: Shutdown,
    ) -> Self {
        let compute_type = match &info.config.compute_type {
            Some(compute_type) => ComputeType::new(compute_type),
            None => ComputeType::new(&format!("{}-{}", info.config.num_shards, info.model.device)),
        };
        let sampling_defaults = match info.config.generation_config {
            GenerationConfig::Neutral => SamplingDefaults::default(),
            GenerationConfig::Model => info.model.sampling_defaults.unwrap_or_default(),
        };
        let system_fingerprint = system_fingerprint(&info.config, &info.model);
        let aside = Aside::new();
        Self(Arc::new(Shared {
            info,
            generator,
            chat,
            metrics,
            shutdown,
            compute_type,
            system_fingerprint,
            sampling_defaults,
            aside,
        }))
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

    /// True while new requests are served.
    pub(crate) fn is_healthy(&self) -> bool {
        self.shutdown().stage() == Stage::Serving
    }

    /// True while new requests are served and no sign of life of a shard is missing.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_healthy() && *self.info().beating.borrow()
    }

    /// Returns the progress of the server's end.
    pub(crate) fn shutdown(&self) -> &Shutdown {
        &self.0.shutdown
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

    /// Returns the value of the field `system_fingerprint` of OpenAI's API.
    pub(crate) fn system_fingerprint(&self) -> &str {
        &self.0.system_fingerprint
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

/// Returns the name of everything but the model and the request that may change the bits of an answer: the version, the
/// build, the number of shards, the device and the instruction set. As in TGI, `native` stands for a build without a
/// name.
fn system_fingerprint(config: &Config, model: &ModelInfo) -> String {
    let build = config.build.as_ref().map_or("native", |build| build.id.short());
    let (version, num_shards, device) = (env!("CARGO_PKG_VERSION"), config.num_shards, &model.device);
    let instruction_set = Some(&model.instruction_set).filter(|name| !name.is_empty());
    let instruction_set = instruction_set.map_or_else(String::new, |name| format!("-{name}"));
    format!("{version}-{build}-{num_shards}-{device}{instruction_set}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use build_id::{Build, BuildId};

    use super::*;
    use crate::testing::config;

    #[test]
    fn builds_shards_devices_and_instruction_sets_have_fingerprints_of_their_own() {
        let of = |build: Option<&str>, num_shards, device: &str, instruction_set: &str| {
            let config = config(Path::new("/shard"), &[]);
            let named = config.build.clone().expect("tests have a build");
            let build = build.map(|id| Build { id: BuildId(id.to_owned()), ..named });
            let (device, instruction_set) = (device.to_owned(), instruction_set.to_owned());
            let model = ModelInfo { device, instruction_set, ..ModelInfo::default() };
            system_fingerprint(&Config { build, num_shards, ..config }, &model)
        };
        let long = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(of(Some(long), 1, "cpu", "avx512-vnni"), "0.1.0-0123456789ab-1-cpu-avx512-vnni");
        assert_eq!(of(Some("sha256-fedcba9876543210"), 2, "cpu", "avx2"), "0.1.0-sha256-fedcba987654-2-cpu-avx2");
        assert_eq!(of(Some(long), 4, "tpu", ""), "0.1.0-0123456789ab-4-tpu");
        assert_eq!(of(None, 1, "cpu", "avx2"), "0.1.0-native-1-cpu-avx2");
    }
}
