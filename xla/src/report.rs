//! What a launch answers, on its way from the device.
//!
//! Doors: [`Reports`], which holds the copies that were started when the launches were, and [`Reports::wait`], which makes a
//! [`StepOutput`] of them.

use backend::{Batch, PromptToken, SampledToken, StepOutput};
use model::Fingerprint;
use pjrt::Download;

use super::program::{TARGETS, TOP_TOKENS};
use crate::error::XlaError;

/// Copies of a step's results to the host.
#[derive(Debug, Default)]
pub(super) struct Reports {
    samples: Vec<Samples>,
    targets: Vec<Targets>,
    /// Of what was run.
    pub(super) fingerprint: Fingerprint,
}

/// Per row a token, its logprob's bits and maybe top tokens, `[bucket_rows, 2 or more]` i32.
#[derive(Debug)]
struct Samples {
    /// Indices among [`Batch::rows`].
    rows: Vec<usize>,
    bucket_rows: usize,
    download: Download,
}

/// Per prompt token its logprob's bits and top tokens, `[TARGETS, ..]` i32.
#[derive(Debug)]
struct Targets {
    /// Indices among the batch's targets.
    targets: Vec<usize>,
    download: Download,
}

impl Reports {
    /// Adds what a sampler answers for `rows`.
    pub(super) fn push_samples(&mut self, rows: Vec<usize>, bucket_rows: usize, download: Download) {
        self.samples.push(Samples { rows, bucket_rows, download });
    }

    /// Adds what is answered for the batch's targets with these indices.
    pub(super) fn push_targets(&mut self, targets: Vec<usize>, download: Download) {
        self.targets.push(Targets { targets, download });
    }

    /// Waits for all of them.
    ///
    /// # Errors
    /// When a launch failed on the device.
    pub(super) fn wait(self, batch: &Batch) -> Result<StepOutput, XlaError> {
        let failed = |source| XlaError::Program { program: "step".to_owned(), source };
        let mut tokens = vec![SampledToken::default(); batch.sampled.len()];
        for Samples { rows, bucket_rows, download } in self.samples {
            let bytes = download.wait().map_err(failed)?;
            let width = bytes.len() / size_of::<i32>() / bucket_rows;
            for (index, sampled) in batch.sampled.iter().enumerate() {
                if let Some(place) = rows.iter().position(|row| *row == sampled.row) {
                    tokens[index] = sampled_token(&words(&bytes)[place * width..][..width]);
                }
            }
        }
        let mut prompt_tokens = vec![PromptToken::default(); batch.targets.token_ids.len()];
        for Targets { targets, download } in self.targets {
            let words = words(&download.wait().map_err(failed)?);
            for (target, words) in targets.into_iter().zip(words.chunks_exact(words.len() / TARGETS)) {
                prompt_tokens[target] = PromptToken { logprob: number(words[0]), top_tokens: top_tokens(&words[1..]) };
            }
        }
        Ok(StepOutput { tokens, prompt_tokens, fingerprint: self.fingerprint.value() })
    }
}

fn sampled_token(words: &[i32]) -> SampledToken {
    let top_tokens = top_tokens(&words[2..]);
    SampledToken { token_id: words[0].cast_unsigned(), logprob: number(words[1]), top_tokens }
}

/// Top tokens, if there is room for them; the places behind the last one have no token.
fn top_tokens(words: &[i32]) -> Vec<(u32, f32)> {
    let Some((ids, logprobs)) = words.get(..2 * TOP_TOKENS).map(|top| top.split_at(TOP_TOKENS)) else {
        return Vec::new();
    };
    let reported = ids.iter().zip(logprobs).filter(|(id, _)| **id >= 0);
    reported.map(|(id, logprob)| (id.cast_unsigned(), number(*logprob))).collect()
}

fn number(word: i32) -> f32 {
    f32::from_bits(word.cast_unsigned())
}

fn words(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|word| i32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}
