//! Frequencies of rotary position embeddings (Su et al., 2021) and their scalings for longer contexts.
//!
//! Follows `transformers/modeling_rope_utils.py`, except [`RotaryScaling::Dynamic`]. `models/rope_config.rs` reads the
//! scaling from config.json.

use crate::graph::{Pairing, RotarySpec};

/// The change of the frequencies that extends the context beyond the context of the original training.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RotaryScaling {
    /// No change.
    Default,
    /// All positions are divided by `factor` (Chen et al., 2023).
    Linear { factor: f64 },
    /// The base grows with the length of the sequence. This server always uses the base of the longest sequence, whose
    /// length is `factor` times that of the training, because frequencies that change while a sequence grows would not
    /// fit the keys in the cache.
    Dynamic { factor: f64 },
    /// Low frequencies are divided by `factor`, high frequencies are kept, and frequencies between the two are a blend
    /// of both (Llama 3.1).
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_max_position_embeddings: f64 },
    /// As `Llama3` with another blend (Peng et al., 2023). Rotated vectors are also multiplied by `attention_factor`.
    Yarn(Yarn),
    /// Each frequency is divided by its own factor (Ding et al., 2024). Rotated vectors are multiplied by
    /// `attention_factor`.
    LongRope { factors: Vec<f64>, attention_factor: f64 },
    /// Only the pairs with the `num_rotated` highest frequencies are rotated, and positions are divided by `factor`
    /// (Gemma 4).
    Proportional { num_rotated: usize, factor: f64 },
}

/// The parameters of [`RotaryScaling::Yarn`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Yarn {
    pub(crate) factor: f64,
    /// A frequency with at least `beta_fast` turns within the original context is kept; a frequency with at most
    /// `beta_slow` turns is divided by `factor`.
    pub(crate) beta_fast: f64,
    pub(crate) beta_slow: f64,
    pub(crate) original_max_position_embeddings: f64,
    /// True if the blend begins and ends at whole indices of frequencies.
    pub(crate) is_truncated: bool,
    pub(crate) attention_factor: f64,
}

impl RotaryScaling {
    /// Returns the rotary embedding of the first `rotary_dim` values of each head, with the base `theta`.
    pub(crate) fn spec(&self, theta: f64, rotary_dim: usize, pairing: Pairing) -> RotarySpec {
        let dim = rotary_dim as f64;
        let theta = match self {
            // With this exponent the highest frequency is kept, and the lowest frequency is divided most.
            Self::Dynamic { factor } => theta * (factor * factor - (factor - 1.0)).powf(dim / (dim - 2.0)),
            Self::Default | Self::Linear { .. } | Self::Llama3 { .. } | Self::Yarn(_) => theta,
            Self::LongRope { .. } | Self::Proportional { .. } => theta,
        };
        let scaled = |index: usize| {
            let frequency = theta.powf(-2.0 * index as f64 / dim);
            match self {
                Self::Default | Self::Dynamic { .. } => frequency,
                Self::Linear { factor } => frequency / factor,
                Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                    let turns = original_max_position_embeddings * frequency / (2.0 * std::f64::consts::PI);
                    let blend = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                    (1.0 - blend) * frequency / factor + blend * frequency
                }
                Self::Yarn(yarn) => {
                    let divided = yarn.divided(index, theta, dim);
                    divided * frequency / yarn.factor + (1.0 - divided) * frequency
                }
                Self::LongRope { factors, .. } => frequency / factors[index],
                Self::Proportional { num_rotated, factor } if index < *num_rotated => frequency / factor,
                Self::Proportional { .. } => 0.0,
            }
        };
        let amplitude = match self {
            Self::Yarn(Yarn { attention_factor, .. }) | Self::LongRope { attention_factor, .. } => *attention_factor,
            Self::Default | Self::Linear { .. } | Self::Dynamic { .. } | Self::Llama3 { .. } => 1.0,
            Self::Proportional { .. } => 1.0,
        };
        let frequencies = (0..rotary_dim / 2).map(|index| scaled(index) as f32).collect();
        RotarySpec { frequencies, amplitude: amplitude as f32, pairing }
    }
}

