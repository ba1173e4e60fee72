//! Frequencies of rotary position embeddings (Su et al., 2021) and their scalings for longer contexts.
//!
//! Follows `transformers/modeling_rope_utils.py`. How a config.json spells a scaling is `models/rope_config.rs`'s affair.

use crate::graph::RotarySpec;

/// How frequencies are changed to reach beyond the context of the first training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RotaryScaling {
    /// Not at all.
    Default,
    /// All positions are divided by `factor` (Chen et al., 2023).
    Linear { factor: f64 },
    /// Low frequencies are divided by `factor`, high ones stay, those between are blended (Llama 3.1).
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_max_position_embeddings: f64 },
}

impl RotaryScaling {
    /// Frequencies for heads of `head_dim` and the base `theta`.
    pub(crate) fn spec(self, theta: f64, head_dim: usize) -> RotarySpec {
        let frequency = |i: usize| theta.powf(-2.0 * i as f64 / head_dim as f64);
        let frequencies = (0..head_dim / 2).map(|i| self.scale(frequency(i)) as f32).collect();
        RotarySpec { frequencies, amplitude: 1.0 }
    }

    fn scale(self, frequency: f64) -> f64 {
        match self {
            Self::Default => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                let turns = original_max_position_embeddings * frequency / (2.0 * std::f64::consts::PI);
                let blend = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                (1.0 - blend) * frequency / factor + blend * frequency
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(scaling: RotaryScaling, expected: &[f32]) {
        let spec = scaling.spec(10_000.0, 8);
        for (frequency, expected) in spec.frequencies.iter().zip(expected) {
            assert!((frequency - expected).abs() <= 1e-6 * expected, "{scaling:?}: {frequency} instead of {expected}");
        }
        assert_eq!(spec.frequencies.len(), expected.len());
    }

    #[test]
    fn frequencies_fall_from_one() {
        check(RotaryScaling::Default, &[1.0, 0.1, 0.01, 0.001]);
        check(RotaryScaling::Linear { factor: 4.0 }, &[0.25, 0.025, 0.0025, 0.00025]);
    }

    #[test]
    fn llama3_keeps_high_divides_low_and_blends_between() {
        // A context of 200 is 31.8, 3.18, 0.318 and 0.0318 turns.
        let scaling = RotaryScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 200.0,
        };
        let blend = (200.0 * 0.1 / (2.0 * std::f32::consts::PI) - 1.0) / 3.0;
        check(scaling, &[1.0, (1.0 - blend) * 0.1 / 8.0 + blend * 0.1, 0.00125, 0.000125]);
    }
}
