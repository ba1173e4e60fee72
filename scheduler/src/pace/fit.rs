//! A linear estimate of times that follows the last measurements.
//!
//! Entry point: [`Fit`]. The estimate is the least-squares solution without negative coefficients. Squares are of
//! relative errors, so a step that a busy machine delayed has little weight, and older measurements fade. Coordinate
//! descent starts from the solution before (Franc, Hlaváč and Navara, 2005, "Sequential Coordinate-Wise Algorithm for
//! the Non-negative Least Squares Problem"). So coefficients about which the last measurements say nothing stay as they
//! were.

/// The part of a measurement's weight that is left after the next one.
const FADING: f64 = 0.95;
/// The number of rounds over all coefficients after each measurement.
const NUM_ROUNDS: usize = 8;
/// The weight, as a part of its measurements, of the assumption that the coefficient of a feature after the first is 0.
const DOUBT: f64 = 0.02;
/// The least weight of a feature whose coefficient is computed. Below it, sums lose precision.
const MIN_WEIGHT: f64 = 1e-200;

/// A sum of `N` features, each times a coefficient that is at least 0. Without measurements it is 0. If measurements
/// leave open which features caused them, the first feature did.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fit<const N: usize> {
    /// The weighted products of two features.
    products: [[f64; N]; N],
    /// The weighted products of a feature and the measured value.
    moments: [f64; N],
    coefficients: [f64; N],
}

impl<const N: usize> Default for Fit<N> {
    fn default() -> Self {
        Self { products: [[0.0; N]; N], moments: [0.0; N], coefficients: [0.0; N] }
    }
}

impl<const N: usize> Fit<N> {
    /// Returns the estimate for these features.
    pub(super) fn estimate(&self, features: &[f64; N]) -> f64 {
        dot(&self.coefficients, features)
    }

    /// Returns the coefficients of the features.
    pub(super) fn coefficients(&self) -> &[f64; N] {
        &self.coefficients
    }

    /// Learns that `features` had this value, which must be above 0.
    pub(super) fn learn(&mut self, features: &[f64; N], value: f64) {
        let relative = features.map(|feature| feature / value);
        for i in 0..N {
            for j in 0..N {
                self.products[i][j] = self.products[i][j] * FADING + relative[i] * relative[j];
            }
            self.moments[i] = self.moments[i] * FADING + relative[i];
        }
        for _ in 0..NUM_ROUNDS {
            for i in (0..N).filter(|i| self.products[*i][*i] > MIN_WEIGHT) {
                let weight = self.products[i][i];
                let error = self.moments[i] - dot(&self.products[i], &self.coefficients);
                let coefficient = self.coefficients[i] + error / weight;
                self.coefficients[i] = (if i == 0 { coefficient } else { coefficient / (1.0 + DOUBT) }).max(0.0);
            }
        }
    }
}

fn dot<const N: usize>(a: &[f64; N], b: &[f64; N]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_follow_measurements_that_change() {
        let mut fit = Fit::<2>::default();
        for (per_token, per_step) in [(3.0, 50.0), (9.0, 20.0)] {
            for count in 0..400 {
                let tokens = f64::from(1 + count * 7 % 60);
                fit.learn(&[tokens, 1.0], per_token * tokens + per_step);
            }
            for tokens in [2.0, 30.0, 500.0] {
                let (estimate, exact) = (fit.estimate(&[tokens, 1.0]), per_token * tokens + per_step);
                assert!((estimate / exact - 1.0).abs() < 0.05, "{tokens} tokens: {estimate} for {exact}");
            }
        }
    }

    #[test]
    fn a_delayed_step_has_little_weight() {
        let mut fit = Fit::<1>::default();
        (0..50).for_each(|_| fit.learn(&[10.0], 100.0));
        fit.learn(&[10.0], 100_000.0);
        assert!((100.0..101.0).contains(&fit.estimate(&[10.0])), "{}", fit.estimate(&[10.0]));
    }

    #[test]
    fn a_coefficient_stays_while_its_feature_does_not_occur() {
        let mut fit = Fit::<2>::default();
        for count in 1..100 {
            fit.learn(&[1.0, f64::from(count % 5)], 10.0 + 4.0 * f64::from(count % 5));
        }
        (0..50_000).for_each(|_| fit.learn(&[1.0, 0.0], 10.0));
        assert!((fit.estimate(&[1.0, 5.0]) - 30.0).abs() < 1.0, "{}", fit.estimate(&[1.0, 5.0]));
    }

    #[test]
    fn the_first_feature_explains_what_is_open() {
        let mut fit = Fit::<2>::default();
        fit.learn(&[20.0, 1.0], 100.0);
        assert!((4.9..5.1).contains(&fit.coefficients()[0]), "{fit:?}");
    }
}
