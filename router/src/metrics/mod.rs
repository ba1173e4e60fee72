//! The metrics of the router: name, unit, help text.
//!
//! Metrics that TGI or Prometheus' client libraries have too keep their names, so that existing dashboards work; the
//! names of our own metrics begin with `hilo_`. [`vllm`] has the same quantities again under vLLM's names, which
//! gateways and autoscalers read. There is no global recorder: code that counts has a handle. No label contains data
//! from a request.

mod page;
mod table;
mod vllm;

use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use scheduler::{Phase, Usage};

use crate::config::RequestLimits;
use page::LatestPage;
pub(crate) use page::Page;
use table::Table;
pub(crate) use vllm::Served;
use vllm::VllmMetrics;

/// A duration whose buckets begin in the range of microseconds. The buckets of other durations begin at 0.15 ms.
const DEVICE_IDLE_DURATION: &str = "hilo_device_idle_duration";

/// The number of buckets of equal width in a histogram whose values have a maximum.
const NUM_LINEAR_BUCKETS: u32 = 100;

/// The handles of all metrics. [`Metrics::new`] registers each metric with a method of [`Table`], which implies its
/// unit.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) request_count: Counter,
    pub(crate) request_success: Counter,
    pub(crate) request_failure: FailureCounters,
    pub(crate) request_duration: Histogram,
    pub(crate) request_validation_duration: Histogram,
    pub(crate) request_queue_duration: Histogram,
    pub(crate) request_inference_duration: Histogram,
    pub(crate) request_mean_time_per_token_duration: Histogram,
    pub(crate) request_time_to_first_token_duration: Histogram,
    pub(crate) request_input_length: Histogram,
    pub(crate) request_max_new_tokens: Histogram,
    pub(crate) request_generated_tokens: Histogram,
    prefill: StepMetrics,
    decode: StepMetrics,
    /// The time for which the device was idle before a step without prompts, although rows were ready.
    pub(crate) device_idle_duration: Histogram,
    pub(crate) batch_concat: Counter,
    pub(crate) batch_next_size: Histogram,
    batch_current_size: Gauge,
    batch_current_max_tokens: Gauge,
    pub(crate) batch_max_total_tokens: Gauge,
    queue_size: Gauge,
    kv_blocks_used: Gauge,
    kv_blocks_free: Gauge,
    kv_blocks_cached: Gauge,
    slots_used: Gauge,
    pub(crate) row_failures: Counter,
    pub(crate) kv_events_dropped: Counter,
    pub(crate) kv_events_subscribers: Gauge,
    pub(crate) programs_compiled: ProgramCounters,
    pub(crate) vllm: VllmMetrics,
    exporter: PrometheusHandle,
    latest_page: LatestPage,
}

/// A counter of failed requests for each reason.
#[derive(Debug)]
pub(crate) struct FailureCounters {
    pub(crate) validation: Counter,
    pub(crate) overloaded: Counter,
    pub(crate) generation: Counter,
    pub(crate) incomplete: Counter,
    pub(crate) timeout: Counter,
    pub(crate) dropped: Counter,
}

/// Metrics of the steps of one phase. A step that reads any prompt is a prefill.
#[derive(Debug)]
pub(crate) struct StepMetrics {
    pub(crate) count: Counter,
    pub(crate) success: Counter,
    pub(crate) failure: Counter,
    /// The time to the reply, from sending the command or from the end of the step before, whichever was later.
    pub(crate) inference_duration: Histogram,
    /// The time that the shard took, as it reports.
    pub(crate) forward_duration: Histogram,
    /// The time that the router takes to process the reply.
    pub(crate) decode_duration: Histogram,
}

/// The counters of programs that had to be compiled, in the warm-up and while serving.
#[derive(Debug)]
pub(crate) struct ProgramCounters {
    pub(crate) warmup: Counter,
    pub(crate) serving: Counter,
}

