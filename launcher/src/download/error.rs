//! Errors of a download from the Hub. Where the user can do something, the message says what.

use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use indicatif::DecimalBytes;
use proto::exit_status;

/// The maximum `Retry-After` of the Hub. An error that asks for a longer wait is final.
pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// The errors of turning a model id into a folder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HubError {
    #[error("there is no folder for models; set HF_HOME or HOME")]
    NoCache,
    #[error("the token in {} cannot be read: {source}", .path.display())]
    TokenFile { path: PathBuf, source: io::Error },
    #[error("the token from {source_name} contains a space or another character that no token contains; copy it again")]
    TokenText { source_name: String },
    #[error("certificates cannot be read from {}: {problem}", .path.display())]
    Certificates { path: PathBuf, problem: String },
    #[error("HF_HUB_DOWNLOAD_TIMEOUT is {text:?}, but must be a number of seconds, at least 1")]
    Timeout { text: String },
    #[error(
        "model id {0:?} is not `demo`, a directory, or organisation/name of a model on the Hub, to which a quantization \
         may be added (organisation/name:Q4_K_M)"
    )]
    NoHubId(String),
    #[error("{endpoint} has no model {model:?}, or it is private; {}", credentials(.token.as_deref(), .endpoint))]
    NoModel { model: String, endpoint: String, token: Option<String> },
    #[error(
        "model {model:?} is gated: ask for access and accept its licence at {endpoint}/{model}; {}",
        credentials(.token.as_deref(), .endpoint)
    )]
    Gated { model: String, endpoint: String, token: Option<String> },
    #[error("{endpoint} does not know the token from {token}; make a new one at {endpoint}/settings/tokens")]
    BadToken { endpoint: String, token: String },
    #[error(
        "the request for {url} is refused (status 403{}); {}",
        because(.message), credentials(.token.as_deref(), .endpoint)
    )]
    Forbidden { url: String, message: String, endpoint: String, token: Option<String> },
    #[error(
        "the request for {url} is refused (status 403{}); {endpoint} redirected to this server, which gets no token: \
         check proxies and HF_ENDPOINT",
        because(.message)
    )]
    ForbiddenElsewhere { url: String, message: String, endpoint: String },
    #[error("model {model:?} has no revision {revision:?}; {endpoint}/{model}/tree/main lists its branches and tags")]
    NoRevision { model: String, revision: String, endpoint: String },
    #[error("model {model:?} has no file {name}")]
    NoFile { model: String, name: String },
    #[error(
        "{endpoint} responds with status 429: too many requests{}; try again in some minutes",
        quota(.token.as_deref())
    )]
    TooManyRequests { endpoint: String, token: Option<String>, retry_after: Option<Duration> },
    #[error("{url} responds with status {status}{}", because(.message))]
    Status { url: String, status: u16, message: String },
    #[error("{url} sends a response that the Hub would not send ({problem}); check HF_ENDPOINT and proxies")]
    Answer { url: String, problem: String },
    #[error(
        "{endpoint} cannot be reached: {reason}; {}, or set HF_HUB_OFFLINE=1 if the model is in the cache",
        network_advice(.reason)
    )]
    Unreachable { endpoint: String, reason: String, how: Unreached },
    #[error("the download of {name} ended after {received_bytes} of {size_bytes} bytes: {reason}")]
    Cut { name: String, received_bytes: u64, size_bytes: u64, reason: String },
    #[error("{endpoint} redirects to {url}, which is not encrypted; nothing is downloaded from there")]
    Open { endpoint: String, url: String },
    #[error(
        "the checksum of {name} is {found}, but the Hub says {expected}; the received bytes were discarded, so try again"
    )]
    Checksum { name: String, found: String, expected: String },
    #[error("cannot {action} {}: {source}{}", .path.display(), disk_advice(.source))]
    Disk { action: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "model {model:?} needs {} more, but {} has {} left; make room, or set HF_HOME or HF_HUB_CACHE to a larger disk",
        DecimalBytes(*.needed_bytes), .folder.display(), DecimalBytes(*.free_bytes)
    )]
    NoSpace { model: String, needed_bytes: u64, free_bytes: u64, folder: PathBuf },
    #[error(
        "HF_HUB_OFFLINE is set, but {} lacks files of model {model:?} at revision {revision:?}: {}; download them \
         where there is a network with `text-generation-launcher download-weights {model}`",
        .cache.display(), .missing.join(", ")
    )]
    Offline { model: String, revision: String, cache: PathBuf, missing: Vec<String> },
    #[error("model {model:?} has no {name}{}", instead(.name))]
    Lacks { model: String, name: &'static str },
    #[error(
        "model {model:?} has its weights only as pickles ({found}), which can run code and are not read; convert them with \
         transformers: `AutoModelForCausalLM.from_pretrained({model:?}).save_pretrained(directory)`, its tokenizer \
         likewise, and pass that directory"
    )]
    OnlyPickles { model: String, found: String },
    #[error(
        "model {model:?} has no GGUF file of {quantization}; it has {}",
        if .found.is_empty() { "no GGUF files at all" } else { .found.as_str() }
    )]
    NoGguf { model: String, quantization: String, found: String },
    #[error(
        "model {model:?} has several GGUF files: {found}; add the quantization of one to the model id, such as \
         {model}:Q8_0"
    )]
    SeveralGguf { model: String, found: String },
    #[error("model {model:?} lacks files of a split model: {missing}")]
    GgufPart { model: String, missing: String },
    #[error(
        "model {model:?} has no model.safetensors and no model.safetensors.index.json; choose a model that has one of them"
    )]
    NoWeights { model: String },
    #[error("model.safetensors.index.json is invalid: {problem}")]
    Index { problem: String },
    #[error("the handlers of SIGINT, SIGTERM and SIGHUP cannot be installed: {0}")]
    Signals(io::Error),
    #[error("the thread that downloads cannot be started: {0}")]
    Thread(io::Error),
    #[error("the thread that downloads panicked, which is a defect of this program")]
    Silent,
    #[error("the download was stopped; the next download continues from what was received")]
    Stopped,
}

