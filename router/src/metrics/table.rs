//! Registers metrics: one method for each kind, which implies the unit.

use std::time::SystemTime;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::PrometheusRecorder;

use super::{FailureCounters, ProgramCounters, StepMetrics};

const METADATA: Metadata<'static> = Metadata::new("router", Level::INFO, None);

/// A recorder, with one method for each kind of metric that is registered.
pub(super) struct Table<'a> {
    pub(super) recorder: &'a PrometheusRecorder,
    /// The labels of every metric.
    pub(super) labels: Vec<Label>,
}

impl Table<'_> {
    pub(super) fn counter(&self, name: &'static str, help: &'static str) -> Counter {
        self.labelled_counter(name, help, None)
    }

    pub(super) fn labelled_counter(&self, name: &'static str, help: &'static str, label: Option<Label>) -> Counter {
        self.recorder.describe_counter(KeyName::from(name), Some(Unit::Count), help.into());
        let counter = self.recorder.register_counter(&self.key(name, label), &METADATA);
        // The increment makes the counter appear with the value 0 before its first event.
        counter.increment(0);
        counter
    }

    pub(super) fn gauge(&self, name: &'static str, help: &'static str) -> Gauge {
        self.recorder.describe_gauge(KeyName::from(name), Some(Unit::Count), help.into());
        let gauge = self.recorder.register_gauge(&self.key(name, None), &METADATA);
        gauge.set(0.0);
        gauge
    }

    pub(super) fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        unit: Unit,
        label: Option<Label>,
    ) -> Histogram {
        self.recorder.describe_histogram(KeyName::from(name), Some(unit), help.into());
        self.recorder.register_histogram(&self.key(name, label), &METADATA)
    }

    pub(super) fn duration(&self, name: &'static str, help: &'static str) -> Histogram {
        self.histogram(name, help, Unit::Seconds, None)
    }

    pub(super) fn tokens(&self, name: &'static str, help: &'static str) -> Histogram {
        self.histogram(name, help, Unit::Count, None)
    }

    pub(super) fn rows(&self, name: &'static str, help: &'static str) -> Histogram {
        self.histogram(name, help, Unit::Count, None)
    }

    pub(super) fn batch_concat(&self, name: &'static str, help: &'static str) -> Counter {
        self.labelled_counter(name, help, Some(Label::new("reason", "chunking")))
    }

    pub(super) fn failures(&self, name: &'static str, help: &'static str) -> FailureCounters {
        let counter = |reason: &'static str| self.labelled_counter(name, help, Some(Label::new("err", reason)));
        FailureCounters {
            validation: counter("validation"),
            overloaded: counter("overloaded"),
            generation: counter("generation"),
            incomplete: counter("incomplete"),
            timeout: counter("timeout"),
            dropped: counter("dropped"),
        }
    }

    /// Registers and sets the start time of the process, as Prometheus' own client libraries do. A new value shows that
    /// the process was restarted.
    pub(super) fn show_start(&self) {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.gauge("process_start_time_seconds", "Start time of the router process, in seconds since 1970")
            .set(since_1970.as_secs_f64());
    }

    pub(super) fn programs_compiled(&self) -> ProgramCounters {
        let counter = |phase: &'static str| {
            let help = "Programs compiled because the program cache lacked them; a bug if it happens while serving";
            self.labelled_counter("hilo_programs_compiled_total", help, Some(Label::new("phase", phase)))
        };
        ProgramCounters { warmup: counter("warmup"), serving: counter("serving") }
    }

    pub(super) fn steps(&self, method: &'static str) -> StepMetrics {
        let label = || Some(Label::new("method", method));
        let duration = |name, help| self.histogram(name, help, Unit::Seconds, label());
        StepMetrics {
            count: self.labelled_counter("tgi_batch_inference_count", "Model steps started", label()),
            success: self.labelled_counter("tgi_batch_inference_success", "Model steps completed", label()),
            failure: self.labelled_counter("tgi_batch_inference_failure", "Model steps failed", label()),
            inference_duration: duration(
                "tgi_batch_inference_duration",
                "Seconds of a step, from sending it or from the end of the step before it, to its reply",
            ),
            forward_duration: duration("tgi_batch_forward_duration", "Seconds of a step that the shard took"),
            decode_duration: duration(
                "tgi_batch_decode_duration",
                "Seconds that the router took to process the reply of a step",
            ),
        }
    }

    fn key(&self, name: &'static str, label: Option<Label>) -> Key {
        Key::from_parts(name, self.labels.iter().cloned().chain(label).collect::<Vec<_>>())
    }
}
