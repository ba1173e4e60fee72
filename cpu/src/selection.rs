//! Order statistics of a row of scores without sorting it: the k-th largest, the key at which a sum of weights (a mass)
//! is reached, the n best, and the inverse of the cumulative distribution.
//!
//! A threshold is found digit by digit, by a radix sort that follows only the bucket with the threshold. That takes
//! three passes over a vocabulary of any size. Sums are f64, in a fixed order. No function panics on NaN.

use proto::MAX_TIED_TOKENS;

/// Shift and width in bits of the digits of a key, from the highest: 11, 11 and 10 bits.
const DIGITS: [(u32, u32); 3] = [(21, 11), (10, 11), (0, 10)];

/// Returns the k-th largest of `scores`, or minus infinity if k is 0 or there are no scores. If k is larger than the
/// number of scores, returns the smallest score.
pub(super) fn kth_largest(scores: &[f32], k: usize) -> f32 {
    if k == 0 || scores.is_empty() {
        return f32::NEG_INFINITY;
    }
    // The keys are the negated scores, so the k-th largest score has the k-th smallest key.
    -threshold(|| scores.iter().map(|score| (-score, 1.0)), k as f64)
}

/// Returns the smallest key such that the weights of all keys up to it sum to at least `mass`, or the largest key if
/// all weights sum to less.
pub(super) fn mass_threshold(keys: &[f32], weights: &[f32], mass: f64) -> f32 {
    threshold(|| keys.iter().zip(weights).map(|(key, weight)| (*key, f64::from(*weight))), mass)
}

/// Returns the first index whose cumulative probability exceeds `u` times the total. If no index does, because of
/// rounding, returns the last index with a probability above 0; if there is no such index, returns 0.
pub(super) fn inverse_cdf(probabilities: &[f32], u: f64) -> usize {
    let total: f64 = probabilities.iter().copied().map(f64::from).sum();
    let mut cumulative = 0.0;
    let mut last_possible = 0;
    for (index, probability) in probabilities.iter().enumerate() {
        if *probability > 0.0 {
            cumulative += f64::from(*probability);
            last_possible = index;
            if cumulative > u * total {
                return index;
            }
        }
    }
    last_possible
}

/// Returns indices of the scores that are at least the n-th largest and above minus infinity, largest score first, the
/// lowest index first among equals. At most `n` + [`MAX_TIED_TOKENS`] indices are returned.
pub(super) fn top_tokens(scores: &[f32], n: usize) -> Vec<usize> {
    if n == 0 {
        return Vec::new();
    }
    let threshold = kth_largest(scores, n);
    let is_reported = |index: &usize| scores[*index] >= threshold && scores[*index] > f32::NEG_INFINITY;
    let mut indices: Vec<usize> = (0..scores.len()).filter(is_reported).collect();
    // Adding 0.0 turns -0.0 into 0.0, because `total_cmp` orders -0.0 below 0.0.
    let key = |index: usize| scores[index] + 0.0;
    indices.sort_by(|a, b| key(*b).total_cmp(&key(*a)).then(a.cmp(b)));
    indices.truncate(n.saturating_add(MAX_TIED_TOKENS));
    indices
}

fn threshold<I: Iterator<Item = (f32, f64)>>(entries: impl Fn() -> I, mass: f64) -> f32 {
    let mut prefix = 0;
    let mut below = 0.0;
    for (shift, bits) in DIGITS {
        let is_candidate = |order: u32| shift + bits == 32 || order >> (shift + bits) == prefix;
        let mut groups = vec![(0.0, false); 1 << bits];
        for (key, weight) in entries() {
            let order = ordered(key);
            if is_candidate(order) {
                let group: &mut (f64, bool) = &mut groups[(order >> shift) as usize & ((1 << bits) - 1)];
                *group = (group.0 + weight, true);
            }
        }
        let mut chosen = 0;
        let mut sum = below;
        for (digit, (weight, is_present)) in groups.iter().enumerate() {
            if *is_present {
                // If no sum reaches the mass, the last non-empty bucket is chosen, and `below` is the sum before that
                // bucket.
                (chosen, below) = (digit, sum);
                sum += weight;
                if sum >= mass {
                    break;
                }
            }
        }
        prefix = prefix << bits | chosen as u32;
    }
    from_ordered(prefix)
}

