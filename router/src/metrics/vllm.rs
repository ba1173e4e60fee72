//! The metrics that gateways, autoscalers and dashboards made for vLLM read, under vLLM's names.
//!
//! Source: vLLM 0.33, `vllm/v1/metrics/loggers.py`. Every metric has vLLM's labels: the name of the model, and the
//! number of the engine, which is always 0.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Label};
use metrics_exporter_prometheus::PrometheusRecorder;
use scheduler::Usage;

use super::table::Table;
use crate::generation::{FinishReason, Timings};

pub(super) const PROMPT_TOKENS: &str = "vllm:request_prompt_tokens";
pub(super) const GENERATION_TOKENS: &str = "vllm:request_generation_tokens";
pub(super) const PARAMS_MAX_TOKENS: &str = "vllm:request_params_max_tokens";
pub(super) const ITERATION_TOKENS: &str = "vllm:iteration_tokens_total";

/// The facts about a server that labels contain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Served<'a> {
    /// The name by which clients know the model.
    pub(crate) model_name: &'a str,
    /// The number of tokens in a block of the KV cache.
    pub(crate) block_size: u32,
    /// The number of blocks in the KV cache.
    pub(crate) num_blocks: u32,
}

/// The handles of the metrics.
#[derive(Debug)]
pub(crate) struct VllmMetrics {
    num_requests_running: Gauge,
    num_requests_waiting: Gauge,
    kv_cache_usage: Gauge,
    prefix_cache_queries: Counter,
    prefix_cache_hits: Counter,
    pub(crate) num_preemptions: Counter,
    prompt_tokens: Counter,
    prompt_tokens_cached: Counter,
    pub(crate) generation_tokens: Counter,
    pub(crate) iteration_tokens: Histogram,
    inter_token_latency: Histogram,
    time_to_first_token: Histogram,
    e2e_request_latency: Histogram,
    request_queue_time: Histogram,
    request_prefill_time: Histogram,
    request_decode_time: Histogram,
    request_inference_time: Histogram,
    request_time_per_output_token: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    request_params_max_tokens: Histogram,
    finished: FinishedCounters,
}

/// A counter of ended requests for each reason.
#[derive(Debug)]
struct FinishedCounters {
    stop: Counter,
    length: Counter,
    abort: Counter,
    error: Counter,
}

impl VllmMetrics {
    /// Registers every metric.
    pub(super) fn new(recorder: &PrometheusRecorder, served: &Served<'_>) -> Self {
        let labels = vec![Label::new("model_name", served.model_name.to_owned()), Label::new("engine", "0")];
        let t = Table { recorder, labels };
        show_cache(&t, served);
        Self {
            num_requests_running: t
                .gauge("vllm:num_requests_running", "Running sequences; the same value as tgi_batch_current_size"),
            num_requests_waiting: t.gauge(
                "vllm:num_requests_waiting",
                "Sequences that wait in the queue; the same value as tgi_queue_size",
            ),
            kv_cache_usage: t
                .gauge("vllm:kv_cache_usage_perc", "Share of the KV cache that running sequences use, from 0 to 1"),
            prefix_cache_queries: t
                .counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache"),
            prefix_cache_hits: t.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache"),
            num_preemptions: t.counter(
                "vllm:num_preemptions_total",
                "Preemptions: running sequences that were sent back to the queue",
            ),
            prompt_tokens: t.counter("vllm:prompt_tokens_total", "Prompt tokens of admitted sequences"),
            prompt_tokens_cached: t
                .counter("vllm:prompt_tokens_cached_total", "Prompt tokens that were not computed again"),
            generation_tokens: t.counter("vllm:generation_tokens_total", "Generated tokens"),
            iteration_tokens: t.tokens(ITERATION_TOKENS, "Tokens that a step of the model reads"),
            inter_token_latency: t
                .duration("vllm:inter_token_latency_seconds", "Seconds between two tokens of a sequence"),
            time_to_first_token: t
                .duration("vllm:time_to_first_token_seconds", "Seconds from receiving a request to its first token"),
            e2e_request_latency: t
                .duration("vllm:e2e_request_latency_seconds", "Seconds from receiving a request to its last token"),
            request_queue_time: t
                .duration("vllm:request_queue_time_seconds", "Seconds that a request waited in the queue"),
            request_prefill_time: t.duration(
                "vllm:request_prefill_time_seconds",
                "Seconds from leaving the queue to the first token of a request",
            ),
            request_decode_time: t
                .duration("vllm:request_decode_time_seconds", "Seconds from the first to the last token of a request"),
            request_inference_time: t.duration(
                "vllm:request_inference_time_seconds",
                "Seconds from leaving the queue to the last token of a request",
            ),
            request_time_per_output_token: t.duration(
                "vllm:request_time_per_output_token_seconds",
                "Seconds from the first to the last token of a request, divided by the tokens after the first",
            ),
            request_prompt_tokens: t.tokens(PROMPT_TOKENS, "Prompt tokens per request"),
            request_generation_tokens: t.tokens(GENERATION_TOKENS, "Generated tokens per request"),
            request_params_max_tokens: t.tokens(PARAMS_MAX_TOKENS, "Max new tokens per request"),
            finished: finished(&t),
        }
    }

