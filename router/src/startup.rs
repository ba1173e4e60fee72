//! Turns the configuration into a server that can serve: connects to the shards, warms them up, sets the limits, and
//! creates the modules' state.
//!
//! This file opens no port and does not run the batcher.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use proto::{Warmup, WarmupReply};
use scheduler::{Pace, Work};
use tokio::sync::watch;

use crate::RouterError;
use crate::args::{BatchingArgs, LimitArgs};
use crate::batcher::{self, Batcher};
use crate::config::{Config, ServingLimits};
use crate::generation::{Generator, Permits};
use crate::grammar::GrammarCompiler;
use crate::kv_events::{self, KvEvents, KvEventsConfig, KvEventsError, Publisher};
use crate::lifecycle::Shutdown;
use crate::memory::MemoryBudget;
use crate::memory_size::MemorySize;
use crate::metrics::{Metrics, Served};
use crate::routes;
use crate::state::{AppState, ServerInfo};
use crate::text::{Chat, ModelText, TokenizerPool};
use crate::validation::Validator;
use shard_client::ShardGroup;

/// A server that is ready, except that its port is not open and its batcher does not run yet.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) app: Router,
    pub(crate) batcher: Batcher,
    /// Sending `true` ends the running sequences, then the batcher.
    pub(crate) stop_tx: watch::Sender<bool>,
    pub(crate) shutdown: Shutdown,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) limits: ServingLimits,
    pub(crate) memory: MemoryBudget,
}

/// Connects to the shards, warms them up and creates the server.
///
/// # Errors
/// When a shard is missing or fails, when the shards cannot meet the configured limits, or when a thread cannot be
/// started.
pub(crate) async fn start(config: Config, text: ModelText) -> Result<Started, RouterError> {
    let ModelText { tokenizer, chat_templates } = text;
    let build = config.build.as_ref().map(|build| build.id.to_string());
    let mut group = ShardGroup::connect(&config.shards, build).await?;
    let model = group.info().await?;
    if tokenizer.vocab_size() > model.vocab_size as usize {
        let (known, given) = (model.vocab_size, tokenizer.vocab_size());
        tracing::warn!(
            "the tokenizer has {given} tokens, but the model has only {known}; prompts with tokens that the model lacks \
             are refused"
        );
    }
    let warmup = group.warmup(wanted_limits(&config.limits, &config.batching), model.block_size).await?;
    let limits = config.serving_limits(&warmup, &model)?;
    tracing::debug!(?config, ?limits, ?model, ?warmup, "configuration");
    if config.batching.prefix_caching && !model.can_skip_prefix {
        tracing::info!(
            "no prefix cache: this model keeps state besides the KV cache, so each prompt is read from its first token"
        );
    }
    tracing::info!(
        memory = format!("{:.1} MiB", warmup.kv_cache_bytes as f64 / f64::from(1 << 20)),
        tokens = limits.max_batch_total_tokens,
        blocks = limits.scheduler.num_blocks,
        prefix_caching = limits.scheduler.caches_prefixes,
        "KV cache"
    );

    let publishes = config.kv_events.is_on();
    let cache = &limits.scheduler;
    let reserved_bytes = if publishes { kv_events::max_bytes(cache.num_blocks, cache.block_size_tokens) } else { 0 };
    let memory = MemoryBudget::new(config.memory_budget_bytes, machine::resident_bytes() + reserved_bytes);
    memory.announce();

    let served = Served {
        model_name: &config.served_names[0],
        block_size: model.block_size,
        num_blocks: limits.scheduler.num_blocks,
    };
    let metrics = Arc::new(Metrics::new(&limits.request, &served)?);
    metrics.programs_compiled.warmup.increment(u64::from(warmup.num_programs_compiled));
    metrics.batch_max_total_tokens.set(limits.max_batch_total_tokens);
    let (stop_tx, stop_rx) = watch::channel(false);
    let rules = batcher::Rules {
        limits: limits.scheduler.clone(),
        step_window: config.batching.step_window as usize,
        max_queued_tokens: config.limits.max_queued_tokens,
        pace: pace(&warmup, config.batching.step_target_ms),
    };
    let beating = group.beating();
    let (handle, mut batcher) = Batcher::new(rules, group, stop_rx, (Arc::clone(&metrics), memory.answers.clone()));
    let kv_event_source = publish_kv_events(&config, &limits, &metrics, &mut batcher)?;

    let tokenizer = Arc::new(tokenizer);
    let tokenizer_pool = TokenizerPool::spawn(&tokenizer, config.limits.validation_workers, memory.text.clone())
        .map_err(|source| RouterError::Thread { source })?;
    let chat = Chat::new(chat_templates, tokenizer_pool.clone(), limits.request.max_input_bytes());
    let grammars = (!config.limits.disable_grammar_support).then(|| {
        let memory_bytes = memory.grammars.limit_bytes();
        GrammarCompiler::new(Arc::clone(&tokenizer), model.vocab_size, model.eos_token_ids.clone(), memory_bytes)
    });
    let validator = Validator::new(limits.request.clone(), tokenizer_pool, grammars);
    let permits = Permits::new(limits.request.max_concurrent_requests, limits.request.num_tenants);
    let shutdown = Shutdown::new();
    let inside = (handle, Arc::clone(&metrics), shutdown.clone());
    let generator = Generator::new(&limits.request, permits, (tokenizer, validator), inside);
    let info = ServerInfo { beating, config, limits: limits.clone(), model, memory: memory.clone(), kv_event_source };
    let app = routes::router(AppState::new(info, generator, chat, Arc::clone(&metrics), shutdown.clone()));
    Ok(Started { app, batcher, stop_tx, shutdown, metrics, limits, memory })
}

