//! Checks and interprets the arguments. Errors are reported together, before anything starts. The limits that also
//! depend on the shards are set after the warm-up.
//!
//! Later code reads [`Config`]. Messages that TGI has too are in TGI's words.

use std::path::{Path, PathBuf};
use std::time::Duration;

use build_id::Build;
use endpoint::Endpoint;
use proto::{MAX_SEQUENCE_TOKENS, MAX_STEP_BYTES, MAX_TIED_TOKENS, ModelInfo, WarmupReply};

use crate::api_keys::ApiKeys;
use crate::args::{BatchingArgs, ChatArgs, GenerationConfig, HttpArgs, LimitArgs, RouterArgs};
use crate::http_listener::{HttpEndpoint, HttpEndpointError};
use crate::kv_events::KvEventsConfig;
use crate::memory;
use crate::text::ChatOverrides;

/// The maximum size of a token id and a log-probability in a frame, in bytes.
const TOP_TOKEN_BYTES: usize = proto::TOKEN_BYTES + 4;

/// The errors in the arguments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct ConfigError(Vec<String>);

impl From<HttpEndpointError> for ConfigError {
    fn from(error: HttpEndpointError) -> Self {
        Self(vec![error.to_string()])
    }
}

/// The checked arguments.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The build of this executable, if the shards run it too. `None` for a router of its own executable.
    pub(crate) build: Option<Build>,
    pub(crate) model_id: String,
    /// The names by which clients know the model, at least one. Responses have the first.
    pub(crate) served_names: Vec<String>,
    /// The directory of the model's files, if `model_id` does not name them.
    pub(crate) model_path: Option<PathBuf>,
    pub(crate) revision: Option<String>,
    /// The endpoints of the shards, in the order of their numbers.
    pub(crate) shards: Vec<Endpoint>,
    pub(crate) num_shards: u32,
    pub(crate) shutdown_timeout: Duration,
    /// The file or pipe to which the router writes when the port is open.
    pub(crate) ready_path: Option<PathBuf>,
    pub(crate) endpoint: HttpEndpoint,
    pub(crate) payload_limit_bytes: usize,
    /// The memory budget of this process, in bytes.
    pub(crate) memory_budget_bytes: usize,
    pub(crate) generation_config: GenerationConfig,
    pub(crate) api_keys: ApiKeys,
    pub(crate) cors_allow_origin: Vec<String>,
    pub(crate) compute_type: Option<String>,
    pub(crate) chat: ChatArgs,
    pub(crate) limits: LimitArgs,
    pub(crate) batching: BatchingArgs,
    pub(crate) kv_events: KvEventsConfig,
}

/// Returns the names in `--served-model-name`, or the model id if there are none.
fn served_names(args: &RouterArgs) -> Vec<String> {
    let names: Vec<String> = args.http.served_model_name.iter().filter(|name| !name.is_empty()).cloned().collect();
    if names.is_empty() { vec![args.model_id.clone()] } else { names }
}

/// The maximum length of a prompt in bytes for each token that a prompt may have: far more than the average in natural
/// languages. If a token limit is small, a prompt may still have [`MIN_INPUT_LIMIT_BYTES`].
const MAX_BYTES_PER_TOKEN: usize = 256;
const MIN_INPUT_LIMIT_BYTES: usize = 64 << 10;

/// The limits that requests are checked against.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RequestLimits {
    pub(crate) max_concurrent_requests: u32,
    pub(crate) max_best_of: u32,
    pub(crate) max_stop_sequences: u32,
    pub(crate) max_top_n_tokens: u32,
    /// The share of the vocabulary that a watermark favours at each token. `watermark_delta` is added to the logits of
    /// the favoured tokens.
    pub(crate) watermark_gamma: f32,
    pub(crate) watermark_delta: f32,
    pub(crate) max_input_tokens: u32,
    pub(crate) max_total_tokens: u32,
    /// The size of the vocabulary. Every token id is below this number.
    pub(crate) vocab_size: u32,
    /// The number of tokens that end a sequence.
    pub(crate) num_eos_tokens: usize,
    /// The maximum time of a request in total, or `None` for no limit.
    pub(crate) request_timeout: Option<Duration>,
    /// The number of API keys; 1 if there are none.
    pub(crate) num_tenants: usize,
    /// True if tenants do not share prompts in the prefix cache.
    pub(crate) separates_tenants: bool,
}

