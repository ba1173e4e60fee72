//! The errors of the engine, and the kind that the router receives with each of them.
//!
//! Entry point: [`EngineError`].

use backend::{BackendError, Fault};
use collectives::CollectiveError;
use devices::{Device, NoAttentionError, NoQuantizeError, RanksError};
use model::graph::GraphError;
use model::models::ModelError;
use model::weights::WeightsError;
use proto::shard_error::Kind;
use proto::{MAX_HELD_BACK_TOKENS, ShardError, exit_status};

use crate::args::KvCacheDtype;
use crate::rows::RowError;

/// The error of a command, of loading the model, or of the checks before.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
    #[error(transparent)]
    Files(#[from] model_files::ModelFilesError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Isa(#[from] kernels::isa::IsaError),
    #[error("the graphs of a step cannot be built: {0}")]
    Graph(#[from] GraphError),
    #[error(transparent)]
    Ranks(#[from] RanksError),
    #[error(transparent)]
    Quantize(#[from] NoQuantizeError),
    #[error(transparent)]
    Attention(#[from] NoAttentionError),
    #[error(
        "--kv-cache-dtype is {kv_cache_dtype}, which is for --device {}; on {device} only auto is allowed",
        devices::listed(|device| device.takes_kv_cache_dtype)
    )]
    KvCacheDtype { kv_cache_dtype: KvCacheDtype, device: Device },
    #[error(
        "--threads is {asked}, but this process may use at most {available} (its processors, within its control \
         group's quota)"
    )]
    Threads { asked: usize, available: usize },
    #[error("--shard is {shard}, but must be below --num-shards {num_shards}")]
    NoSuchShard { shard: u32, num_shards: u32 },
    #[error("--shards-on-host is {on_host}, but must divide --num-shards {num_shards}")]
    ShardsOnHost { on_host: u32, num_shards: u32 },
    #[error("--peer-sockets is missing: shards on the CPUs of several hosts need a socket to each other shard")]
    NoPeerSockets,
    #[error("the router sent a wrong command, which is a defect of this server: {0}")]
    Row(#[from] RowError),
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error("the router sent a command before warm-up, which is a defect of this server")]
    NotWarm,
    #[error("warm-up has already been done")]
    AlreadyWarm,
    #[error("`{name}` is 0, but must be at least 1")]
    ZeroLimit { name: &'static str },
    #[error(
        "max_total_tokens is {max_total_tokens}, but the model takes at most {max_position_embeddings} \
         (max_position_embeddings); lower --max-total-tokens"
    )]
    BeyondModel { max_total_tokens: usize, max_position_embeddings: usize },
    #[error(
        "the KV cache would hold {max_batch_total_tokens} tokens, but one sequence of {max_total_tokens} \
         (max_total_tokens) needs {least}; raise {flag} or lower --max-total-tokens"
    )]
    CacheTooSmall { max_batch_total_tokens: usize, least: usize, max_total_tokens: usize, flag: &'static str },
    #[error(
        "the weights need {} of memory, but {} are available, {} too few; {advice}",
        size(*.needed_bytes), size(*.available_bytes), size(.needed_bytes.saturating_sub(*.available_bytes))
    )]
    WeightsMemory { needed_bytes: u64, available_bytes: u64, advice: String },
    #[error(
        "--kv-cache-memory is {}, but {} are available for each shard; lower it, or pass a share such as 60%",
        size(*.asked_bytes), size(*.available_bytes)
    )]
    KvCacheMemory { asked_bytes: u64, available_bytes: u64 },
    #[error(
        "{num_tokens} tokens need {} of memory, but {} are available; lower {flag}",
        size(*.needed_bytes), size(*.available_bytes)
    )]
    OutOfMemory { num_tokens: usize, needed_bytes: u64, available_bytes: u64, flag: &'static str },
    #[error(
        "{num_slots} sequences of {max_total_tokens} tokens need 2^31 or more entries of the token history; lower \
         --max-batch-size"
    )]
    HistoryTooLarge { num_slots: usize, max_total_tokens: usize },
    #[error(
        "`min_new_tokens` is for models with at most {MAX_HELD_BACK_TOKENS} end-of-sequence tokens; this one has \
         {num_eos_tokens}"
    )]
    EosTokens { num_eos_tokens: usize },
    #[error(
        "the router skips the first {num_tokens} tokens of slot {slot}, which is a defect of this server: this model \
         must read them, because it has states besides the KV cache"
    )]
    SkippedPrefix { slot: u32, num_tokens: usize },
    #[error(
        "the model's scores of the next token are NaN or infinite in the warm-up, so it can generate nothing: a weight \
         or a number in its configuration, such as the epsilon of the norms or rope_theta, is wrong, or its activations \
         exceed what {dtype} can represent; compare the files with the published ones, or try another --dtype"
    )]
    NotFinite { dtype: String },
}

