//! `GET /info`: facts about the server.
//!
//! The response has all fields of TGI's newest version, and those of older versions that dashboards still read. An
//! unknown value is `null`.

use axum::Json;
use axum::extract::State;
use build_id::Build;
use serde::Serialize;
use utoipa::ToSchema;

use crate::state::AppState;

/// The response of `GET /info`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Info {
    model_id: String,
    model_sha: Option<String>,
    model_dtype: String,
    model_device_type: String,
    model_pipeline_tag: Option<String>,
    max_concurrent_requests: u32,
    max_best_of: u32,
    max_stop_sequences: u32,
    max_input_tokens: u32,
    max_total_tokens: u32,
    waiting_served_ratio: f32,
    max_batch_total_tokens: u32,
    max_waiting_tokens: u32,
    max_batch_size: u32,
    validation_workers: u32,
    max_client_batch_size: u32,
    router: &'static str,
    version: &'static str,
    /// The commit of the executable, with `-dirty` appended if files had been changed since.
    sha: Option<&'static str>,
    docker_label: Option<String>,
    build: Option<BuildFacts>,
    /// The value of this field in the responses of OpenAI's API.
    system_fingerprint: String,
}

/// The executable and how it was compiled.
#[derive(Debug, Serialize, ToSchema)]
struct BuildFacts {
    /// The build id that the linker wrote into the executable, or `sha256-` and the hash of its contents.
    id: String,
    target: &'static str,
    profile: &'static str,
    /// The features of the processor that the compiler used everywhere. Kernels use more where the processor has them.
    features: Vec<&'static str>,
}

impl From<&Build> for BuildFacts {
    fn from(Build { id, target, profile, features, version: _, commit: _ }: &Build) -> Self {
        let features = features.split(',').filter(|name| !name.is_empty()).collect();
        Self { id: id.to_string(), target, profile, features }
    }
}

/// The handler of the route.
pub(super) async fn info(State(state): State<AppState>) -> Json<Info> {
    let info = state.info();
    let build = info.config.build.as_ref();
    let (args, limits) = (&info.config.limits, &info.limits);
    Json(Info {
        model_id: info.config.model_id.clone(),
        model_sha: info.config.revision.clone(),
        model_dtype: info.model.dtype.clone(),
        model_device_type: info.model.device.clone(),
        model_pipeline_tag: None,
        max_concurrent_requests: limits.request.max_concurrent_requests,
        max_best_of: limits.request.max_best_of,
        max_stop_sequences: limits.request.max_stop_sequences,
        max_input_tokens: limits.request.max_input_tokens,
        max_total_tokens: limits.request.max_total_tokens,
        waiting_served_ratio: info.config.batching.waiting_served_ratio,
        max_batch_total_tokens: limits.max_batch_total_tokens,
        max_waiting_tokens: info.config.batching.max_waiting_tokens,
        max_batch_size: limits.scheduler.max_batch_size,
        validation_workers: args.validation_workers,
        max_client_batch_size: args.max_client_batch_size,
        router: "text-generation-router",
        version: env!("CARGO_PKG_VERSION"),
        sha: build.and_then(|build| build.commit),
        docker_label: None,
        build: build.map(BuildFacts::from),
        system_fingerprint: state.system_fingerprint().to_owned(),
    })
}