impl Metrics {
    /// Registers every metric.
    ///
    /// # Errors
    /// Never, because the exporter refuses only empty lists of buckets.
    pub(crate) fn new(limits: &RequestLimits, served: &Served<'_>) -> Result<Self, BuildError> {
        let recorder = recorder(limits)?;
        let t = Table { recorder: &recorder, labels: Vec::new() };
        t.show_start();
        Ok(Self {
            request_count: t.counter("tgi_request_count", "Requests received"),
            request_success: t.counter("tgi_request_success", "Requests with a complete response"),
            request_failure: t.failures("tgi_request_failure", "Requests without a complete response, by reason"),
            request_duration: t.duration("tgi_request_duration", "Seconds from receiving a request to its last token"),
            request_validation_duration: t.duration(
                "tgi_request_validation_duration",
                "Seconds from receiving a request to the end of its validation",
            ),
            request_queue_duration: t
                .duration("tgi_request_queue_duration", "Seconds that a request waited in the queue"),
            request_inference_duration: t.duration(
                "tgi_request_inference_duration",
                "Seconds from leaving the queue to the last token of a request",
            ),
            request_mean_time_per_token_duration: t.duration(
                "tgi_request_mean_time_per_token_duration",
                "Inference seconds of a request, divided by its generated tokens",
            ),
            request_time_to_first_token_duration: t.duration(
                "hilo_request_time_to_first_token_duration",
                "Seconds from receiving a request to its first token",
            ),
            request_input_length: t.tokens("tgi_request_input_length", "Prompt tokens per request"),
            request_max_new_tokens: t.tokens("tgi_request_max_new_tokens", "Max new tokens per request"),
            request_generated_tokens: t.tokens("tgi_request_generated_tokens", "Generated tokens per request"),
            prefill: t.steps("prefill"),
            decode: t.steps("decode"),
            device_idle_duration: t.duration(
                DEVICE_IDLE_DURATION,
                "Seconds that the device was idle before a decode step, although sequences were ready",
            ),
            batch_concat: t.batch_concat("tgi_batch_concat", "Steps in which new sequences joined running ones"),
            batch_next_size: t.rows("tgi_batch_next_size", "Sequences that joined the batch in one step"),
            batch_current_size: t.gauge("tgi_batch_current_size", "Running sequences"),
            batch_current_max_tokens: t
                .gauge("tgi_batch_current_max_tokens", "KV cache that running sequences use, in tokens"),
            batch_max_total_tokens: t.gauge("tgi_batch_max_total_tokens", "Size of the KV cache, in tokens"),
            queue_size: t.gauge("tgi_queue_size", "Sequences that wait in the queue"),
            kv_blocks_used: t.gauge("hilo_kv_blocks_used", "KV cache blocks that running sequences use"),
            kv_blocks_free: t.gauge("hilo_kv_blocks_free", "KV cache blocks that no running sequence uses"),
            kv_blocks_cached: t.gauge(
                "hilo_kv_blocks_cached",
                "KV cache blocks that only the prefix cache uses; hilo_kv_blocks_free includes them",
            ),
            row_failures: t
                .counter("hilo_row_failures_total", "Sequences that failed while the others of their batch continued"),
            kv_events_dropped: t.counter(
                "hilo_kv_events_dropped_total",
                "Messages with changes of the KV cache that a subscriber was too slow for; it got all blocks again instead",
            ),
            kv_events_subscribers: t.gauge("hilo_kv_events_subscribers", "Peers that have subscribed to KV events"),
            programs_compiled: t.programs_compiled(),
            slots_used: t.gauge("hilo_slots_used", "Batch slots that running sequences use"),
            vllm: VllmMetrics::new(&recorder, served),
            exporter: recorder.handle(),
            latest_page: LatestPage::default(),
        })
    }

    /// Returns the metrics of steps of this phase.
    pub(crate) fn steps(&self, phase: Phase) -> &StepMetrics {
        match phase {
            Phase::Prefill => &self.prefill,
            Phase::Decode => &self.decode,
        }
    }

    /// Sets the gauges of sequences, slots and blocks.
    pub(crate) fn show_usage(&self, usage: &Usage, block_size_tokens: u32) {
        self.batch_current_size.set(usage.num_running);
        self.batch_current_max_tokens.set(f64::from(usage.num_used_blocks) * f64::from(block_size_tokens));
        self.queue_size.set(usage.num_waiting);
        self.vllm.show_usage(usage);
        self.kv_blocks_used.set(usage.num_used_blocks);
        self.kv_blocks_free.set(usage.num_blocks - usage.num_used_blocks);
        self.kv_blocks_cached.set(usage.num_cached_blocks);
        self.slots_used.set(usage.num_running);
    }