impl RequestLimits {
    /// Returns the maximum size of a prompt's text, in bytes. A longer text is refused before it is tokenized, because
    /// it most likely has too many tokens.
    pub(crate) fn max_input_bytes(&self) -> usize {
        (self.max_input_tokens as usize).saturating_mul(MAX_BYTES_PER_TOKEN).max(MIN_INPUT_LIMIT_BYTES)
    }
}

/// The limits that apply while serving.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServingLimits {
    pub(crate) request: RequestLimits,
    pub(crate) scheduler: scheduler::Limits,
    /// The number of tokens for which the KV cache has room.
    pub(crate) max_batch_total_tokens: u32,
}

/// True if browsers may send `text` as the origin of a page, or if it stands for all origins. No page can have another
/// one, so it would let nobody in.
fn is_origin(text: &str) -> bool {
    let is_scheme = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "+-.".contains(letter);
    let is_host =
        |letter: char| letter.is_ascii_graphic() && !"/?#@\\".contains(letter) && !letter.is_ascii_uppercase();
    let parts = text.split_once("://").filter(|(scheme, host)| !scheme.is_empty() && !host.is_empty());
    matches!(text, "*" | "null")
        || parts.is_some_and(|(scheme, host)| scheme.chars().all(is_scheme) && host.chars().all(is_host))
}

/// The checked HTTP flags.
#[derive(Debug)]
pub(crate) struct Http {
    endpoint: HttpEndpoint,
    api_keys: ApiKeys,
    memory_budget_bytes: usize,
    cors_allow_origin: Vec<String>,
}

/// Checks the HTTP flags and reads the files that they name.
///
/// # Errors
/// All errors that were found in the flags and the files.
pub(crate) fn check_http(args: &HttpArgs) -> Result<Http, Vec<String>> {
    let mut errors = Vec::new();
    let endpoint = HttpEndpoint::resolve(args).map_err(|error| errors.push(error.to_string()));
    let cors_allow_origin = args.cors_allow_origin.clone();
    for origin in &cors_allow_origin {
        if !is_origin(origin) {
            errors.push(format!(
                "`cors_allow_origin` {origin:?} is not an origin: give a scheme, a host and perhaps a port, without a \
                 path, such as https://example.org or http://localhost:5173, or * for every origin"
            ));
        }
    }
    let keys = ApiKeys::load(&args.api_key, args.api_key_file.as_deref());
    let keys = keys.map_err(|error| errors.push(error.to_string()));
    let budget = memory::budget_bytes(args.memory_budget, args.payload_limit);
    let budget = budget.map_err(|error| errors.push(error.to_string()));
    match (endpoint, keys, budget) {
        (Ok(endpoint), Ok(api_keys), Ok(memory_budget_bytes)) if errors.is_empty() => {
            Ok(Http { endpoint, api_keys, memory_budget_bytes, cors_allow_origin })
        }
        _ => Err(errors),
    }
}

/// The files about text that the user named.
pub(crate) fn chat_overrides(args: &ChatArgs) -> ChatOverrides<'_> {
    ChatOverrides {
        tokenizer_config: args.tokenizer_config_path.as_deref().map(Path::new),
        chat_template: args.chat_template.as_deref().map(Path::new),
    }
}

impl Config {
    /// Checks the arguments.
    ///
    /// # Errors
    /// All errors that were found in the arguments.
    pub(crate) fn resolve(args: &RouterArgs) -> Result<Self, ConfigError> {
        let mut errors = check_limits(&args.limits, &args.batching);
        if args.num_shards == 0 {
            errors.push("`num_shards` must be > 0".to_owned());
        }
        let shards = (0..args.num_shards).map(|shard| Endpoint::of_shard(&args.shard_uds_path, shard));
        let shards = shards.collect::<Result<_, _>>().unwrap_or_else(|error| {
            errors.push(format!("`shard_uds_path`: {error}"));
            Vec::new()
        });
        let http = check_http(&args.http).map_err(|wrong| errors.extend(wrong));
        let num_keys = http.as_ref().map_or(0, |http| http.api_keys.len());
        errors.extend(check_kv_events(&args.batching, num_keys));
        match http {
            Ok(Http { endpoint, api_keys, memory_budget_bytes, cors_allow_origin }) if errors.is_empty() => Ok(Self {
                build: None,
                model_id: args.model_id.clone(),
                served_names: served_names(args),
                model_path: args.model_path.clone(),
                revision: args.revision.clone(),
                shards,
                num_shards: args.num_shards,
                shutdown_timeout: Duration::from_secs(args.shutdown_timeout),
                ready_path: args.ready_path.clone(),
                endpoint,
                payload_limit_bytes: args.http.payload_limit,
                memory_budget_bytes,
                generation_config: args.chat.generation_config,
                api_keys,
                cors_allow_origin,
                compute_type: args.http.compute_type.clone(),
                chat: args.chat.clone(),
                limits: args.limits.clone(),
                batching: args.batching.clone(),
                kv_events: args.batching.kv_events_config.clone().unwrap_or_default(),
            }),
            _ => Err(ConfigError(errors)),
        }
    }

