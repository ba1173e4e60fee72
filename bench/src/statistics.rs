//! Exact percentiles: all samples are sorted, without buckets.

use serde::Serialize;

/// A summary of samples. The p-th percentile is the smallest sample that at least p percent of the samples do not
/// exceed (nearest rank), so it is always a measured value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Summary {
    /// Returns the summary of the samples; `None` if there are none.
    pub(crate) fn of(mut samples: Vec<f64>) -> Option<Self> {
        samples.sort_unstable_by(f64::total_cmp);
        let max = *samples.last()?;
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        let [p50, p90, p99] = [50, 90, 99].map(|percent| samples[rank(samples.len(), percent)]);
        Some(Self { mean, p50, p90, p99, max })
    }
}

/// Returns the index of a percentile among sorted samples.
fn rank(num_samples: usize, percent: usize) -> usize {
    (num_samples * percent).div_ceil(100).max(1) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let hundred = (1..=100).rev().map(f64::from).collect();
        let expected = Summary { mean: 50.5, p50: 50.0, p90: 90.0, p99: 99.0, max: 100.0 };
        assert_eq!(Summary::of(hundred), Some(expected));
        let expected = Summary { mean: 2.0, p50: 2.0, p90: 3.0, p99: 3.0, max: 3.0 };
        assert_eq!(Summary::of(vec![3.0, 1.0, 2.0]), Some(expected));
    }

    #[test]
    fn one_sample_is_all_of_them_and_none_is_nothing() {
        let one = Summary { mean: 7.0, p50: 7.0, p90: 7.0, p99: 7.0, max: 7.0 };
        assert_eq!(Summary::of(vec![7.0]), Some(one));
        assert_eq!(Summary::of(Vec::new()), None);
    }
}
