//! Softmax, log-softmax and argmax of a row of logits, for sampling.
//!
//! Entry points: [`softmax`], [`log_softmax`], [`LogSoftmax`] for the logprobs of a few tokens, [`argmax`]. A call
//! computes one row on the calling thread. Sums have a fixed order: each [`PART_LEN`] logits are summed in sixteen f32
//! lanes, and these sums are added in f64.
//!
//! A logit of minus infinity has probability 0. If any logit is NaN or plus infinity, or all are minus infinity, every
//! probability and logprob of the row is NaN.

use crate::isa::{self, Isa, Kernel, LANES, Simd};

/// The number of logits summed in f32 before the sum is added to an f64.
const PART_LEN: usize = 64 * LANES;

/// Replaces the logits by their probabilities, in place.
pub fn softmax(logits: &mut [f32]) {
    softmax_on(isa::active(), logits);
}

/// Replaces the logits by the logarithms of their probabilities, in place.
pub fn log_softmax(logits: &mut [f32]) {
    let normalised = LogSoftmax::of(logits);
    logits.iter_mut().for_each(|logit| *logit = normalised.logprob(*logit));
}

/// Returns the index of the largest logit, the lowest index among equals. NaN is skipped. Returns `None` if there is no
/// other logit.
pub fn argmax(logits: &[f32]) -> Option<usize> {
    let max = isa::active().run(Max { logits });
    logits.iter().position(|logit| *logit == max)
}

/// The maximum of a row of logits and the logarithm of the sum of `e^(logit - max)`, from which the logprob of each
/// logit follows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogSoftmax {
    max: f32,
    log_sum: f32,
}

impl LogSoftmax {
    /// Computes the maximum and the logarithm of the sum of `e^(logit - max)`.
    pub fn of(logits: &[f32]) -> Self {
        Self::of_on(isa::active(), logits)
    }

    /// [`LogSoftmax::of`] with a given instruction set.
    pub(crate) fn of_on(isa: Isa, logits: &[f32]) -> Self {
        let max = isa.run(Max { logits });
        let sum = isa.run(SumExponentials { logits, max });
        Self { max, log_sum: sum.ln() as f32 }
    }

    /// Returns the logarithm of the probability of a `logit` of the row.
    pub fn logprob(&self, logit: f32) -> f32 {
        (logit - self.max) - self.log_sum
    }
}

/// [`softmax`] with a given instruction set.
pub(crate) fn softmax_on(isa: Isa, logits: &mut [f32]) {
    let max = isa.run(Max { logits });
    let sum = isa.run(SumExponentials { logits, max });
    isa.run(Exponentiate { logits, max, factor: (1.0 / sum) as f32 });
}

/// Finds the largest logit that is not NaN. The result is minus infinity if there is none.
struct Max<'a> {
    logits: &'a [f32],
}

/// Computes the sum of e^(logit - max).
struct SumExponentials<'a> {
    logits: &'a [f32],
    max: f32,
}

/// Replaces every logit by e^(logit - max) * factor.
struct Exponentiate<'a> {
    logits: &'a mut [f32],
    max: f32,
    factor: f32,
}

impl Kernel for Max<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let (lanes, rest) = self.logits.as_chunks::<LANES>();
        // If one operand is NaN, `max` returns its second operand, which is never NaN here.
        let mut largest = simd.max(simd.load_padded(rest, f32::NEG_INFINITY), simd.splat(f32::NEG_INFINITY));
        for lanes in lanes {
            largest = simd.max(simd.load(lanes), largest);
        }
        simd.max_lane(largest)
    }
}

impl Kernel for SumExponentials<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f64 {
        let max = simd.splat(self.max);
        let mut sum = 0.0;
        for part in self.logits.chunks(PART_LEN) {
            let (lanes, rest) = part.as_chunks::<LANES>();
            let mut sums = simd.exp(simd.sub(simd.load_padded(rest, f32::NEG_INFINITY), max));
            for lanes in lanes {
                sums = simd.add(sums, simd.exp(simd.sub(simd.load(lanes), max)));
            }
            sum += f64::from(simd.sum(sums));
        }
        sum
    }
}

impl Kernel for Exponentiate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (max, factor) = (simd.splat(self.max), simd.splat(self.factor));
        let (lanes, rest) = self.logits.as_chunks_mut::<LANES>();
        for lanes in lanes {
            let exponentials = simd.exp(simd.sub(simd.load(lanes), max));
            simd.store(simd.mul(exponentials, factor), lanes);
        }
        let exponentials = simd.exp(simd.sub(simd.load_padded(rest, f32::NEG_INFINITY), max));
        simd.store_prefix(simd.mul(exponentials, factor), rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;

    #[test]
    fn agrees_with_f64() {
        for (isa, len) in Isa::available().into_iter().flat_map(|isa| [1, 16, 100, 50_257].map(|len| (isa, len))) {
            let logits: Vec<f32> = numbers(len, 1).into_iter().map(|value| value * 20.0).collect();
            let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
            let log_softmax = LogSoftmax::of_on(isa, &logits);
            let mut probabilities = logits.clone();
            softmax_on(isa, &mut probabilities);
            for (logit, probability) in logits.iter().zip(probabilities) {
                let exact = f64::from(*logit).exp() / sum;
                assert!((f64::from(probability) - exact).abs() <= 4e-6 * exact, "{isa}: {probability} not {exact}");
                let logprob = f64::from(log_softmax.logprob(*logit));
                assert!((logprob - exact.ln()).abs() <= 5e-6, "{isa}: {logprob} not {}", exact.ln());
            }
        }
    }

    #[test]
    fn forbidden_tokens_have_no_probability() {
        let mut logits = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 1.0];
        let mut logprobs = logits;
        log_softmax(&mut logprobs);
        assert_eq!((logprobs[0], logprobs[1]), (f32::NEG_INFINITY, -std::f32::consts::LN_2));
        softmax(&mut logits);
        assert_eq!(logits, [0.0, 0.5, 0.0, 0.5]);
    }

    #[test]
    fn nan_and_infinity_do_not_hide() {
        for broken in [f32::NAN, f32::INFINITY] {
            let mut logits = vec![0.0; 40];
            logits[3] = broken;
            softmax(&mut logits);
            assert!(logits.iter().all(|probability| probability.is_nan()), "with {broken}");
        }
    }

    #[test]
    fn the_lowest_of_the_largest_is_chosen() {
        let mut logits = vec![-1.0; 100];
        assert_eq!(argmax(&logits), Some(0));
        (logits[40], logits[71]) = (5.0, 5.0);
        assert_eq!(argmax(&logits), Some(40));
        (logits[0], logits[99]) = (f32::NAN, f32::NAN);
        assert_eq!(argmax(&logits), Some(40));
        assert_eq!(argmax(&[f32::NEG_INFINITY; 3]), Some(0));
        assert_eq!((argmax(&[f32::NAN; 20]), argmax(&[])), (None, None));
    }
}
