//! The command line, the checks of its arguments, and the parts of a run that it describes.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use hyper::Uri;
use serde::Serialize;

use crate::api::{Api, Dialect};
use crate::client::{Client, Timeouts};
use crate::load::{Load, Pace};
use crate::workload::{Distribution, Workload};

const DEFAULT_NUM_REQUESTS: u64 = 100;

/// Sends load to a text generation server and reports latencies and throughput
#[derive(Debug, Clone, Parser, Serialize)]
#[command(version, max_term_width = 100)]
pub(crate) struct Args {
    /// URL of the server, without the path of the API
    #[arg(long, default_value = "http://127.0.0.1:3000", value_parser = parse_url)]
    url: String,

    /// API to call: `generate-stream` is TGI's own API; `completions` is OpenAI's API, which vLLM, llama.cpp and other
    /// servers have too
    #[arg(long, value_enum, default_value_t = Api::GenerateStream)]
    api: Api,

    /// Name of the model in requests; required by --api completions
    #[arg(long, required_if_eq("api", "completions"))]
    model: Option<String>,

    /// Closed loop: number of clients, each of which sends its next request after the response to its last request
    #[arg(long, default_value = "1", conflicts_with = "rate")]
    concurrency: NonZeroU32,

    /// Open loop: average number of requests per second, sent at random times, however busy the server is
    #[arg(long, value_parser = parse_positive)]
    rate: Option<f64>,

    /// Number of requests to send [default: 100; no limit with --duration]
    #[arg(long)]
    num_requests: Option<NonZeroU64>,

    /// Seconds during which requests are sent; requests that are still running then may finish
    #[arg(long, value_parser = parse_positive)]
    duration: Option<f64>,

    /// Length of each prompt in words of about one token each: a number, or a range such as `uniform:50..200`, both
    /// ends included
    #[arg(long, default_value = "100")]
    prompt_tokens: Distribution,

    /// Max number of tokens to generate per request, in the same notation as --prompt-tokens
    #[arg(long, default_value = "100")]
    output_tokens: Distribution,

    /// File with the prompts to send, one JSON string per line; the prompts are sent in this order, over and over
    #[arg(long, conflicts_with = "prompt_tokens")]
    prompts: Option<PathBuf>,

    /// Number of words to put before the first prompt of every conversation; the words are the same for all
    #[arg(long, default_value_t = 0, value_name = "WORDS")]
    shared_prefix: u32,

    /// Number of requests per conversation; each prompt continues the conversation so far. `--rate` counts
    /// conversations
    #[arg(long, default_value = "1")]
    turns: NonZeroU32,

    /// Seed of the random prompts, lengths and start times
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Generate the full number of --output-tokens, even after an end-of-sequence token; the server must support
    /// `ignore_eos`, as vLLM and llama.cpp do
    #[arg(long)]
    ignore_eos: bool,

    /// Objective for goodput: max milliseconds to the first token of a request
    #[arg(long, value_parser = parse_positive)]
    pub(crate) slo_ttft_ms: Option<f64>,

    /// Objective for goodput: max milliseconds per further token of a request, on average
    #[arg(long, value_parser = parse_positive)]
    pub(crate) slo_itl_ms: Option<f64>,

    /// Max seconds to wait for a connection
    #[arg(long, default_value_t = 10.0, value_parser = parse_positive)]
    connect_timeout: f64,

    /// Max seconds to wait for the first and for each further event of a stream
    #[arg(long, default_value_t = 120.0, value_parser = parse_positive)]
    read_timeout: f64,

    /// Max seconds that a request may take
    #[arg(long, default_value_t = 600.0, value_parser = parse_positive)]
    request_timeout: f64,

    /// Print the report as one JSON object
    #[arg(long)]
    #[serde(skip)]
    pub(crate) json: bool,
}

/// The parts of a run: the client, the content of requests, and the times of requests.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) client: Client,
    pub(crate) workload: Workload,
    pub(crate) load: Load,
}

/// The reason why the arguments do not describe a run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArgsError {
    #[error("--ignore-eos is only supported with --api completions")]
    IgnoreEos,
    #[error("--prompts {path} cannot be read: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("--prompts {path}: line {line} is not a JSON string: {source}")]
    Prompt { path: String, line: usize, source: serde_json::Error },
    #[error("--prompts {path}: the file has no prompts; each line must be a JSON string")]
    NoPrompts { path: String },
}