    /// Sets the gauges of sequences and blocks.
    pub(super) fn show_usage(&self, usage: &Usage) {
        self.num_requests_running.set(usage.num_running);
        self.num_requests_waiting.set(usage.num_waiting);
        self.kv_cache_usage.set(f64::from(usage.num_used_blocks) / f64::from(usage.num_blocks.max(1)));
    }

    /// Counts an admitted prompt, `num_cached` tokens of which need not be computed.
    pub(crate) fn note_prompt(&self, num_prompt_tokens: u32, num_cached: u32) {
        self.prefix_cache_queries.increment(num_prompt_tokens.into());
        self.prefix_cache_hits.increment(num_cached.into());
        self.prompt_tokens.increment(num_prompt_tokens.into());
        self.prompt_tokens_cached.increment(num_cached.into());
    }

    /// Records the lengths of a valid request.
    pub(crate) fn note_request(&self, num_prompt_tokens: usize, max_new_tokens: u32) {
        self.request_prompt_tokens.record(num_prompt_tokens as f64);
        self.request_params_max_tokens.record(max_new_tokens);
    }

    /// Records a step that took `duration` and gave `num_decoding` sequences their next token.
    pub(crate) fn note_decoded(&self, duration: Duration, num_decoding: usize) {
        self.inter_token_latency.record_many(duration, num_decoding);
    }

    /// Counts a complete response and records its times.
    pub(crate) fn note_success(&self, reason: FinishReason, timings: &Timings) {
        let counter = match reason {
            FinishReason::Length => &self.finished.length,
            FinishReason::EosToken | FinishReason::StopSequence => &self.finished.stop,
        };
        counter.increment(1);
        self.e2e_request_latency.record(timings.total());
        self.request_queue_time.record(timings.queue());
        self.request_inference_time.record(timings.inference());
        self.request_generation_tokens.record(timings.num_generated_tokens);
        if let (Some(first), Some(decode)) = (timings.time_to_first_token(), timings.decode()) {
            self.time_to_first_token.record(first);
            self.request_prefill_time.record(timings.inference().saturating_sub(decode));
            self.request_decode_time.record(decode);
            if timings.num_generated_tokens > 1 {
                self.request_time_per_output_token.record(decode / (timings.num_generated_tokens - 1));
            }
        }
    }

    /// Counts a request without a complete response. `is_abort` is true if its client left.
    pub(crate) fn note_failure(&self, is_abort: bool) {
        let Self { finished, .. } = self;
        if is_abort { finished.abort.increment(1) } else { finished.error.increment(1) }
    }
}

/// Shows the sizes of the KV cache in the labels of a metric that is always 1.
fn show_cache(table: &Table<'_>, served: &Served<'_>) {
    let sizes = [("block_size", served.block_size), ("num_gpu_blocks", served.num_blocks)];
    let sizes = sizes.map(|(name, size)| Label::new(name, size.to_string()));
    let table = Table { recorder: table.recorder, labels: [table.labels.as_slice(), &sizes].concat() };
    table.gauge("vllm:cache_config_info", "Sizes of the KV cache: tokens of a block, and blocks").set(1.0);
}

fn finished(table: &Table<'_>) -> FinishedCounters {
    let counter = |reason: &'static str| {
        let label = Some(Label::new("finished_reason", reason));
        table.labelled_counter("vllm:request_success_total", "Requests that have ended, by reason", label)
    };
    FinishedCounters {
        stop: counter("stop"),
        length: counter("length"),
        abort: counter("abort"),
        error: counter("error"),
    }
}

#[cfg(test)]
impl Served<'_> {
    /// Returns the facts about a small server.
    pub(crate) fn example() -> Self {
        Self { model_name: "demo", block_size: 16, num_blocks: 10 }
    }
}
