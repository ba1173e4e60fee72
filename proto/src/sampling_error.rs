//! The error for a sampling parameter outside its legal range, with the sentence that the client reads.

use crate::sampling::MAX_LOGIT_BIASES;

/// The error for a sampling parameter outside its legal range. Where TGI has the same check, the sentence is TGI's,
/// because clients may compare error texts. The other sentences have the same style.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum SamplingError {
    /// A number is outside its range. The sentence is in the parameter's row of `RANGES` in `sampling.rs`.
    #[error("{0}")]
    Range(&'static str),
    #[error("`logit_bias` must be >= -100.0 and <= 100.0 for every token")]
    LogitBias,
    #[error("`logit_bias` must name at most {MAX_LOGIT_BIASES} tokens. Given: {given}")]
    LogitBiases { given: usize },
    #[error("`logit_bias` must not name a token twice. Given twice: {token_id}")]
    LogitBiasTwice { token_id: u32 },
    #[error("`logit_bias` must name tokens of the model's vocabulary of {vocab_size}. Given: {token_id}")]
    LogitBiasToken { token_id: u32, vocab_size: u32 },
}