    /// The files about text that the user named.
    pub(crate) fn chat_overrides(&self) -> ChatOverrides<'_> {
        chat_overrides(&self.chat)
    }

    /// Returns the limits that apply while serving. `warmup` fills in the limits that the user left open.
    ///
    /// # Errors
    /// When the user asks for more than the shards can do, limits contradict each other, or the shards report sizes of
    /// 0.
    pub(crate) fn serving_limits(&self, warmup: &WarmupReply, model: &ModelInfo) -> Result<ServingLimits, ConfigError> {
        let sizes = warmup.sizes.unwrap_or_default();
        let max_total_tokens = self.limits.max_total_tokens.unwrap_or(sizes.max_total_tokens);
        let max_input_tokens = max_input_tokens(&self.limits).unwrap_or(max_total_tokens.saturating_sub(1));
        let max_batch_total_tokens = sizes.num_blocks.saturating_mul(model.block_size);
        let max_batch_prefill_tokens = self.batching.max_batch_prefill_tokens.unwrap_or(sizes.max_batch_prefill_tokens);
        let mut errors = Vec::new();
        if max_total_tokens > sizes.max_total_tokens {
            let most = sizes.max_total_tokens;
            errors.push(format!("`max_total_tokens` must be <= {most} for this model. Given: {max_total_tokens}"));
        }
        let most = warmup.max_top_n_tokens;
        if most > 0 && self.limits.max_top_n_tokens > most {
            let asked = self.limits.max_top_n_tokens;
            errors.push(format!("`max_top_n_tokens` must be <= {most} on this device. Given: {asked}"));
        }
        let are_zero = [sizes.num_slots, model.block_size, max_batch_prefill_tokens, model.window.unwrap_or(1)];
        if are_zero.contains(&0) {
            errors.push(
                "the shards report no slot, or no token per block, step or window, which is a defect of this server"
                    .to_owned(),
            );
        }
        errors.extend(check_input(Some(max_input_tokens), Some(max_total_tokens)));
        errors.extend(check_total(max_total_tokens, max_batch_total_tokens, model));
        let max_batch_size = self.batching.max_batch_size.map_or(sizes.num_slots, |size| size.min(sizes.num_slots));
        errors.extend(check_frames(max_total_tokens, max_batch_size, self.limits.max_top_n_tokens));
        if !errors.is_empty() {
            return Err(ConfigError(errors));
        }
        Ok(ServingLimits {
            request: RequestLimits {
                max_concurrent_requests: self.limits.max_concurrent_requests,
                max_best_of: self.limits.max_best_of,
                max_stop_sequences: self.limits.max_stop_sequences,
                max_top_n_tokens: self.limits.max_top_n_tokens,
                watermark_gamma: self.limits.watermark_gamma,
                watermark_delta: self.limits.watermark_delta,
                max_input_tokens,
                max_total_tokens,
                vocab_size: model.vocab_size,
                num_eos_tokens: model.eos_token_ids.len(),
                request_timeout: self.limits.request_timeout.map(Duration::from_secs),
                num_tenants: self.api_keys.len().max(1),
                separates_tenants: separates_tenants(&self.batching, self.api_keys.len()),
            },
            scheduler: scheduler::Limits {
                max_batch_size,
                max_batch_prefill_tokens,
                num_blocks: sizes.num_blocks,
                block_size_tokens: model.block_size,
                eos_token_ids: model.eos_token_ids.clone(),
                window: model.window,
                caches_prefixes: self.batching.prefix_caching && model.can_skip_prefix,
                max_step_bytes: proto::MAX_STEP_BYTES,
            },
            max_batch_total_tokens,
        })
    }
}