impl Yarn {
    /// Returns how far a frequency is divided, from 0 (kept) to 1 (divided by `factor`). The result is a linear ramp
    /// between the indices of the frequencies with `beta_fast` and `beta_slow` turns.
    fn divided(&self, index: usize, theta: f64, dim: f64) -> f64 {
        let index_of = |turns: f64| {
            let wavelength = self.original_max_position_embeddings / turns;
            dim * (wavelength / (2.0 * std::f64::consts::PI)).ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (index_of(self.beta_fast), index_of(self.beta_slow));
        if self.is_truncated {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(dim - 1.0));
        let width = if low == high { 0.001 } else { high - low };
        ((index as f64 - low) / width).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(scaling: &RotaryScaling, expected: &[f32]) {
        let spec = scaling.spec(10_000.0, 8, Pairing::Halves);
        for (frequency, expected) in spec.frequencies.iter().zip(expected) {
            assert!((frequency - expected).abs() <= 1e-6 * expected, "{scaling:?}: {frequency} instead of {expected}");
        }
        assert_eq!(spec.frequencies.len(), expected.len());
    }

    #[test]
    fn frequencies_fall_from_one() {
        check(&RotaryScaling::Default, &[1.0, 0.1, 0.01, 0.001]);
        check(&RotaryScaling::Linear { factor: 4.0 }, &[0.25, 0.025, 0.0025, 0.00025]);
    }

    #[test]
    fn llama3_keeps_high_divides_low_and_blends_between() {
        // In a context of 200 the frequencies make 31.8, 3.18, 0.318 and 0.0318 turns.
        let scaling = RotaryScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 200.0,
        };
        let blend = (200.0 * 0.1 / (2.0 * std::f32::consts::PI) - 1.0) / 3.0;
        check(&scaling, &[1.0, (1.0 - blend) * 0.1 / 8.0 + blend * 0.1, 0.00125, 0.000125]);
    }

    #[test]
    fn a_dynamic_base_is_that_of_the_longest_sequence() {
        // With a factor of 2, the base is multiplied by (2 · 2 - 1) to the power of 8 / 6.
        let theta = 10_000.0 * 3.0_f32.powf(8.0 / 6.0);
        let expected = [0.0, 0.25, 0.5, 0.75].map(|share: f32| theta.powf(-share));
        check(&RotaryScaling::Dynamic { factor: 2.0 }, &expected);
    }

    #[test]
    fn long_rope_divides_each_frequency() {
        let scaling = RotaryScaling::LongRope { factors: vec![1.0, 2.0, 4.0, 10.0], attention_factor: 1.5 };
        check(&scaling, &[1.0, 0.05, 0.0025, 0.0001]);
        assert_eq!(scaling.spec(10_000.0, 8, Pairing::Halves).amplitude, 1.5);
    }

    #[test]
    fn low_frequencies_may_be_zero() {
        check(&RotaryScaling::Proportional { num_rotated: 2, factor: 4.0 }, &[0.25, 0.025, 0.0, 0.0]);
    }

    #[test]
    fn yarn_is_a_ramp_between_two_numbers_of_turns() {
        // Within 2000π positions the frequencies make 1000, 100, 10 and 1 turns: the ramp goes from the second
        // frequency to the last.
        let yarn = Yarn {
            factor: 4.0,
            beta_fast: 100.0,
            beta_slow: 1.0,
            original_max_position_embeddings: 2000.0 * std::f64::consts::PI,
            is_truncated: false,
            attention_factor: 1.25,
        };
        let scaling = RotaryScaling::Yarn(yarn);
        check(&scaling, &[1.0, 0.1, 0.01 * (0.5 + 0.5 / 4.0), 0.001 / 4.0]);
        assert_eq!(scaling.spec(10_000.0, 8, Pairing::Halves).amplitude, 1.25);
        // The floor of 1.2 and the ceiling of 2.8 make the same ramp.
        let turns = |index: f64| 1000.0 * 10.0_f64.powf(-index);
        let rounded = Yarn { beta_fast: turns(1.2), beta_slow: turns(2.8), is_truncated: true, ..yarn };
        assert_eq!([0, 1, 2, 3].map(|index| rounded.divided(index, 10_000.0, 8.0)), [0.0, 0.0, 0.5, 1.0]);
    }
}