impl Args {
    /// Returns the run that the arguments describe.
    ///
    /// # Errors
    /// When `--ignore-eos` is used with an API that lacks it, or when the file of prompts cannot be read, has an
    /// invalid line or has no prompts.
    pub(crate) fn plan(&self) -> Result<Plan, ArgsError> {
        if self.ignore_eos && self.api == Api::GenerateStream {
            return Err(ArgsError::IgnoreEos);
        }
        let workload = Workload {
            prompts: self.prompts.as_deref().map(read_prompts).transpose()?,
            prompt_words: self.prompt_tokens,
            output_tokens: self.output_tokens,
            num_shared_words: self.shared_prefix,
            seed: self.seed,
        };
        let dialect = Dialect { api: self.api, model: self.model.clone(), ignores_eos: self.ignore_eos };
        let timeouts = Timeouts {
            connect: Duration::from_secs_f64(self.connect_timeout),
            event: Duration::from_secs_f64(self.read_timeout),
            request: Duration::from_secs_f64(self.request_timeout),
        };
        Ok(Plan { client: Client::new(&self.url, dialect, timeouts), workload, load: self.load() })
    }

    fn load(&self) -> Load {
        let default_num_requests = self.duration.is_none().then_some(DEFAULT_NUM_REQUESTS);
        Load {
            pace: match self.rate {
                Some(per_second) => Pace::Open { per_second },
                None => Pace::Closed { num_clients: self.concurrency.get() },
            },
            num_requests: self.num_requests.map(NonZeroU64::get).or(default_num_requests),
            duration: self.duration.map(Duration::from_secs_f64),
            num_turns: self.turns.get(),
        }
    }
}

fn parse_url(text: &str) -> Result<String, String> {
    let url: Uri = text.parse().map_err(|error| format!("{error}"))?;
    if url.scheme_str() == Some("http") && url.host().is_some() && url.query().is_none() {
        Ok(text.to_owned())
    } else {
        Err("must be http://host[:port][/path]; https is not supported".to_owned())
    }
}

/// Parses a positive number of seconds, milliseconds or requests per second. The upper limit ensures that the number
/// can be converted to a duration.
fn parse_positive(text: &str) -> Result<f64, String> {
    let is_allowed = |number: &f64| *number > 0.0 && *number <= 1e9;
    text.parse().ok().filter(is_allowed).ok_or_else(|| "must be a number above 0, at most 1e9".to_owned())
}

fn read_prompts(path: &Path) -> Result<Vec<String>, ArgsError> {
    let name = || path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| ArgsError::Read { path: name(), source })?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse = |(idx, line)| {
        serde_json::from_str(line).map_err(|source| ArgsError::Prompt { path: name(), line: idx + 1, source })
    };
    let prompts: Vec<String> = lines.map(parse).collect::<Result<_, _>>()?;
    if prompts.is_empty() { Err(ArgsError::NoPrompts { path: name() }) } else { Ok(prompts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(flags: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(["text-generation-bench"].iter().chain(flags))
    }

    #[test]
    fn contradictory_flags_are_refused() {
        for flags in [
            &["--api", "completions"][..],
            &["--rate", "2", "--concurrency", "3"],
            &["--rate", "0"],
            &["--rate", "inf"],
            &["--concurrency", "0"],
            &["--url", "https://127.0.0.1"],
            &["--url", "127.0.0.1:3000"],
            &["--prompts", "file", "--prompt-tokens", "3"],
        ] {
            assert!(parse(flags).is_err(), "{flags:?}");
        }
        let error = parse(&["--ignore-eos"]).unwrap().plan().unwrap_err();
        assert!(error.to_string().contains("--ignore-eos"));
    }

    #[test]
    fn a_duration_lifts_the_default_number_of_requests() {
        assert_eq!(parse(&[]).unwrap().load().num_requests, Some(DEFAULT_NUM_REQUESTS));
        assert_eq!(parse(&["--duration", "3"]).unwrap().load().num_requests, None);
        assert_eq!(parse(&["--duration", "3", "--num-requests", "5"]).unwrap().load().num_requests, Some(5));
    }

    #[test]
    fn a_file_of_prompts_that_cannot_be_read_is_named() {
        let error = parse(&["--prompts", "/no/such/file"]).unwrap().plan().unwrap_err();
        assert!(error.to_string().starts_with("--prompts /no/such/file cannot be read: "));
    }
}