/// True if tenants do not share prompts in the prefix cache.
fn separates_tenants(batching: &BatchingArgs, num_keys: usize) -> bool {
    batching.prefix_caching_by_key.unwrap_or(num_keys > 1)
}

/// Returns an error if events of the KV cache are wanted, but there is nothing to publish.
fn check_kv_events(batching: &BatchingArgs, num_keys: usize) -> Option<String> {
    let wanted = batching.kv_events_config.as_ref().is_some_and(KvEventsConfig::is_on);
    let reason = if !batching.prefix_caching {
        "`kv_events_config` publishes changes of the prefix cache, but `prefix_caching` is false"
    } else if separates_tenants(batching, num_keys) {
        "`kv_events_config` publishes no prompt that belongs to one API key, and each prompt does: set \
         `prefix_caching_by_key` to false, so that all keys share their prompts, or leave `kv_events_config` out"
    } else {
        return None;
    };
    wanted.then(|| reason.to_owned())
}

/// Returns the maximum length of a prompt in tokens, from either of the two flags for it.
fn max_input_tokens(limits: &LimitArgs) -> Option<u32> {
    limits.max_input_tokens.or(limits.max_input_length)
}

/// Returns an error for each limit that is so high that the opening of a sequence, or the reply to a step, may not fit
/// in a frame.
fn check_frames(max_total_tokens: u32, max_batch_size: u32, max_top_n_tokens: u32) -> Vec<String> {
    let mut errors = Vec::new();
    if max_total_tokens as usize > MAX_SEQUENCE_TOKENS {
        errors.push(format!("`max_total_tokens` must be <= {MAX_SEQUENCE_TOKENS}. Given: {max_total_tokens}"));
    }
    let per_row = MAX_STEP_BYTES / TOP_TOKEN_BYTES / max_batch_size.max(1) as usize;
    let most = per_row.saturating_sub(MAX_TIED_TOKENS);
    if max_top_n_tokens as usize > most {
        errors.push(format!(
            "`max_top_n_tokens` must be <= {most} for `max_batch_size` {max_batch_size}. Given: {max_top_n_tokens}"
        ));
    }
    errors
}

/// Returns all errors in the limits that can be found without knowing the model.
pub(crate) fn check_limits(limits: &LimitArgs, batching: &BatchingArgs) -> Vec<String> {
    let mut errors = Vec::new();
    if limits.max_input_tokens.is_some() && limits.max_input_length.is_some() {
        errors.push("both `max_input_tokens` and `max_input_length` are set; set only `max_input_tokens`".to_owned());
    }
    let positive = [
        ("max_concurrent_requests", Some(limits.max_concurrent_requests)),
        ("max_best_of", Some(limits.max_best_of)),
        ("validation_workers", Some(limits.validation_workers)),
        ("max_client_batch_size", Some(limits.max_client_batch_size)),
        ("max_input_tokens", max_input_tokens(limits)),
        ("max_batch_prefill_tokens", batching.max_batch_prefill_tokens),
        ("max_batch_total_tokens", batching.max_batch_total_tokens),
        ("max_batch_size", batching.max_batch_size),
        ("max_queued_tokens", limits.max_queued_tokens),
        ("request_timeout", limits.request_timeout.map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX))),
    ];
    let zeros = positive.into_iter().filter(|(_, value)| *value == Some(0));
    errors.extend(zeros.map(|(name, _)| format!("`{name}` must be > 0")));
    let LimitArgs { watermark_gamma, watermark_delta, .. } = limits;
    if !(*watermark_gamma > 0.0 && *watermark_gamma < 1.0) {
        errors.push(format!("`watermark_gamma` must be > 0.0 and < 1.0. Given: {watermark_gamma}"));
    }
    if !(-100.0..=100.0).contains(watermark_delta) {
        errors.push(format!("`watermark_delta` must be >= -100.0 and <= 100.0. Given: {watermark_delta}"));
    }
    let (prefill, total) = (batching.max_batch_prefill_tokens, batching.max_batch_total_tokens);
    if let (Some(prefill), Some(total)) = (prefill, total)
        && prefill > total
    {
        errors.push(format!(
            "`max_batch_prefill_tokens` must be <= `max_batch_total_tokens`. Given: {prefill} and {total}"
        ));
    }
    errors.extend(check_input(max_input_tokens(limits), limits.max_total_tokens));
    errors
}

