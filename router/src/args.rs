//! The router's arguments: TGI's flags and some of our own. Most flags also have an environment variable, whose name is
//! the flag's in upper snake case.
//!
//! The launcher includes these groups in its own arguments and passes them on with `to_argv`, which turns the fields
//! into flags again. When a field is added, the destructuring in `to_argv` does not compile until it has the field.
//! `config` checks and interprets the values.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};

use crate::api_keys::ApiKey;
use crate::argv::Argv;
use crate::kv_events::KvEventsConfig;
use crate::memory_size::MemorySize;

/// The maximum of `--validation-workers`. Half as many threads more are started for long texts.
const MAX_VALIDATION_WORKERS: i64 = 512;

/// The arguments of the router.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct RouterArgs {
    /// Model to serve: `demo`, the built-in demo model, or the path of a model directory or a GGUF file
    #[arg(long, env, default_value = model_files::DEMO_MODEL_ID)]
    pub model_id: String,

    /// Directory of the model's files, or path of its GGUF file [default: the model id]
    #[arg(long, hide = true)]
    pub model_path: Option<PathBuf>,

    /// Revision of the model, which `/info` shows as `model_sha`
    #[arg(long, env)]
    pub revision: Option<String>,

    /// Path of the shards' Unix sockets, to which each shard appends `-<shard>`, or tcp://host:port, where each shard
    /// adds its number to the port
    #[arg(long, env, default_value = "/tmp/text-generation-server")]
    pub shard_uds_path: String,

    /// Number of shards that serve the model together
    #[arg(long, env, default_value_t = 1)]
    pub num_shards: u32,

    /// Seconds that running requests have to finish after SIGTERM or SIGINT
    #[arg(long, env, default_value_t = 30)]
    pub shutdown_timeout: u64,

    /// Existing file or pipe to which one line of JSON is written when the port is open
    #[arg(long, hide = true)]
    pub ready_path: Option<PathBuf>,

    #[command(flatten)]
    pub http: HttpArgs,

    #[command(flatten)]
    pub chat: ChatArgs,

    #[command(flatten)]
    pub limits: LimitArgs,

    #[command(flatten)]
    pub batching: BatchingArgs,

    /// Log one JSON object per line
    #[arg(long, env)]
    pub json_output: bool,

    /// Level of the log: error, warn, info, debug, trace, or a filter such as `info,router=debug`
    #[arg(long, env, default_value = "info")]
    pub log_level: String,
}

/// Where and how HTTP is served.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(next_help_heading = "HTTP")]
pub struct HttpArgs {
    /// IP address to listen on [default: 0.0.0.0, or the environment variable HOSTNAME where it is an IP address]
    #[arg(long, default_value_t = default_hostname(), hide_default_value = true)]
    pub hostname: String,

    /// Port to listen on; 0 lets the system choose
    #[arg(long, short, env, default_value_t = 3000)]
    pub port: u16,

    /// Name by which clients know the model, such as in `/v1/models`; repeat the flag or separate names by commas for
    /// several, of which responses and metrics have the first [default: the model id]
    #[arg(long, env, value_delimiter = ',', num_args = 1..)]
    pub served_model_name: Vec<String>,

    /// Path of a Unix socket to listen on instead of --hostname and --port; its permissions follow the umask
    #[arg(long, env)]
    pub uds: Option<PathBuf>,

    /// PEM file with the certificate chain, the server's own first; together with --tls-keyfile it turns HTTPS on
    #[arg(long, env, visible_alias = "ssl-certfile")]
    pub tls_certfile: Option<PathBuf>,

    /// PEM file with the certificate's private key
    #[arg(long, env, visible_alias = "ssl-keyfile")]
    pub tls_keyfile: Option<PathBuf>,

    /// Max size of a request body in bytes; larger bodies get status 413
    #[arg(long, env, default_value_t = 2_000_000)]
    pub payload_limit: usize,

