//! The report of a run, which is printed as a table for people or as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::args::Args;
use crate::client::Completion;
use crate::load::Run;
use crate::statistics::Summary;

/// The content of the report. Latencies and numbers of tokens include only successful requests.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    arguments: Args,
    elapsed_s: f64,
    was_interrupted: bool,
    pub(crate) num_succeeded: u64,
    pub(crate) num_failed: u64,
    pub(crate) num_unfinished: u64,
    pub(crate) failures: BTreeMap<String, FailureCount>,
    /// How output tokens were counted: by `events`, `usage` or `usage and events`.
    tokens_counted_by: &'static str,
    /// The number of prompt tokens. `None` if the server did not send it for each successful request.
    num_prompt_tokens: Option<u64>,
    pub(crate) num_output_tokens: u64,
    requests_per_s: f64,
    output_tokens_per_s: f64,
    /// The number of requests per second that met the objectives; `None` without objectives.
    pub(crate) goodput_per_s: Option<f64>,
    pub(crate) time_to_first_token_ms: Option<Summary>,
    pub(crate) inter_token_latency_ms: Option<Summary>,
    pub(crate) time_per_output_token_ms: Option<Summary>,
    pub(crate) end_to_end_ms: Option<Summary>,
    latest_start_ms: Option<f64>,
}

/// The failures of one kind.
#[derive(Debug, Serialize)]
pub(crate) struct FailureCount {
    pub(crate) count: u64,
    /// The message of the first failure.
    pub(crate) first: String,
}

impl Report {
    pub(crate) fn new(arguments: Args, run: &Run) -> Self {
        let completions: Vec<&Completion> =
            run.records.iter().filter_map(|record| record.result.as_ref().ok()).collect();
        let elapsed_s = run.elapsed.as_secs_f64();
        let per_second = |count: u64| if elapsed_s > 0.0 { count as f64 / elapsed_s } else { 0.0 };
        let num_succeeded = completions.len() as u64;
        let num_output_tokens = completions.iter().map(|completion| completion.num_output_tokens()).sum();
        let times = |time: fn(&Completion) -> Option<f64>| completions.iter().copied().filter_map(time).collect();
        let num_good = completions.iter().filter(|completion| is_good(&arguments, completion)).count() as u64;
        let has_objectives = arguments.slo_ttft_ms.is_some() || arguments.slo_itl_ms.is_some();
        Self {
            arguments,
            elapsed_s,
            was_interrupted: run.was_interrupted,
            num_succeeded,
            num_failed: run.records.len() as u64 - num_succeeded,
            num_unfinished: run.num_unfinished,
            failures: failures(run),
            tokens_counted_by: tokens_counted_by(&completions),
            num_prompt_tokens: completions.iter().map(|completion| completion.num_prompt_tokens).sum(),
            num_output_tokens,
            requests_per_s: per_second(num_succeeded),
            output_tokens_per_s: per_second(num_output_tokens),
            goodput_per_s: has_objectives.then(|| per_second(num_good)),
            time_to_first_token_ms: Summary::of(times(time_to_first_token_ms)),
            inter_token_latency_ms: Summary::of(completions.iter().copied().flat_map(gaps_ms).collect()),
            time_per_output_token_ms: Summary::of(times(time_per_output_token_ms)),
            end_to_end_ms: Summary::of(times(|completion| Some(milliseconds(completion.end_to_end)))),
            latest_start_ms: run.latest_start.map(milliseconds),
        }
    }

    /// Returns the report as one line of JSON.
    pub(crate) fn to_json(&self) -> String {
        let text = serde_json::to_string(self).expect("numbers and text are JSON");
        text + "\n"
    }

