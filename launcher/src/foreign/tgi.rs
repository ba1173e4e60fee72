//! Flags of text-generation-inference's launcher.

use super::row::{Row, Verdict};

/// The flags of TGI that this server accepts but does not implement.
pub(super) const TABLE: [Row; 19] = [
    Row::new("cuda-graphs", Verdict::Harmless, "programs are compiled for their batch sizes before the port opens"),
    Row::new("disable-custom-kernels", Verdict::Harmless, "the device chooses its kernels"),
    Row::new("enable-prefill-logprobs", Verdict::Harmless, "`decoder_input_details` always works"),
    // ENV is not one of TGI's variables, and other programs use it.
    Row {
        short: Some('e'),
        has_variable: false,
        ..Row::new("env", Verdict::Harmless, "the subcommand `plan` shows devices and processes")
    },
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
        neutral: Some("1"),
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