    /// Memory limit of the HTTP process, such as `1GiB`, or a share of the machine's or container's memory, such as
    /// `25%`; requests that would exceed it get status 429 or 413 [default: 25%, at least 512MiB and at most 4GiB, or
    /// more for a large --payload-limit]
    #[arg(long, env)]
    pub memory_budget: Option<MemorySize>,

    /// API key that clients must send; repeat the flag or separate keys by commas. The launcher hides it from `ps` when
    /// it starts, but shells keep commands, so prefer the variable or --api-key-file [default: no key is needed]
    #[arg(long, env, value_delimiter = ',', hide_env_values = true)]
    pub api_key: Vec<ApiKey>,

    /// File with API keys, one per line; lines that begin with # are ignored
    #[arg(long, env)]
    pub api_key_file: Option<PathBuf>,

    /// Origin of web pages that may call the server (CORS); repeat the flag for several [default: any]
    #[arg(long, env, value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub cors_allow_origin: Vec<String>,

    /// Value of the header `x-compute-type` [default: number of shards and device, such as `1-cpu`]
    #[arg(long, env, hide = true)]
    pub compute_type: Option<String>,
}

/// The chat template, and the defaults of sampling parameters.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(next_help_heading = "Conversations")]
pub struct ChatArgs {
    /// File to read instead of the model's tokenizer_config.json; its chat template, if it has one, replaces the
    /// model's
    #[arg(long, env)]
    pub tokenizer_config_path: Option<String>,

    /// Jinja file with a chat template that replaces the model's
    #[arg(long, env)]
    pub chat_template: Option<String>,

    /// Source of the values for sampling parameters that a request does not set
    #[arg(long, env, value_enum, default_value_t)]
    pub generation_config: GenerationConfig,
}

/// Where defaults come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum GenerationConfig {
    /// Values that leave the model's probabilities as they are, as in TGI
    #[default]
    Neutral,
    /// The model's generation_config.json
    Model,
}

impl GenerationConfig {
    fn name(self) -> &'static str {
        match self {
            Self::Neutral => "neutral",
            Self::Model => "model",
        }
    }
}

/// The limits of requests, alone and together, and how requests are checked.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(next_help_heading = "Limits of requests")]
pub struct LimitArgs {
    /// Max number of requests at a time, running and waiting; a request with several prompts, `n` or `best_of` counts
    /// as that many; further requests get status 429
    #[arg(long, env, default_value_t = 128)]
    pub max_concurrent_requests: u32,

    /// Max `best_of` of a request: the number of sequences to generate, of which the best is returned
    #[arg(long, env, default_value_t = 2)]
    pub max_best_of: u32,

    /// Max number of stop sequences of a request
    #[arg(long, env, default_value_t = 4)]
    pub max_stop_sequences: u32,

    /// Refuse requests that constrain the output with a grammar, such as a JSON schema
    #[arg(long, env)]
    pub disable_grammar_support: bool,

    /// Max `top_n_tokens` (`top_logprobs`) of a request: the number of most likely tokens returned at each position
    #[arg(long, env, default_value_t = 5)]
    pub max_top_n_tokens: u32,

    /// Share of the vocabulary, from 0 to 1, that `watermark` favours at each token
    #[arg(long, env, default_value_t = 0.5)]
    pub watermark_gamma: f32,

    /// Number that `watermark` adds to the scores (logits) of the favoured tokens
    #[arg(long, env, default_value_t = 2.0, allow_negative_numbers = true)]
    pub watermark_delta: f32,

    /// Max length of a prompt in tokens [default: --max-total-tokens minus 1]
    #[arg(long, env)]
    pub max_input_tokens: Option<u32>,

    /// Older name of --max-input-tokens
    #[arg(long, env, hide = true)]
    pub max_input_length: Option<u32>,