    fn write_counts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<22}{} succeeded, {} failed", "requests", self.num_succeeded, self.num_failed)?;
        if self.was_interrupted {
            write!(f, "; interrupted, {} were running", self.num_unfinished)?;
        }
        writeln!(f)?;
        for (kind, FailureCount { count, first }) in &self.failures {
            writeln!(f, "  {count} × {kind}, first: {first}")?;
        }
        writeln!(f, "{:<22}{:.2} s", "elapsed", self.elapsed_s)?;
        if let Some(latest_start_ms) = self.latest_start_ms {
            writeln!(f, "{:<22}{latest_start_ms:.1} ms late", "latest start")?;
        }
        if let Some(num_prompt_tokens) = self.num_prompt_tokens {
            writeln!(f, "{:<22}{num_prompt_tokens}", "prompt tokens")?;
        }
        writeln!(f, "{:<22}{}, counted by {}", "output tokens", self.num_output_tokens, self.tokens_counted_by)?;
        writeln!(f, "{:<22}{:.2}", "requests/s", self.requests_per_s)?;
        writeln!(f, "{:<22}{:.1}", "output tokens/s", self.output_tokens_per_s)?;
        if let Some(goodput_per_s) = self.goodput_per_s {
            writeln!(f, "{:<22}{goodput_per_s:.2} requests/s within the objectives", "goodput")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_counts(f)?;
        writeln!(f, "\n{:<22}{:>10}{:>10}{:>10}{:>10}{:>10}", "ms", "mean", "p50", "p90", "p99", "max")?;
        for (name, summary) in [
            ("time to first token", &self.time_to_first_token_ms),
            ("inter-token latency", &self.inter_token_latency_ms),
            ("time per output token", &self.time_per_output_token_ms),
            ("end to end", &self.end_to_end_ms),
        ] {
            match summary {
                Some(Summary { mean, p50, p90, p99, max }) => {
                    writeln!(f, "{name:<22}{mean:>10.2}{p50:>10.2}{p90:>10.2}{p99:>10.2}{max:>10.2}")?;
                }
                None => writeln!(f, "{name:<22}{:>10}", "-")?,
            }
        }
        Ok(())
    }
}

