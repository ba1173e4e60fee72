//! Flags of vLLM's server. Those that TGI has too are in TGI's table.

use super::row::{Row, Verdict};

/// Flags of this server, each with the flag of vLLM that means the same. These have no environment variables, because
/// names such as HOST and MODEL belong to other programs.
pub(crate) const SAME: [(&str, &str); 10] = [
    ("hostname", "host"),
    ("huggingface-hub-cache", "download-dir"),
    ("max-batch-prefill-tokens", "max-num-batched-tokens"),
    ("max-batch-size", "max-num-seqs"),
    ("max-top-n-tokens", "max-logprobs"),
    ("max-total-tokens", "max-model-len"),
    ("model-id", "model"),
    ("num-shard", "tensor-parallel-size"),
    ("prefix-caching", "enable-prefix-caching"),
    ("quantize", "quantization"),
];

const PARSERS: &str = "tool calls and thoughts are read in the form of the model's chat template";
const ALWAYS: &str = "long prompts are always read in chunks";
const COMPILER: &str = "the device's compiler and kernels need no such setting";
const LOG: &str = "the log has one line for each request that succeeds; --log-level sets its level";
const ENGINE: &str = "one process serves HTTP";
const IMAGES: &str = "only text is read; images and sound in a request are refused";
const REPLICAS: &str = "one server has one replica of the model; run several servers behind a gateway";
const TRANSFER: &str = "KV blocks are not sent between servers";

/// The flags of vLLM that this server accepts but does not implement.
pub(super) const TABLE: [Row; 40] = [
    row("api-server-count", Verdict::Harmless, ENGINE),
    row("attention-backend", Verdict::Harmless, COMPILER),
    row("compilation-config", Verdict::Harmless, COMPILER),
    row("disable-access-log-for-endpoints", Verdict::Harmless, LOG),
    row("disable-frontend-multiprocessing", Verdict::Harmless, ENGINE),
    row("disable-log-requests", Verdict::Harmless, LOG),
    row("disable-log-stats", Verdict::Harmless, "statistics are only at /metrics"),
    row("disable-uvicorn-access-log", Verdict::Harmless, LOG),
    row("distributed-executor-backend", Verdict::Harmless, "the launcher starts the shards"),
    row("enable-auto-tool-choice", Verdict::Harmless, PARSERS),
    row("enable-chunked-prefill", Verdict::Harmless, ALWAYS),
    row("enable-log-requests", Verdict::Harmless, LOG),
    row("enable-reasoning", Verdict::Harmless, PARSERS),
    row("enforce-eager", Verdict::Harmless, COMPILER),
    row("limit-mm-per-prompt", Verdict::Harmless, IMAGES),
    row("no-enable-chunked-prefill", Verdict::Harmless, ALWAYS),
    row("reasoning-parser", Verdict::Harmless, PARSERS),
    row("structured-outputs-config", Verdict::Harmless, "one engine enforces all kinds of grammars"),
    row("swap-space", Verdict::Harmless, "a sequence that has to wait is computed again"),
    row("tool-call-parser", Verdict::Harmless, PARSERS),
    row("uvicorn-log-level", Verdict::Harmless, LOG),
    row("load-format", Verdict::Missing, "safetensors and GGUF files are found by their names"),
    row("otlp-traces-endpoint", Verdict::Missing, "no spans are exported; log lines have `trace_id` and `parent_id`"),
    row("seed", Verdict::Missing, "a request without a `seed` draws a random one; send `seed` with each request"),
    row(
        "speculative-config",
        Verdict::Missing,
        "speculative decoding is not implemented; responses are the same without it",
    ),
    Row {
        neutral: Some("16"),
        ..row("block-size", Verdict::Refused, "a block of the KV cache always has 16 tokens; leave this flag out")
    },
    row(
        "cpu-offload-gb",
        Verdict::Refused,
        "all weights stay in the device's memory; choose a smaller type with --quantize",
    ),
    Row { neutral: Some("1"), ..row("data-parallel-size", Verdict::Refused, REPLICAS) },
    row(
        "enable-lora",
        Verdict::Refused,
        "adapters are not loaded; merge one into its model (peft: `merge_and_unload`, `save_pretrained`) and pass that \
         with --model-id",
    ),
    row(
        "gpu-memory-utilization",
        Verdict::Refused,
        "the memory of a device cannot be limited as a whole; limit its largest part with --kv-cache-memory, such as 60%",
    ),
    row(
        "hf-overrides",
        Verdict::Refused,
        "the model's config.json is read as it is; change the file, and pass its folder with --model-id",
    ),
    row("kv-transfer-config", Verdict::Refused, TRANSFER),
    row(
        "lora-modules",
        Verdict::Refused,
        "adapters are not loaded; merge one into its model and pass that with --model-id",
    ),
    row("middleware", Verdict::Refused, "no Python code is run; put a proxy in front of the server"),
    row("no-enable-prefix-caching", Verdict::Refused, "write --prefix-caching false"),
    Row {
        neutral: Some("1"),
        ..row(
            "pipeline-parallel-size",
            Verdict::Refused,
            "layers are not divided among devices; divide each layer with --num-shard or --devices-per-shard",
        )
    },
    row("response-role", Verdict::Refused, "answers have the role `assistant`; leave this flag out"),
    row("root-path", Verdict::Refused, "paths begin at /; let the proxy remove its prefix"),
    row("tokenizer", Verdict::Refused, "the tokenizer is that of the model's folder; leave this flag out"),
    Row {
        neutral: Some("auto"),
        ..row(
            "tokenizer-mode",
            Verdict::Refused,
            "only tokenizer.json and GGUF's tokenizers are read; leave this flag out",
        )
    },
];

const fn row(flag: &'static str, verdict: Verdict, reason: &'static str) -> Row {
    Row { has_variable: false, ..Row::new(flag, verdict, reason) }
}