impl EngineError {
    /// True for errors of the backend and of graphs. If they end a step midway, neither the shard nor the router knows
    /// the state of its rows.
    pub(crate) fn leaves_rows_unknown(&self) -> bool {
        matches!(self, Self::Backend(_) | Self::Graph(_))
    }

    /// Returns the exit status of a process that this error ends.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::Backend(BackendError::Device { fault: Fault::Absent, .. }) => exit_status::NO_DEVICE,
            Self::Isa(_) => exit_status::CONFIGURATION,
            _ => match self.kind() {
                Kind::Model | Kind::OutOfMemory => exit_status::CONFIGURATION,
                // Another rank caused the error.
                Kind::Peer | Kind::Aborted => exit_status::FAILURE,
                Kind::Unspecified | Kind::Protocol | Kind::Version | Kind::Device | Kind::Internal => {
                    exit_status::DEVICE
                }
            },
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Files(_) | Self::Model(_) | Self::Weights(_) | Self::BeyondModel { .. } | Self::NotFinite { .. } => {
                Kind::Model
            }
            Self::Row(_)
            | Self::EosTokens { .. }
            | Self::SkippedPrefix { .. }
            | Self::NotWarm
            | Self::AlreadyWarm
            | Self::ZeroLimit { .. } => Kind::Protocol,
            Self::CacheTooSmall { .. }
            | Self::WeightsMemory { .. }
            | Self::KvCacheMemory { .. }
            | Self::OutOfMemory { .. }
            | Self::HistoryTooLarge { .. } => Kind::OutOfMemory,
            Self::Backend(error) => backend_kind(error),
            Self::Isa(_) => Kind::Device,
            Self::Graph(_) | Self::NoSuchShard { .. } | Self::ShardsOnHost { .. } | Self::NoPeerSockets => {
                Kind::Internal
            }
            Self::Ranks(_)
            | Self::Quantize(_)
            | Self::Attention(_)
            | Self::KvCacheDtype { .. }
            | Self::Threads { .. } => Kind::Model,
        }
    }
}

fn backend_kind(error: &BackendError) -> Kind {
    match error {
        BackendError::Weights(_) => Kind::Model,
        BackendError::Allocate { .. } => Kind::OutOfMemory,
        BackendError::Collective { source: CollectiveError::Deadline { .. }, .. } => Kind::Peer,
        BackendError::Collective { source: CollectiveError::Aborted { .. } | CollectiveError::Lost { .. }, .. } => {
            Kind::Aborted
        }
        BackendError::Collective { .. } | BackendError::NoCollectivePath { .. } => Kind::Device,
        BackendError::Memory(_) | BackendError::NotAllocated => Kind::Internal,
        BackendError::Device { fault, .. } => match fault {
            Fault::Absent | Fault::Failed => Kind::Device,
            Fault::OutOfMemory => Kind::OutOfMemory,
            Fault::Internal => Kind::Internal,
        },
    }
}

/// Returns a size in decimal units, such as `1.50 GB`.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [(f64, &str); 4] = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match UNITS.iter().find(|(unit, _)| bytes as f64 >= *unit) {
        Some((unit, name)) => format!("{:.2} {name}", bytes as f64 / unit),
        None => format!("{bytes} bytes"),
    }
}

impl From<&EngineError> for ShardError {
    fn from(error: &EngineError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}
