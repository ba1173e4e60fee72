//! The sentence that a client reads when a sampling parameter is outside its legal range.

use crate::sampling::{MAX_LOGIT_BIASES, REPETITION_PENALTIES};

/// A sampling parameter outside its legal range. The sentences are TGI's, which clients match on; those of parameters that
/// TGI has not are like them.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum SamplingError {
    #[error("`temperature` must be strictly positive")]
    Temperature,
    #[error("`temperature` must be finite: at most 3.4e38")]
    InfiniteTemperature,
    #[error("`repetition_penalty` must be strictly positive")]
    RepetitionPenalty,
    #[error(
        "`repetition_penalty` must be >= {} and <= {}", REPETITION_PENALTIES.start(), REPETITION_PENALTIES.end()
    )]
    ExtremeRepetitionPenalty,
    #[error("`frequency_penalty` must be >= -2.0 and <= 2.0")]
    FrequencyPenalty,
    #[error("`top_p` must be > 0.0 and <= 1.0")]
    TopP,
    #[error("`typical_p` must be > 0.0 and <= 1.0")]
    TypicalP,
    #[error("`min_p` must be >= 0.0 and <= 1.0")]
    MinP,
    #[error("`presence_penalty` must be >= -2.0 and <= 2.0")]
    PresencePenalty,
    #[error("`watermark_gamma` must be >= 0.0 and <= 1.0")]
    WatermarkGamma,
    #[error("`watermark_delta` must be >= -100.0 and <= 100.0")]
    WatermarkDelta,
    #[error("`logit_bias` must be >= -100.0 and <= 100.0 for every token")]
    LogitBias,
    #[error("`logit_bias` must name at most {MAX_LOGIT_BIASES} tokens. Given: {given}")]
    LogitBiases { given: usize },
    #[error("`logit_bias` must name a token once. Given twice: {token_id}")]
    LogitBiasTwice { token_id: u32 },
    #[error("`logit_bias` must name tokens of the model's vocabulary of {vocab_size}. Given: {token_id}")]
    LogitBiasToken { token_id: u32, vocab_size: u32 },
}
