//! To add a sampling parameter:
//! 1. `hilo.proto`: the field of `SamplingParams`. Here: its neutral value in [`SamplingParams::greedy`], a row of
//!    [`RANGES`], and a value with an effect in [`SamplingParams::every_processor`].
//! 2. `router/src/api/parameters.rs`: a field of `Parameters`. Both dialects must fill the field: TGI's in that file,
//!    and OpenAI's in `router/src/api/openai/sampling.rs`. Without it, neither compiles.
//! 3. `model/src/sampling/`: a file with its column and its processor, and a row in `PROCESSORS` in `mod.rs`.
//!
//! | field | neutral | legal | meaning |
//! |---|---|---|---|
//! | `temperature` | 1 | > 0, finite | divides logits; the smallest leave only the best token and its equals |
//! | `top_k` | 0 = off | any | keeps the k best tokens, and those that tie with the k-th |
//! | `top_p` | 1 = off | 0 < p ≤ 1 | keeps the smallest set of best tokens whose probability reaches p |
//! | `min_p` | 0 = off | 0 ≤ p ≤ 1 | keeps tokens at least p times as probable as the best one (Nguyen et al., 2024) |
//! | `typical_p` | 1 = off | 0 < p ≤ 1 | locally typical sampling (Meister et al., 2022) |
//! | `logit_bias` | empty | −100 … 100, ≤ [`MAX_LOGIT_BIASES`] tokens | added to the logits of named tokens (OpenAI) |
//! | `watermark_gamma` | any | 0 ≤ γ ≤ 1 | share of the vocabulary that is green (Kirchenbauer et al., 2023) |
//! | `watermark_delta` | 0 = off | −100 … 100 | added to the logits of green tokens |
//! | `repetition_penalty` | 1 | 0.01 … 100 | divides positive, multiplies negative logits of seen tokens (CTRL, 2019) |
//! | `frequency_penalty` | 0 | −2 … 2 | subtracted once per occurrence among generated tokens (OpenAI) |
//! | `presence_penalty` | 0 | −2 … 2 | subtracted once from the logits of tokens that were generated (OpenAI) |
//! | `min_new_tokens` | 0 = off | any | no end-of-sequence token before this number of tokens, unless masks demand it |
//! | `seed` | 0 | any | chooses the row's random stream |
//! | `is_greedy` | true | | takes the best token; temperature, top-k, top-p, min-p, typical-p and seed have no effect |
//! | `top_n_tokens` | 0 = off | router's limit | reports the n best tokens of every step |
//!
//! The ranges keep the scores of ordinary logits from overflowing, in every combination.

use crate::{LogitBias, SamplingError, SamplingParams};

/// The maximum number of end-of-sequence tokens of a model with which `min_new_tokens` can be used. Compiled programs
/// have an input of this size.
pub const MAX_HELD_BACK_TOKENS: usize = 8;

/// The maximum number of tokens of a `logit_bias`, as in OpenAI's API. Compiled programs have an input of this size.
pub const MAX_LOGIT_BIASES: usize = 300;

/// The maximum number of extra tokens that are reported because they tie with the last of the most probable tokens.
/// Without a limit, the whole vocabulary could be reported.
pub const MAX_TIED_TOKENS: usize = 64;