    /// Max length of a prompt and its completion together, in tokens [default: 4096, or the model's context length if
    /// that is less]
    #[arg(long, env)]
    pub max_total_tokens: Option<u32>,

    /// Max prompt tokens of all waiting requests together; further requests get status 429 [default: no limit]
    #[arg(long, env)]
    pub max_queued_tokens: Option<u32>,

    /// Max seconds of a request, including its time in the queue; a slower request ends with status 504, a stream with
    /// an error [default: no limit]
    #[arg(long, env)]
    pub request_timeout: Option<u64>,

    /// Number of threads that tokenize prompts; half as many more are for long texts
    #[arg(long, env, default_value_t = 2, value_parser = clap::value_parser!(u32).range(..=MAX_VALIDATION_WORKERS))]
    pub validation_workers: u32,

    /// Max number of prompts in one request
    #[arg(long, env, default_value_t = 4)]
    pub max_client_batch_size: u32,
}

/// How sequences share the steps and the KV cache.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(next_help_heading = "Batching and memory")]
pub struct BatchingArgs {
    /// Accepted for compatibility; has no effect, because one step can both read prompts and generate tokens
    #[arg(long, env, default_value_t = 0.3)]
    pub waiting_served_ratio: f32,

    /// Max prompt tokens of one step of the model; longer prompts are read in chunks [default: 4096, or
    /// --max-total-tokens if that is more]
    #[arg(long, env)]
    pub max_batch_prefill_tokens: Option<u32>,

    /// Time of a step that reads prompts while other sequences generate tokens, in ms; longer prompts are read in
    /// chunks [default: that of four steps without prompts, at least 10]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub step_target_ms: Option<u32>,

    /// Size of the KV cache in tokens, which all running sequences share [default: see --kv-cache-memory]
    #[arg(long, env)]
    pub max_batch_total_tokens: Option<u32>,

    /// KV cache memory on each device, such as `8GiB`, or a share of the free memory, such as `60%` [default: as much
    /// as --max-batch-size sequences can use, at most the device's free memory, or half of the free memory on the CPU]
    #[arg(long, env, conflicts_with = "max_batch_total_tokens")]
    pub kv_cache_memory: Option<MemorySize>,

    /// Reuse the KV cache of earlier prompts that begin with the same tokens, such as the turns of a conversation: true
    /// or false
    #[arg(long, env, default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set, value_parser = clap::builder::BoolishValueParser::new())]
    pub prefix_caching: bool,

    /// Share cached prompts only between requests with the same API key: true or false [default: true if there are
    /// several keys]
    #[arg(long, env, action = clap::ArgAction::Set, value_parser = clap::builder::BoolishValueParser::new())]
    pub prefix_caching_by_key: Option<bool>,

    /// JSON object that publishes changes of the prefix cache over ZeroMQ, as in vLLM, such as
    /// `{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}`; see docs/kv-events.md [default: not published]
    #[arg(long, env)]
    pub kv_events_config: Option<KvEventsConfig>,

    /// Accepted for compatibility; has no effect, because waiting sequences can join at every step
    #[arg(long, env, default_value_t = 20)]
    pub max_waiting_tokens: u32,

    /// Max number of sequences that run at the same time [default: 64]
    #[arg(long, env)]
    pub max_batch_size: Option<u32>,

    /// Steps sent to the shards at a time, 1 or 2: 2 overlaps the router's work with the device's, 1 makes logs easier
    /// to follow
    #[arg(long, env, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=2))]
    pub step_window: u32,
}

fn default_hostname() -> String {
    hostname_or_any(std::env::var("HOSTNAME").ok())
}

/// Returns the address in `HOSTNAME`, or 0.0.0.0. Docker and Kubernetes set `HOSTNAME` to the container's name, so a
/// value that is not an IP address is ignored.
fn hostname_or_any(from_environment: Option<String>) -> String {
    let address = from_environment.filter(|name| name.parse::<IpAddr>().is_ok());
    address.unwrap_or_else(|| Ipv4Addr::UNSPECIFIED.to_string())
}