fn check_input(max_input_tokens: Option<u32>, max_total_tokens: Option<u32>) -> Option<String> {
    let (input, total) = (max_input_tokens?, max_total_tokens?);
    (input >= total).then(|| format!("`max_input_tokens`({input}) must be < `max_total_tokens`({total})"))
}

/// Returns an error if the KV cache has no room for the longest sequence. If the model has an attention window, room
/// for the window and one block is enough.
fn check_total(total: u32, batch: u32, model: &ModelInfo) -> Option<String> {
    let needed = model.window.map_or(total, |window| window.saturating_add(model.block_size).min(total));
    let limit = if needed == total { "`max_total_tokens`" } else { "the model's window plus one block" };
    (needed > batch).then(|| format!("{limit} must be <= `max_batch_total_tokens`. Given: {needed} and {batch}"))
}

#[cfg(test)]
mod tests {
    use proto::StepSizes;

    use super::*;
    use crate::testing;

    fn resolve(flags: &[&str]) -> Result<Config, ConfigError> {
        Config::resolve(&testing::args(flags))
    }

    #[test]
    fn an_origin_that_no_page_can_have_is_refused() {
        for origin in ["*", "null", "https://a.example", "http://localhost:5173", "http://[::1]:80", "app-x+1.y://id"] {
            assert!(resolve(&[&format!("--cors-allow-origin={origin}")]).is_ok(), "{origin}");
        }
        for origin in
            ["not an origin", "a.example", "https://", "://a", "https://a.example/", "https://A.example", "h://a@b"]
        {
            let error = resolve(&[&format!("--cors-allow-origin={origin}")]).unwrap_err().to_string();
            assert!(error.contains(&format!("`cors_allow_origin` {origin:?} is not an origin")), "{error}");
        }
    }

    fn limits(flags: &[&str]) -> Result<ServingLimits, ConfigError> {
        resolve(flags).unwrap().serving_limits(&warmup(), &model(true))
    }

    fn warmup() -> WarmupReply {
        WarmupReply {
            sizes: Some(StepSizes {
                num_slots: 8,
                num_blocks: 100,
                max_total_tokens: 1024,
                max_batch_prefill_tokens: 4096,
            }),
            max_top_n_tokens: 16,
            ..WarmupReply::default()
        }
    }

    fn model(can_skip_prefix: bool) -> ModelInfo {
        ModelInfo { block_size: 16, vocab_size: 10, eos_token_ids: vec![1], can_skip_prefix, ..ModelInfo::default() }
    }

    fn check_error(result: Result<impl std::fmt::Debug, ConfigError>, expected: &[&str]) {
        assert_eq!(result.unwrap_err().0, expected);
    }

    #[test]
    fn all_errors_come_at_once() {
        check_error(
            resolve(&["--hostname=x", "--validation-workers=0", "--max-input-tokens=9", "--max-total-tokens=9"]),
            &[
                "`validation_workers` must be > 0",
                "`max_input_tokens`(9) must be < `max_total_tokens`(9)",
                "`hostname` \"x\" is not an IP address, such as 0.0.0.0, 127.0.0.1 or ::",
            ],
        );
        check_error(
            resolve(&["--shard-uds-path=tcp://127.0.0.1:65534", "--num-shards=3"]),
            &[
                "`shard_uds_path`: \"tcp://127.0.0.1:65534\" has no port for shard 2: each shard adds its number to the \
                 port, and 65535 is the last one; use a lower port",
            ],
        );
        check_error(
            resolve(&["--watermark-gamma=1.0", "--watermark-delta=inf"]),
            &[
                "`watermark_gamma` must be > 0.0 and < 1.0. Given: 1",
                "`watermark_delta` must be >= -100.0 and <= 100.0. Given: inf",
            ],
        );
        check_error(
            resolve(&["--max-input-tokens=9", "--max-input-length=9"]),
            &["both `max_input_tokens` and `max_input_length` are set; set only `max_input_tokens`"],
        );
        check_error(
            resolve(&["--max-batch-prefill-tokens=9", "--max-batch-total-tokens=8"]),
            &["`max_batch_prefill_tokens` must be <= `max_batch_total_tokens`. Given: 9 and 8"],
        );
    }