/// The way in which the Hub was not reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreached {
    /// The connection failed at once: there is no network, no host with this name, or nothing listens.
    Refused,
    /// There was no response before the timeout.
    Silent,
    /// The connection broke, or the response was not valid HTTP.
    Broken,
    /// The failure is permanent, such as a certificate that is not trusted or a request that cannot be made.
    Final,
}

impl HubError {
    /// True if the error may go away by itself, so that another try is useful.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { how, .. } => *how != Unreached::Final,
            Self::TooManyRequests { retry_after, .. } => retry_after.is_none_or(|wait| wait <= MAX_RETRY_AFTER),
            Self::Status { status, .. } => *status == 408 || *status >= 500,
            Self::Cut { .. } => true,
            _ => false,
        }
    }

    /// The way in which the Hub was not reached, or `None` for any other error.
    pub(crate) fn unreached(&self) -> Option<Unreached> {
        match self {
            Self::Unreachable { how, .. } => Some(*how),
            _ => None,
        }
    }

    /// The time that the Hub asks the client to wait, if any.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::TooManyRequests { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The exit status, one of [`exit_status`]: a failure if the cause is the network, the Hub's load or failure, the
    /// disk, damaged bytes or this process, otherwise a configuration error.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            _ if self.is_passing() => exit_status::FAILURE,
            Self::TooManyRequests { .. }
            | Self::Unreachable { .. }
            | Self::Disk { .. }
            | Self::NoSpace { .. }
            | Self::Checksum { .. }
            | Self::Signals(_)
            | Self::Thread(_)
            | Self::Silent
            | Self::Stopped => exit_status::FAILURE,
            _ => exit_status::CONFIGURATION,
        }
    }
}

fn credentials(token: Option<&str>, endpoint: &str) -> String {
    match token {
        Some(source) => format!("the token that was used is from {source}"),
        None => format!("no token was used: set HF_TOKEN to one from {endpoint}/settings/tokens"),
    }
}

fn quota(token: Option<&str>) -> &'static str {
    if token.is_some() { "" } else { " without a token (HF_TOKEN allows more)" }
}

fn because(message: &str) -> String {
    let mut text = String::new();
    if !message.is_empty() {
        let _ = write!(text, ": {message}");
    }
    text
}

fn network_advice(reason: &str) -> &'static str {
    match reason.contains("certificate") {
        true => "if a proxy replaces certificates, set SSL_CERT_FILE to a file with its own",
        false => "check the network and HTTPS_PROXY",
    }
}

fn instead(name: &str) -> &'static str {
    match name {
        "tokenizer.json" => {
            "; make one with transformers: `AutoTokenizer.from_pretrained(model).save_pretrained(directory)`, and pass a \
             directory with all files"
        }
        _ => "; is it a language model?",
    }
}

fn disk_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "; make room, or set HF_HOME or HF_HUB_CACHE to a larger disk; what was received is kept"
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "; set HF_HOME or HF_HUB_CACHE to a writable folder, or run as its owner (a container: --user)"
        }
        _ => "",
    }
}
