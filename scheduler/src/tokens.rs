//! The tokens of a sequence: first those of the prompt, whose memory several sequences may share, then the generated
//! ones.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Tokens in order of position.
#[derive(Debug)]
pub(crate) struct Tokens {
    prompt: Arc<[u32]>,
    made: Vec<u32>,
}

impl Tokens {
    /// Creates a list of the prompt's tokens.
    pub(crate) fn new(prompt: Arc<[u32]>) -> Self {
        Self { prompt, made: Vec::new() }
    }

    /// The number of all tokens.
    pub(crate) fn len(&self) -> u32 {
        self.prompt_len() + self.num_made()
    }

    /// The number of prompt tokens.
    pub(crate) fn prompt_len(&self) -> u32 {
        // A prompt has fewer than 2^32 tokens, because sequences have at most `proto::MAX_SEQUENCE_TOKENS`.
        self.prompt.len() as u32
    }

    /// The number of generated tokens.
    pub(crate) fn num_made(&self) -> u32 {
        self.made.len() as u32
    }

    /// Adds a generated token.
    pub(crate) fn push(&mut self, token_id: u32) {
        self.made.push(token_id);
    }

    /// Returns the tokens of a range of positions. They are copied if the range begins in the prompt and ends after it.
    pub(crate) fn range(&self, positions: Range<u32>) -> Cow<'_, [u32]> {
        let Range { start, end } = positions;
        let (start, end, prompt_len) = (start as usize, end as usize, self.prompt.len());
        if end <= prompt_len {
            Cow::Borrowed(&self.prompt[start..end])
        } else if start >= prompt_len {
            Cow::Borrowed(&self.made[start - prompt_len..end - prompt_len])
        } else {
            Cow::Owned([&self.prompt[start..], &self.made[..end - prompt_len]].concat())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_the_same_wherever_the_prompt_ends() {
        let all: Vec<u32> = (10..16).collect();
        for prompt_len in 0..=6 {
            let mut tokens = Tokens::new(all[..prompt_len].into());
            all[prompt_len..].iter().for_each(|token_id| tokens.push(*token_id));
            assert_eq!(
                (tokens.len(), tokens.prompt_len(), tokens.num_made()),
                (6, prompt_len as u32, 6 - prompt_len as u32)
            );
            for (start, end) in (0..=6).flat_map(|start| (start..=6).map(move |end| (start, end))) {
                assert_eq!(
                    *tokens.range(start..end),
                    all[start as usize..end as usize],
                    "{start}..{end} of {prompt_len}"
                );
            }
        }
    }
}
