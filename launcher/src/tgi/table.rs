//! To add a flag of TGI that is accepted but not implemented: add one row to [`TABLE`], with its reason, and the same
//! row to `docs/compatibility.md`.

use std::fmt;

/// The effect of giving a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The flag is not needed: the user loses nothing because it is ignored.
    Harmless,
    /// The flag is ignored with a warning: the user loses something, but responses are the same.
    Missing,
    /// The server does not start, because responses or the use of memory would differ from what the user asked for.
    Refused,
}

/// A flag: its effect, the reason, and what to do instead.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) flag: &'static str,
    pub(super) short: Option<char>,
    pub(super) verdict: Verdict,
    pub(super) reason: &'static str,
    /// A value, in addition to [`NO`], that asks for the default behaviour.
    neutral: Option<f64>,
}

/// Values that mean no, in lower case.
const NO: [&str; 5] = ["", "0", "false", "no", "off"];

/// The flags of TGI that this server accepts but does not implement.
pub(super) const TABLE: [Row; 19] = [
    Row::new("cuda-graphs", Verdict::Harmless, "programs are compiled for their batch sizes before the port opens"),
    Row::new("disable-custom-kernels", Verdict::Harmless, "the device chooses its kernels"),
    Row::new("enable-prefill-logprobs", Verdict::Harmless, "`decoder_input_details` always works"),
    Row { short: Some('e'), ..Row::new("env", Verdict::Harmless, "the subcommand `plan` shows devices and processes") },
    Row::new("master-addr", Verdict::Harmless, "shards of one host find each other without an address"),
    Row::new("master-port", Verdict::Harmless, "shards of one host find each other without a port"),
    Row::new("trust-remote-code", Verdict::Harmless, "code of a model's repository is never run"),
    Row::new("usage-stats", Verdict::Harmless, "nothing is ever reported to anybody"),
    Row::new("ngrok-authtoken", Verdict::Harmless, "no tunnel is opened; the program `ngrok` opens one to --port"),
    Row::new("ngrok-edge", Verdict::Harmless, "no tunnel is opened; the program `ngrok` opens one to --port"),
    Row::new("otlp-endpoint", Verdict::Missing, "no spans are exported; log lines have `trace_id` and `parent_id`"),
    Row::new("otlp-service-name", Verdict::Missing, "no spans are exported; log lines have `trace_id` and `parent_id`"),
    Row::new("prometheus-port", Verdict::Missing, "metrics are at /metrics of --port, and no second port is opened"),
    Row::new(
        "speculate",
        Verdict::Missing,
        "speculative decoding is not implemented; responses are the same without it",
    ),
    Row {
        neutral: Some(1.0),
        ..Row::new(
            "cuda-memory-fraction",
            Verdict::Refused,
            "the memory of a GPU cannot be limited as a whole; limit its largest part with --kv-cache-memory, such as 60%",
        )
    },
    Row::new(
        "lora-adapters",
        Verdict::Refused,
        "adapters are not loaded; merge one into its model (peft: `merge_and_unload`, `save_pretrained`) and pass that \
         with --model-id",
    ),
    Row::new(
        "ngrok",
        Verdict::Refused,
        "no tunnel is opened; leave --ngrok out and run the program `ngrok http` with the value of --port",
    ),
    Row::new(
        "rope-factor",
        Verdict::Refused,
        "positions are scaled as the model says; write `rope_scaling` into its config.json, and leave this flag out",
    ),
    Row::new(
        "rope-scaling",
        Verdict::Refused,
        "positions are scaled as the model says; write `rope_scaling` into its config.json, and leave this flag out",
    ),
];

impl Row {
    const fn new(flag: &'static str, verdict: Verdict, reason: &'static str) -> Self {
        Self { flag, short: None, verdict, reason, neutral: None }
    }

    /// The environment variable of the flag. `--env` has none: ENV is not one of TGI's variables, and other programs
    /// use it.
    pub(super) fn variable(&self) -> Option<String> {
        (self.flag != "env").then(|| self.flag.to_uppercase().replace('-', "_"))
    }

    /// True if the value asks for the behaviour without the flag.
    pub(super) fn asks_for_nothing(&self, value: &str) -> bool {
        let value = value.trim().to_lowercase();
        NO.contains(&value.as_str()) || (self.neutral.is_some() && value.parse().ok() == self.neutral)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Harmless => "changes nothing",
            Self::Missing => "warns",
            Self::Refused => "refused",
        })
    }
}