impl HttpArgs {
    /// Returns the address at which clients on other machines can call without an API key, if there is one.
    pub fn open_address(&self) -> Option<&str> {
        let has_keys = !self.api_key.is_empty() || self.api_key_file.is_some();
        let is_local = self.hostname.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        (!has_keys && self.uds.is_none() && !is_local).then_some(self.hostname.as_str())
    }

    /// Returns the value of the environment variable `API_KEY` that passes these keys on, if there are any.
    pub fn api_key_variable(&self) -> Option<String> {
        let keys: Vec<&str> = self.api_key.iter().map(ApiKey::expose).collect();
        (!keys.is_empty()).then(|| keys.join(","))
    }

    /// Returns the flags that produce these arguments, without the API keys.
    pub fn to_argv(&self) -> Vec<OsString> {
        // API keys are passed in an environment variable, because every user of the machine can read a process's
        // arguments.
        let Self {
            hostname,
            port,
            served_model_name,
            uds,
            tls_certfile,
            tls_keyfile,
            payload_limit,
            memory_budget,
            api_key: _,
            api_key_file,
            cors_allow_origin,
            compute_type,
        } = self;
        let mut argv = Argv::default();
        argv.flag("--hostname", hostname);
        argv.flag("--port", port);
        for name in served_model_name {
            argv.flag("--served-model-name", name);
        }
        argv.optional("--uds", uds.as_ref().map(|path| path.display()));
        argv.optional("--tls-certfile", tls_certfile.as_ref().map(|path| path.display()));
        argv.optional("--tls-keyfile", tls_keyfile.as_ref().map(|path| path.display()));
        argv.flag("--payload-limit", payload_limit);
        argv.optional("--memory-budget", memory_budget.as_ref());
        argv.optional("--api-key-file", api_key_file.as_ref().map(|path| path.display()));
        for origin in cors_allow_origin {
            argv.flag("--cors-allow-origin", origin);
        }
        argv.optional("--compute-type", compute_type.as_ref());
        argv.0
    }
}

impl ChatArgs {
    /// Returns the flags that produce these arguments.
    pub fn to_argv(&self) -> Vec<OsString> {
        let Self { tokenizer_config_path, chat_template, generation_config } = self;
        let mut argv = Argv::default();
        argv.optional("--tokenizer-config-path", tokenizer_config_path.as_ref());
        argv.optional("--chat-template", chat_template.as_ref());
        argv.flag("--generation-config", generation_config.name());
        argv.0
    }
}

impl LimitArgs {
    /// Returns all errors in these limits that can be found without knowing the model.
    pub fn check(&self, batching: &BatchingArgs) -> Vec<String> {
        crate::config::check_limits(self, batching)
    }

    /// Returns the flags that produce these arguments.
    pub fn to_argv(&self) -> Vec<OsString> {
        let Self {
            max_concurrent_requests,
            max_best_of,
            max_stop_sequences,
            disable_grammar_support,
            max_top_n_tokens,
            watermark_gamma,
            watermark_delta,
            max_input_tokens,
            max_input_length,
            max_total_tokens,
            max_queued_tokens,
            request_timeout,
            validation_workers,
            max_client_batch_size,
        } = self;
        let mut argv = Argv::default();
        argv.flag("--max-concurrent-requests", max_concurrent_requests);
        argv.flag("--max-best-of", max_best_of);
        argv.flag("--max-stop-sequences", max_stop_sequences);
        argv.switch("--disable-grammar-support", *disable_grammar_support);
        argv.flag("--max-top-n-tokens", max_top_n_tokens);
        argv.flag("--watermark-gamma", watermark_gamma);
        argv.flag("--watermark-delta", watermark_delta);
        argv.optional("--max-input-tokens", max_input_tokens.as_ref());
        argv.optional("--max-input-length", max_input_length.as_ref());
        argv.optional("--max-total-tokens", max_total_tokens.as_ref());
        argv.optional("--max-queued-tokens", max_queued_tokens.as_ref());
        argv.optional("--request-timeout", request_timeout.as_ref());
        argv.flag("--validation-workers", validation_workers);
        argv.flag("--max-client-batch-size", max_client_batch_size);
        argv.0
    }
}