/// Maps floats to unsigned integers of the same order. Both zeroes map to the same integer; NaN comes last.
fn ordered(value: f32) -> u32 {
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    if value.is_nan() {
        u32::MAX
    } else if bits >> 31 == 0 {
        bits | 1 << 31
    } else {
        !bits
    }
}

fn from_ordered(order: u32) -> f32 {
    f32::from_bits(if order >> 31 == 1 { order & !(1 << 31) } else { !order })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scores() -> impl Strategy<Value = Vec<f32>> {
        let score = prop_oneof![
            (-3..3i32).prop_map(|score| score as f32),
            -100.0..100.0f32,
            Just(f32::NEG_INFINITY),
            Just(-0.0),
        ];
        prop::collection::vec(score, 1..60)
    }

    proptest! {
        #[test]
        fn the_kth_largest_is_where_sorting_puts_it(scores in scores(), k in 1..80usize) {
            let mut sorted = scores.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            prop_assert_eq!(kth_largest(&scores, k), sorted[k.min(sorted.len()) - 1]);
        }

        #[test]
        fn the_threshold_is_where_the_sorted_sum_reaches_the_mass(keys in scores(), mass in 0.01..1.0f64) {
            let weights = vec![1.0 / keys.len() as f32; keys.len()];
            let mut sorted = keys.clone();
            sorted.sort_by(f32::total_cmp);
            let at_or_below = |key: f32| keys.iter().filter(|other| **other <= key).count() as f64 * f64::from(weights[0]);
            // Sums in another order differ in the last bits, so masses close to a sum are skipped.
            prop_assume!(sorted.iter().all(|key| (at_or_below(*key) - mass).abs() > 1e-6));
            let expected = sorted.iter().copied().find(|key| at_or_below(*key) >= mass).unwrap_or(sorted[keys.len() - 1]);
            prop_assert_eq!(mass_threshold(&keys, &weights, mass), expected);
        }

        #[test]
        fn any_bits_are_survived(bits in prop::collection::vec(any::<u32>(), 0..40), n in 0..50usize) {
            let scores: Vec<f32> = bits.iter().copied().map(f32::from_bits).collect();
            let _ = (kth_largest(&scores, n), mass_threshold(&scores, &scores, 0.5), top_tokens(&scores, n));
            prop_assert!(inverse_cdf(&scores, 0.5) < scores.len().max(1));
        }
    }

    #[test]
    fn the_threshold_of_more_than_there_is_is_the_end() {
        let scores: Vec<f32> = (0..100).map(|i| 90.0 + i as f32 / 10.0).collect();
        assert_eq!(kth_largest(&scores, 100), 90.0);
        assert_eq!(kth_largest(&scores, 103), 90.0);
        assert_eq!(mass_threshold(&scores, &[0.01; 100], 1.02), scores[99]);
    }

    #[test]
    fn the_inverse_of_the_distribution() {
        let probabilities = [0.0, 0.25, 0.0, 0.5, 0.25, 0.0];
        for (u, expected) in [(0.0, 1), (0.2499, 1), (0.25, 3), (0.7499, 3), (0.75, 4), (0.9999, 4), (1.0, 4)] {
            assert_eq!(inverse_cdf(&probabilities, u), expected, "{u}");
        }
        assert_eq!(inverse_cdf(&[f32::NAN, f32::NAN], 0.5), 0);
    }

    #[test]
    fn top_tokens_include_ties_and_exclude_the_impossible() {
        let scores = [1.0, 3.0, f32::NEG_INFINITY, 2.0, 3.0, 2.0];
        assert_eq!(top_tokens(&scores, 1), [1, 4]);
        assert_eq!(top_tokens(&scores, 3), [1, 4, 3, 5]);
        assert_eq!(top_tokens(&scores, 9), [1, 4, 3, 5, 0]);
        assert!(top_tokens(&scores, 0).is_empty());
        assert_eq!(top_tokens(&[0.5; 1000], 3), (0..3 + MAX_TIED_TOKENS).collect::<Vec<_>>());
    }
}