/// True if the request met the objectives. If the request has no token, its end counts as its first token. If the
/// request has no time per output token, this time counts as 0.
fn is_good(arguments: &Args, completion: &Completion) -> bool {
    let ttft_ms = time_to_first_token_ms(completion).unwrap_or(milliseconds(completion.end_to_end));
    let itl_ms = time_per_output_token_ms(completion).unwrap_or(0.0);
    arguments.slo_ttft_ms.is_none_or(|limit| ttft_ms <= limit)
        && arguments.slo_itl_ms.is_none_or(|limit| itl_ms <= limit)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn time_to_first_token_ms(completion: &Completion) -> Option<f64> {
    completion.token_times.first().copied().map(milliseconds)
}

/// Returns the time from the first to the last event with a token, divided by the number of tokens after the first.
/// `None` if there are fewer than two such events or tokens.
fn time_per_output_token_ms(completion: &Completion) -> Option<f64> {
    let [first, .., last] = completion.token_times[..] else { return None };
    let num_further = completion.num_output_tokens().checked_sub(1).filter(|num_further| *num_further > 0)?;
    Some(milliseconds(last - first) / num_further as f64)
}

/// Returns the times between consecutive events with tokens.
fn gaps_ms(completion: &Completion) -> impl Iterator<Item = f64> {
    completion.token_times.windows(2).map(|pair| milliseconds(pair[1] - pair[0]))
}

fn failures(run: &Run) -> BTreeMap<String, FailureCount> {
    let mut failures = BTreeMap::new();
    for failure in run.records.iter().filter_map(|record| record.result.as_ref().err()) {
        let first = || FailureCount { count: 0, first: failure.to_string() };
        failures.entry(failure.kind()).or_insert_with(first).count += 1;
    }
    failures
}

fn tokens_counted_by(completions: &[&Completion]) -> &'static str {
    let has_usage = |wanted| completions.iter().any(|completion| completion.usage.is_some() == wanted);
    match (has_usage(true), has_usage(false)) {
        (true, true) => "usage and events",
        (true, false) => "usage",
        (false, _) => "events",
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::client::Failure;
    use crate::load::Record;

    fn args(slo_ttft_ms: Option<f64>, slo_itl_ms: Option<f64>) -> Args {
        let mut args = Args::parse_from(["text-generation-bench"]);
        (args.slo_ttft_ms, args.slo_itl_ms) = (slo_ttft_ms, slo_itl_ms);
        args
    }

    fn completion(token_times_ms: &[u64], has_usage: bool) -> Completion {
        Completion {
            token_times: token_times_ms.iter().copied().map(Duration::from_millis).collect(),
            end_to_end: Duration::from_millis(token_times_ms.last().unwrap_or(&0) + 1),
            usage: has_usage.then_some(token_times_ms.len() as u64),
            num_prompt_tokens: Some(9),
            text: String::new(),
        }
    }

    fn run(results: Vec<Result<Completion, Failure>>) -> Run {
        let record = |result| Record { result, ended: Duration::from_secs(2) };
        Run {
            records: results.into_iter().map(record).collect(),
            elapsed: Duration::from_secs(2),
            num_unfinished: 0,
            was_interrupted: false,
            latest_start: None,
        }
    }

    fn report(slo_ttft_ms: Option<f64>, slo_itl_ms: Option<f64>) -> Report {
        let broken = |text: &str| Err(Failure::BrokenOff(text.to_owned()));
        let results =
            vec![Ok(completion(&[10, 12, 16], true)), broken("one"), Ok(completion(&[30, 31], false)), broken("two")];
        Report::new(args(slo_ttft_ms, slo_itl_ms), &run(results))
    }

    #[test]
    fn numbers_add_up() {
        let report = report(None, None);
        assert_eq!((report.num_succeeded, report.num_failed, report.num_output_tokens), (2, 2, 5));
        assert_eq!((report.requests_per_s, report.output_tokens_per_s, report.goodput_per_s), (1.0, 2.5, None));
        assert_eq!((report.num_prompt_tokens, report.tokens_counted_by), (Some(18), "usage and events"));
        let max = |summary: Option<Summary>| summary.unwrap().max;
        assert_eq!(max(report.time_to_first_token_ms), 30.0);
        assert_eq!(max(report.inter_token_latency_ms), 4.0);
        assert_eq!(max(report.time_per_output_token_ms), 3.0);
        assert_eq!(max(report.end_to_end_ms), 32.0);
        let failures: Vec<_> = report.failures.iter().map(|(kind, row)| (kind.as_str(), row.count)).collect();
        assert_eq!(failures, [("stream broke off", 2)]);
    }

    #[test]
    fn goodput_counts_requests_that_keep_to_all_objectives() {
        for (ttft_ms, itl_ms, expected) in [
            (Some(10.0), None, 0.5),
            (None, Some(1.0), 0.5),
            (Some(10.0), Some(1.0), 0.0),
            (Some(30.0), Some(3.0), 1.0),
        ] {
            assert_eq!(report(ttft_ms, itl_ms).goodput_per_s, Some(expected), "{ttft_ms:?} {itl_ms:?}");
        }
    }

    #[test]
    fn tables_show_the_first_failure_of_a_kind_and_every_row() {
        let text = report(Some(10.0), None).to_string();
        for part in [
            "2 × stream broke off, first: the stream broke off: one\n",
            "output tokens         5, counted by usage and events\n",
            "goodput               0.50 requests/s within the objectives\n",
            "time to first token        20.00     10.00     30.00     30.00     30.00\n",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn nothing_measured_is_no_number() {
        let report = Report::new(args(Some(1.0), None), &run(Vec::new()));
        assert!(report.to_string().contains("end to end                     -\n"));
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert!(json["end_to_end_ms"].is_null());
        assert_eq!(json["arguments"]["slo_ttft_ms"], 1.0);
    }
}