impl BatchingArgs {
    /// Returns the flags that produce these arguments.
    pub fn to_argv(&self) -> Vec<OsString> {
        let Self {
            waiting_served_ratio,
            max_batch_prefill_tokens,
            step_target_ms,
            max_batch_total_tokens,
            kv_cache_memory,
            prefix_caching,
            prefix_caching_by_key,
            kv_events_config,
            max_waiting_tokens,
            max_batch_size,
            step_window,
        } = self;
        let mut argv = Argv::default();
        argv.flag("--waiting-served-ratio", waiting_served_ratio);
        argv.optional("--max-batch-prefill-tokens", max_batch_prefill_tokens.as_ref());
        argv.optional("--step-target-ms", step_target_ms.as_ref());
        argv.optional("--max-batch-total-tokens", max_batch_total_tokens.as_ref());
        argv.optional("--kv-cache-memory", kv_cache_memory.as_ref());
        argv.flag("--prefix-caching", prefix_caching);
        argv.optional("--prefix-caching-by-key", prefix_caching_by_key.as_ref());
        argv.optional("--kv-events-config", kv_events_config.as_ref());
        argv.flag("--max-waiting-tokens", max_waiting_tokens);
        argv.optional("--max-batch-size", max_batch_size.as_ref());
        argv.flag("--step-window", step_window);
        argv.0
    }
}