/// Returns the pace that begins with the times of the warm-up.
fn pace(warmup: &WarmupReply, target_ms: Option<u32>) -> Pace {
    let target = target_ms.map(|ms| Duration::from_millis(ms.into()));
    let mut pace = Pace::new(target, warmup.chunk_sizes.clone());
    if warmup.decode_ns > 0 {
        pace.learn(&Work { num_decoding: 1, ..Work::default() }, Duration::from_nanos(warmup.decode_ns));
    }
    pace
}

/// Starts to publish changes of the prefix cache, if the user wants it. Returns the configuration with the addresses
/// for subscribers.
fn publish_kv_events(
    config: &Config,
    limits: &ServingLimits,
    metrics: &Metrics,
    batcher: &mut Batcher,
) -> Result<Option<KvEventsConfig>, KvEventsError> {
    let config = &config.kv_events;
    if !config.is_on() {
        if config.publisher == Publisher::Zmq {
            tracing::warn!(
                "no KV events are published: `kv_events_config` does not set `enable_kv_cache_events` to true"
            );
        }
        return Ok(None);
    }
    if !limits.scheduler.caches_prefixes {
        tracing::warn!("no KV events are published, because there is no prefix cache");
    }
    let cache = (limits.scheduler.num_blocks, limits.scheduler.block_size_tokens);
    let KvEvents { sink, source } =
        kv_events::start(config, cache, (metrics.kv_events_dropped.clone(), metrics.kv_events_subscribers.clone()))?;
    batcher.publish(sink);
    Ok(Some(source))
}

/// Returns the limits that the user asked for. The shards choose the others.
pub(crate) fn wanted_limits(limits: &LimitArgs, batching: &BatchingArgs) -> Warmup {
    let (kv_cache_bytes, kv_cache_percent) = match batching.kv_cache_memory {
        Some(MemorySize::Bytes(bytes)) => (Some(bytes), None),
        Some(MemorySize::Percent(percent)) => (None, Some(percent)),
        None => (None, None),
    };
    Warmup {
        max_total_tokens: limits.max_total_tokens,
        max_batch_prefill_tokens: batching.max_batch_prefill_tokens,
        max_batch_total_tokens: batching.max_batch_total_tokens,
        max_batch_size: batching.max_batch_size,
        device_assignment: vec![],
        kv_cache_bytes,
        kv_cache_percent,
    }
}