    /// Returns the page of all metrics, for clients. Its values are not older than this call.
    pub(crate) async fn page(&self) -> Arc<Page> {
        self.latest_page.next(|| self.render()).await
    }

    /// Returns all values in Prometheus' text format, which takes time.
    pub(crate) fn render(&self) -> String {
        self.exporter.render()
    }

    /// Moves the samples of histograms into buckets. Must be called regularly, so that samples do not pile up between
    /// scrapes.
    pub(crate) fn upkeep(&self) {
        self.exporter.run_upkeep();
    }
}

fn recorder(limits: &RequestLimits) -> Result<PrometheusRecorder, BuildError> {
    let powers = |smallest: f64| -> Vec<f64> { (1..=35).map(|n| smallest * 1.5_f64.powi(n)).collect() };
    let (durations, idle_durations) = (powers(1e-4), powers(1e-6));
    let linear = |limit: u32| -> Vec<f64> {
        let step = f64::from(limit) / f64::from(NUM_LINEAR_BUCKETS);
        (1..=NUM_LINEAR_BUCKETS).map(|n| step * f64::from(n)).collect()
    };
    let step_tokens: Vec<f64> = (0..=14).map(|n| f64::from(1 << n)).collect();
    let rows: Vec<f64> = (0..=10).map(|n| f64::from(1 << n)).collect();
    let full = |name: &str| Matcher::Full(name.to_owned());
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("duration".to_owned()), &durations)?
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &durations)?
        .set_buckets_for_metric(full(vllm::PROMPT_TOKENS), &by_decades(limits.max_input_tokens))?
        .set_buckets_for_metric(full(vllm::PARAMS_MAX_TOKENS), &by_decades(limits.max_total_tokens))?
        .set_buckets_for_metric(full(vllm::GENERATION_TOKENS), &by_decades(limits.max_total_tokens))?
        .set_buckets_for_metric(full(vllm::ITERATION_TOKENS), &step_tokens)?
        .set_buckets_for_metric(full(DEVICE_IDLE_DURATION), &idle_durations)?
        .set_buckets_for_metric(full("tgi_request_input_length"), &linear(limits.max_input_tokens))?
        .set_buckets_for_metric(full("tgi_request_max_new_tokens"), &linear(limits.max_total_tokens))?
        .set_buckets_for_metric(full("tgi_request_generated_tokens"), &linear(limits.max_total_tokens))?
        .set_buckets_for_metric(full("tgi_batch_next_size"), &rows)?
        .build_recorder();
    Ok(recorder)
}

/// Returns 1, 2, 5, 10, 20, 50 and so on, up to `limit`: vLLM's buckets for numbers of tokens.
fn by_decades(limit: u32) -> Vec<f64> {
    let decades = std::iter::successors(Some(1.0), |decade| Some(decade * 10.0));
    let bounds = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|factor| factor * decade));
    bounds.take_while(|bound| *bound <= f64::from(limit.max(1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::request_limits;

    #[test]
    fn table() {
        let metrics = Metrics::new(&request_limits(), &Served::example()).unwrap();
        metrics.request_duration.record(0.01);
        let text = metrics.render();
        let mut names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# HELP ")).collect();
        names.sort_unstable();
        insta::assert_snapshot!(names.join("\n"));
    }

    #[test]
    fn lengths_have_vllms_buckets_under_vllms_names() {
        assert_eq!(by_decades(1024), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert_eq!((by_decades(0), by_decades(5)), (vec![1.0], vec![1.0, 2.0, 5.0]));
    }

    #[test]
    fn gauges_follow_the_scheduler_back_to_zero() {
        let metrics = Metrics::new(&request_limits(), &Served::example()).unwrap();
        let usage = Usage { num_waiting: 3, num_running: 2, num_used_blocks: 5, num_cached_blocks: 1, num_blocks: 10 };
        metrics.show_usage(&usage, 16);
        let text = metrics.render();
        for line in [
            "vllm:kv_cache_usage_perc{model_name=\"demo\",engine=\"0\"} 0.5",
            "tgi_batch_current_max_tokens 80",
            "tgi_queue_size 3",
            "hilo_slots_used 2",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        metrics.show_usage(&Usage { num_blocks: 10, ..Usage::default() }, 16);
        assert!(metrics.render().contains("hilo_kv_blocks_used 0"));
    }
}