impl RouterArgs {
    /// Returns the flags that produce these arguments.
    pub fn to_argv(&self) -> Vec<OsString> {
        let Self {
            model_id,
            model_path,
            revision,
            shard_uds_path,
            num_shards,
            shutdown_timeout,
            ready_path,
            http,
            chat,
            limits,
            batching,
            json_output,
            log_level,
        } = self;
        let mut argv = Argv::default();
        argv.flag("--model-id", model_id);
        argv.optional("--model-path", model_path.as_ref().map(|path| path.display()));
        argv.optional("--revision", revision.as_ref());
        argv.flag("--shard-uds-path", shard_uds_path);
        argv.flag("--num-shards", num_shards);
        argv.flag("--shutdown-timeout", shutdown_timeout);
        argv.optional("--ready-path", ready_path.as_ref().map(|path| path.display()));
        argv.flag("--log-level", log_level);
        if *json_output {
            argv.0.push("--json-output".into());
        }
        argv.0.extend(http.to_argv());
        argv.0.extend(chat.to_argv());
        argv.0.extend(limits.to_argv());
        argv.0.extend(batching.to_argv());
        argv.0
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    #[command(name = "text-generation-router", disable_version_flag = true)]
    struct Cli {
        #[command(flatten)]
        router: RouterArgs,
    }

    fn parse(flags: &[&str]) -> RouterArgs {
        Cli::parse_from(["text-generation-router"].iter().chain(flags)).router
    }

    fn check_round_trip(flags: &[&str]) {
        let args = parse(flags);
        let argv = std::iter::once(OsString::from("text-generation-router")).chain(args.to_argv());
        assert_eq!(Cli::parse_from(argv).router, args);
    }

    #[test]
    fn argv_says_the_same() {
        check_round_trip(&[]);
        check_round_trip(&[
            "--model-id=a/b",
            "--model-path=/m",
            "--revision=main",
            "--shard-uds-path=/s",
            "--num-shards=2",
            "--memory-budget=10%",
            "--json-output",
        ]);
        check_round_trip(&["--hostname=::1", "-p", "0", "--payload-limit=7", "--compute-type=1-x", "--log-level=-x"]);
        check_round_trip(&["--cors-allow-origin=http://a", "--cors-allow-origin=http://b", "--max-best-of=9"]);
        check_round_trip(&["--max-input-length=5", "--max-total-tokens=9", "--max-concurrent-requests=1"]);
        check_round_trip(&["--tls-certfile=/c.pem", "--tls-keyfile=/k.pem"]);
        check_round_trip(&["--uds=/run/hilo.sock", "--served-model-name", "a/b", "c"]);
        check_round_trip(&["--ssl-certfile=/c.pem", "--ssl-keyfile=/k.pem"]);
        check_round_trip(&["--tokenizer-config-path=/t.json", "--chat-template=/c.jinja"]);
        check_round_trip(&["--watermark-gamma=0.25", "--watermark-delta=1.5"]);
        check_round_trip(&["--max-input-tokens=5", "--max-top-n-tokens=1", "--max-stop-sequences=0"]);
        check_round_trip(&["--waiting-served-ratio=1.25", "--max-batch-size=3", "--max-waiting-tokens=1"]);
        check_round_trip(&[r#"--kv-events-config={"enable_kv_cache_events": true, "topic": "kv@a@b", "hwm": 5}"#]);
        check_round_trip(&["--max-batch-prefill-tokens=8", "--max-batch-total-tokens=64", "--shutdown-timeout=1"]);
    }

    #[test]
    fn every_flag_has_its_environment_twin() {
        for flag in Cli::command().get_arguments() {
            let Some(long) =
                flag.get_long().filter(|long| !["help", "hostname", "model-path", "ready-path"].contains(long))
            else {
                continue;
            };
            let twin = long.to_uppercase().replace('-', "_");
            assert_eq!(flag.get_env(), Some(std::ffi::OsStr::new(&twin)), "--{long}");
        }
    }

    #[test]
    fn the_name_of_a_container_is_no_address() {
        assert_eq!(hostname_or_any(Some("web-7f9c".to_owned())), "0.0.0.0");
        assert_eq!(hostname_or_any(Some("127.0.0.1".to_owned())), "127.0.0.1");
        assert_eq!(hostname_or_any(None), "0.0.0.0");
    }

    #[test]
    fn a_server_is_open_where_others_reach_it_without_a_key() {
        for (flags, expected) in [
            (&["--hostname=0.0.0.0"][..], Some("0.0.0.0")),
            (&["--hostname=::"], Some("::")),
            (&["--hostname=127.0.0.1"], None),
            (&["--hostname=::1"], None),
            (&["--hostname=0.0.0.0", "--uds=/run/hilo.sock"], None),
            (&["--hostname=0.0.0.0", "--api-key=sesame"], None),
            (&["--hostname=0.0.0.0", "--api-key-file=/keys"], None),
        ] {
            assert_eq!(parse(flags).http.open_address(), expected, "{flags:?}");
        }
    }

    #[test]
    fn the_number_of_workers_has_a_maximum() {
        let error = |flag: &str| Cli::try_parse_from(["text-generation-router", flag]).unwrap_err().to_string();
        for value in ["513", "65536", "4294967295"] {
            let error = error(&format!("--validation-workers={value}"));
            let range = format!("{value} is not in 0..=512");
            assert!(error.contains("--validation-workers") && error.contains(&range), "{error}");
        }
    }

    #[test]
    fn an_origin_has_a_name() {
        let error = Cli::try_parse_from(["text-generation-router", "--cors-allow-origin="]).unwrap_err().to_string();
        assert!(error.contains("--cors-allow-origin"), "{error}");
    }

    #[test]
    fn help() {
        // The help must not show values from the test's environment.
        let command = Cli::command().mut_args(|arg| arg.hide_env_values(true));
        insta::assert_snapshot!(command.term_width(100).render_long_help());
    }
}