/// The legal ranges. Each row is a check of the parameters, and the sentence for the client if the check fails. The
/// parameters are in TGI's order; those that TGI lacks come last. No check accepts NaN.
const RANGES: [(IsKept, &str); 11] = [
    (|p| p.temperature > 0.0, "`temperature` must be strictly positive"),
    (|p| p.temperature.is_finite(), "`temperature` must be finite: at most 3.4e38"),
    (|p| p.repetition_penalty > 0.0, "`repetition_penalty` must be strictly positive"),
    // A more extreme penalty could make scores infinite.
    (|p| (0.01..=100.0).contains(&p.repetition_penalty), "`repetition_penalty` must be >= 0.01 and <= 100"),
    (|p| (-2.0..=2.0).contains(&p.frequency_penalty), "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    (|p| p.top_p > 0.0 && p.top_p <= 1.0, "`top_p` must be > 0.0 and <= 1.0"),
    (|p| p.typical_p > 0.0 && p.typical_p <= 1.0, "`typical_p` must be > 0.0 and <= 1.0"),
    (|p| (0.0..=1.0).contains(&p.min_p), "`min_p` must be >= 0.0 and <= 1.0"),
    (|p| (-2.0..=2.0).contains(&p.presence_penalty), "`presence_penalty` must be >= -2.0 and <= 2.0"),
    (|p| (0.0..=1.0).contains(&p.watermark_gamma), "`watermark_gamma` must be >= 0.0 and <= 1.0"),
    (|p| (-100.0..=100.0).contains(&p.watermark_delta), "`watermark_delta` must be >= -100.0 and <= 100.0"),
];

/// A function that returns true if the parameters are within a range.
type IsKept = fn(&SamplingParams) -> bool;

impl SamplingParams {
    /// Returns the parameters for greedy decoding in which every other parameter is neutral.
    pub fn greedy() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            min_new_tokens: 0,
            seed: 0,
            is_greedy: true,
            top_n_tokens: 0,
            logit_bias: Vec::new(),
            watermark_gamma: 0.5,
            watermark_delta: 0.0,
        }
    }

    /// Returns parameters for random sampling that turn on every processor except the mask, for warm-ups and
    /// measurements. They do not ask for the most probable tokens.
    pub fn every_processor() -> Self {
        Self {
            temperature: 0.9,
            top_k: 10,
            top_p: 0.9,
            min_p: 0.01,
            typical_p: 0.9,
            repetition_penalty: 1.2,
            frequency_penalty: 0.1,
            presence_penalty: 0.1,
            min_new_tokens: 1,
            seed: 1,
            is_greedy: false,
            top_n_tokens: 0,
            logit_bias: vec![LogitBias { token_id: 0, bias: 0.5 }],
            watermark_gamma: 0.5,
            watermark_delta: 0.1,
        }
    }

    /// Checks the parameters that have a legal range, and the list `logit_bias` except for the vocabulary.
    ///
    /// # Errors
    /// When a parameter is outside its legal range, which NaN always is, or `logit_bias` has too many tokens or one
    /// token twice. The error is the first one found.
    pub fn check(&self) -> Result<(), SamplingError> {
        match RANGES.iter().find(|(is_kept, _)| !is_kept(self)) {
            Some((_, sentence)) => Err(SamplingError::Range(sentence)),
            None => self.check_logit_bias(),
        }
    }

    /// Checks that the tokens in `logit_bias` are in a vocabulary of `vocab_size` tokens.
    ///
    /// # Errors
    /// When a token is not in the vocabulary. The error names the first such token.
    pub fn check_tokens(&self, vocab_size: u32) -> Result<(), SamplingError> {
        let unknown = self.logit_bias.iter().find(|entry| entry.token_id >= vocab_size);
        unknown.map_or(Ok(()), |entry| Err(SamplingError::LogitBiasToken { token_id: entry.token_id, vocab_size }))
    }

    fn check_logit_bias(&self) -> Result<(), SamplingError> {
        let given = self.logit_bias.len();
        if given > MAX_LOGIT_BIASES {
            return Err(SamplingError::LogitBiases { given });
        }
        if !self.logit_bias.iter().all(|entry| (-100.0..=100.0).contains(&entry.bias)) {
            return Err(SamplingError::LogitBias);
        }
        let mut token_ids: Vec<u32> = self.logit_bias.iter().map(|entry| entry.token_id).collect();
        token_ids.sort_unstable();
        let twice = token_ids.windows(2).find(|pair| pair[0] == pair[1]);
        twice.map_or(Ok(()), |pair| Err(SamplingError::LogitBiasTwice { token_id: pair[0] }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "reads better at the call")]
    fn check(change: impl Fn(&mut SamplingParams), expected: Result<(), SamplingError>) {
        let mut params = SamplingParams::greedy();
        change(&mut params);
        assert_eq!(params.check(), expected, "{params:?}");
    }

    fn out_of(sentence: &'static str) -> Result<(), SamplingError> {
        Err(SamplingError::Range(sentence))
    }

    #[test]
    fn ranges() {
        check(|_| (), Ok(()));
        for bad in [0.0, -0.0, -1.0, f32::NAN] {
            check(|p| p.temperature = bad, out_of("`temperature` must be strictly positive"));
            check(|p| p.repetition_penalty = bad, out_of("`repetition_penalty` must be strictly positive"));
        }
        check(|p| p.temperature = f32::INFINITY, out_of("`temperature` must be finite: at most 3.4e38"));
        for extreme in [f32::from_bits(1), f32::MIN_POSITIVE, f32::MAX] {
            check(|p| p.temperature = extreme, Ok(()));
        }
        for extreme in [f32::from_bits(1), 1e-38, 0.0099, 100.1, f32::MAX, f32::INFINITY] {
            check(|p| p.repetition_penalty = extreme, out_of("`repetition_penalty` must be >= 0.01 and <= 100"));
        }
        for good in [0.01, 0.5, 1.0, 100.0] {
            check(|p| p.repetition_penalty = good, Ok(()));
        }
        for bad in [-2.1, 2.1, f32::NAN] {
            check(|p| p.frequency_penalty = bad, out_of("`frequency_penalty` must be >= -2.0 and <= 2.0"));
            check(|p| p.presence_penalty = bad, out_of("`presence_penalty` must be >= -2.0 and <= 2.0"));
        }
        for bad in [0.0, -0.5, 1.1, f32::NAN] {
            check(|p| p.top_p = bad, out_of("`top_p` must be > 0.0 and <= 1.0"));
            check(|p| p.typical_p = bad, out_of("`typical_p` must be > 0.0 and <= 1.0"));
        }
        for bad in [-0.1, 1.1, f32::NAN] {
            check(|p| p.min_p = bad, out_of("`min_p` must be >= 0.0 and <= 1.0"));
        }
        for bad in [-0.1, 1.1, f32::NAN] {
            check(|p| p.watermark_gamma = bad, out_of("`watermark_gamma` must be >= 0.0 and <= 1.0"));
        }
        for bad in [-100.1, 1e38, f32::NAN, f32::INFINITY] {
            check(|p| p.watermark_delta = bad, out_of("`watermark_delta` must be >= -100.0 and <= 100.0"));
        }
        assert_eq!(SamplingParams::every_processor().check(), Ok(()));
        check(|p| p.min_p = 1.0, Ok(()));
        check(|p| (p.top_p, p.typical_p, p.frequency_penalty) = (1.0, 0.01, -2.0), Ok(()));
    }

    #[test]
    fn biases() {
        let biases = |entries: &[(u32, f32)]| -> Vec<LogitBias> {
            entries.iter().map(|(token_id, bias)| LogitBias { token_id: *token_id, bias: *bias }).collect()
        };
        check(|p| p.logit_bias = biases(&[(7, -100.0), (0, 100.0)]), Ok(()));
        for bad in [-100.5, 101.0, f32::NAN, f32::INFINITY] {
            check(|p| p.logit_bias = biases(&[(1, 0.5), (2, bad)]), Err(SamplingError::LogitBias));
        }
        let twice = Err(SamplingError::LogitBiasTwice { token_id: 5 });
        check(|p| p.logit_bias = biases(&[(5, 1.0), (4, 1.0), (5, 1.0)]), twice);
        let many: Vec<(u32, f32)> = (0..=MAX_LOGIT_BIASES as u32).map(|token| (token, 1.0)).collect();
        check(|p| p.logit_bias = biases(&many[1..]), Ok(()));
        let given = MAX_LOGIT_BIASES + 1;
        check(|p| p.logit_bias = biases(&many), Err(SamplingError::LogitBiases { given }));
        let params = SamplingParams { logit_bias: biases(&[(9, 1.0), (10, 1.0)]), ..SamplingParams::greedy() };
        assert_eq!(params.check_tokens(11), Ok(()));
        assert_eq!(params.check_tokens(10), Err(SamplingError::LogitBiasToken { token_id: 10, vocab_size: 10 }));
    }

    #[test]
    fn the_first_violation_in_tgi_order_is_reported() {
        check(|p| (p.temperature, p.top_p) = (0.0, 5.0), out_of("`temperature` must be strictly positive"));
        check(
            |p| (p.frequency_penalty, p.typical_p) = (3.0, 5.0),
            out_of("`frequency_penalty` must be >= -2.0 and <= 2.0"),
        );
        check(|p| (p.typical_p, p.min_p) = (5.0, 5.0), out_of("`typical_p` must be > 0.0 and <= 1.0"));
    }
}