    #[test]
    fn the_warm_up_fills_in_what_is_open() {
        let limits = limits(&[]).unwrap();
        assert_eq!((limits.request.max_total_tokens, limits.request.max_input_tokens), (1024, 1023));
        assert_eq!((limits.scheduler.max_batch_size, limits.max_batch_total_tokens), (8, 1600));
        assert_eq!(limits.scheduler.max_batch_prefill_tokens, 4096);
    }

    #[test]
    fn events_need_a_prefix_cache_that_all_clients_share() {
        let events = r#"--kv-events-config={"enable_kv_cache_events": true}"#;
        assert!(resolve(&[events, "--api-key=a"]).unwrap().kv_events.is_on());
        assert!(resolve(&[events, "--api-key=a,b", "--prefix-caching-by-key=false"]).is_ok());
        assert!(!resolve(&["--prefix-caching=false", "--kv-events-config={}"]).unwrap().kv_events.is_on());
        check_error(
            resolve(&[events, "--prefix-caching=false"]),
            &["`kv_events_config` publishes changes of the prefix cache, but `prefix_caching` is false"],
        );
        let error = resolve(&[events, "--api-key=a,b"]).unwrap_err().to_string();
        assert!(error.contains("set `prefix_caching_by_key` to false"), "{error}");
    }

    #[test]
    fn prefixes_are_cached_where_model_and_user_let_them() {
        for (flag, can_skip_prefix, expected) in [
            ("--prefix-caching=true", true, true),
            ("--prefix-caching=false", true, false),
            ("--prefix-caching=true", false, false),
        ] {
            let config = resolve(&[flag]).unwrap();
            let limits = config.serving_limits(&warmup(), &model(can_skip_prefix)).unwrap();
            assert_eq!(limits.scheduler.caches_prefixes, expected, "{flag}, {can_skip_prefix}");
        }
    }

    #[test]
    fn the_cache_has_room_for_the_longest_sequence_or_for_a_window() {
        let model = |window| ModelInfo { window, ..model(true) };
        let too_large = "`max_total_tokens` must be <= `max_batch_total_tokens`. Given: 1000 and 160";
        assert_eq!(check_total(1000, 160, &model(None)).as_deref(), Some(too_large));
        assert_eq!(check_total(1000, 1000, &model(None)), None);
        assert_eq!(check_total(1000, 160, &model(Some(144))), None);
        let too_large = "the model's window plus one block must be <= `max_batch_total_tokens`. Given: 161 and 160";
        assert_eq!(check_total(1000, 160, &model(Some(145))).as_deref(), Some(too_large));
        assert_eq!(check_total(100, 160, &model(Some(4096))), None);
        let limits = resolve(&["--max-total-tokens=1000"]).unwrap().serving_limits(&warmup(), &model(Some(144)));
        assert_eq!(limits.unwrap().scheduler.window, Some(144));
        check_error(
            resolve(&[]).unwrap().serving_limits(&warmup(), &model(Some(0))),
            &["the shards report no slot, or no token per block, step or window, which is a defect of this server"],
        );
    }

    #[test]
    fn the_user_wins_within_what_is_possible() {
        let given = limits(&["--max-total-tokens=100", "--max-input-length=10", "--max-batch-size=3"]).unwrap();
        assert_eq!((given.request.max_total_tokens, given.request.max_input_tokens), (100, 10));
        assert_eq!(given.scheduler.max_batch_size, 3);
        check_error(
            limits(&["--max-total-tokens=1025"]),
            &["`max_total_tokens` must be <= 1024 for this model. Given: 1025"],
        );
        check_error(
            limits(&["--max-top-n-tokens=1000000"]),
            &[
                "`max_top_n_tokens` must be <= 16 on this device. Given: 1000000",
                "`max_top_n_tokens` must be <= 898715 for `max_batch_size` 8. Given: 1000000",
            ],
        );
        check_error(
            limits(&["--max-input-tokens=1024"]),
            &["`max_input_tokens`(1024) must be < `max_total_tokens`(1024)"],
        );
    }
}
