//! Formats the printed table, and finds the violations of an attack.

use std::time::Duration;

use integration_tests::aftermath::most_afterwards;

use crate::battle::{Effort, Outcome};
use crate::streams::Tally;

/// With `--measure`, the 99th percentile of the gaps between events must be at most this many times as long as without
/// the attack, or at most [`MAX_GAP`].
const MAX_GAP_FACTOR: u32 = 8;
const MAX_GAP: Duration = Duration::from_millis(80);
/// With `--measure`, the maximum time until structured output is accepted after an attack.
const MAX_STRUCTURED_WAIT: Duration = Duration::from_secs(1);

/// The head of the table, with an explanation of its columns.
pub(crate) const HEAD: &str = "\
calm, during: gaps between events without and during the attack, p50/p99/max, ms; first: until the first event, p99/max
router, shards: memory before/peak/after, MiB; structured: until structured output is accepted afterwards
attack                   calm                during                first          ended refused lost  router         \
shards         structured
";

/// Returns the row of an attack in the table.
pub(crate) fn row(name: &str, outcome: &Outcome) -> String {
    let Outcome { calm, attacked, before, peak, budget: _, aftermath } = outcome;
    let after = aftermath.as_ref().map(|aftermath| aftermath.resident).unwrap_or_default();
    let mib = |values: [u64; 3]| values.map(|bytes| (bytes >> 20).to_string()).join("/");
    let structured = match aftermath.as_ref().map(|aftermath| &aftermath.structured) {
        Some(Ok(time)) => format!("{} ms", ms(*time)),
        Some(Err(_)) => "refused".to_owned(),
        None => "gone".to_owned(),
    };
    format!(
        "{name:<24} {:<19} {:<21} {:<14} {:<5} {:<7} {:<5} {:<14} {:<14} {structured}",
        gaps(calm),
        gaps(attacked),
        [0.99, 1.0].map(|share| ms(quantile(&attacked.firsts, share))).join("/"),
        attacked.num_finished,
        attacked.num_refused,
        attacked.lost.len(),
        mib([before.router, peak.router, after.router]),
        mib([before.shards, peak.shards, after.shards]),
    )
}

/// Returns the violations that the measurements of an attack show.
pub(crate) fn faults(outcome: &Outcome, effort: &Effort) -> Vec<String> {
    let mut faults = Vec::new();
    let Outcome { calm, attacked, before, peak, budget, aftermath } = outcome;
    faults.extend(
        attacked.lost.first().map(|reason| format!("{} streams lost, the first: {reason}", attacked.lost.len())),
    );
    if attacked.num_finished == 0 {
        faults.push("no stream ended".to_owned());
    }
    match budget {
        None => faults.push("the router logged no memory budget at its start".to_owned()),
        Some(budget) if peak.router > *budget => {
            faults.push(format!("the router took {} MiB of {} MiB", peak.router >> 20, budget >> 20));
        }
        Some(_) => {}
    }
    let Some(aftermath) = aftermath else {
        faults.push("a process ended".to_owned());
        return faults;
    };
    faults.extend(aftermath.held.first().map(|_| format!("gauges above zero: {}", aftermath.held.join(", "))));
    if aftermath.resident.router > most_afterwards(*before, effort.kept) {
        let [before, after] = [before.router, aftermath.resident.router].map(|bytes| bytes >> 20);
        faults.push(format!("the router keeps {after} MiB of {before} MiB before"));
    }
    match &aftermath.structured {
        Err(reason) => faults.push(format!("structured output is refused: {reason}")),
        Ok(wait) if effort.judges_time && *wait > MAX_STRUCTURED_WAIT => {
            faults.push(format!("structured output is refused for {} ms", ms(*wait)));
        }
        Ok(_) => {}
    }
    if effort.judges_time {
        let [calm, gap] = [calm, attacked].map(|tally| quantile(&tally.gaps, 0.99));
        if gap > MAX_GAP && gap > calm * MAX_GAP_FACTOR {
            faults.push(format!("p99 of gaps is {} ms, {} ms without the attack", ms(gap), ms(calm)));
        }
    }
    faults
}

fn gaps(tally: &Tally) -> String {
    [0.5, 0.99, 1.0].map(|share| ms(quantile(&tally.gaps, share))).join("/")
}

fn quantile(times: &[Duration], share: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let idx = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(idx.saturating_sub(1)).copied().unwrap_or_default()
}

fn ms(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    if ms < 100.0 { format!("{ms:.1}") } else { format!("{ms:.0}") }
}
