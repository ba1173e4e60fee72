//! Log-probabilities in OpenAI's two forms: a list of tokens for chats, parallel lists for completions.

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::generation::{PromptToken, Token};

/// The log probabilities of a choice of a chat completion.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChatLogprobs {
    content: Vec<ChatToken>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ChatToken {
    token: String,
    logprob: Option<f32>,
    bytes: Vec<u8>,
    top_logprobs: Vec<TopToken>,
}

#[derive(Debug, Serialize, ToSchema)]
struct TopToken {
    token: String,
    logprob: Option<f32>,
    bytes: Vec<u8>,
}

/// The log probabilities of a choice of a completion.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<String>,
    // `None` for the first token of a prompt, and for a value that is not finite.
    token_logprobs: Vec<Option<f32>>,
    #[schema(value_type = Vec<Option<Object>>)]
    top_logprobs: Vec<Option<TopLogprobs>>,
    /// The offset of each token in the text, in characters.
    text_offset: Vec<usize>,
}

/// Texts with their log-probabilities, best first, serialized as an object.
#[derive(Debug)]
struct TopLogprobs(Vec<(String, Option<f32>)>);

impl ChatLogprobs {
    pub(super) fn new<'a>(tokens: impl IntoIterator<Item = (&'a Token, &'a [Token])>) -> Self {
        let content = tokens.into_iter().map(|(token, top_tokens)| ChatToken {
            token: token.text.clone(),
            logprob: finite(token.logprob),
            bytes: token.text.as_bytes().to_vec(),
            top_logprobs: top_tokens.iter().map(TopToken::new).collect(),
        });
        Self { content: content.collect() }
    }
}

impl TopToken {
    fn new(token: &Token) -> Self {
        Self { token: token.text.clone(), logprob: finite(token.logprob), bytes: token.text.as_bytes().to_vec() }
    }
}

impl CompletionLogprobs {
    /// Adds the tokens of a prompt, each with the most likely tokens at its position. The first token has no
    /// log-probability, as in OpenAI's API.
    pub(super) fn push_prompt(&mut self, offset: &mut usize, prompt: &[PromptToken]) {
        for (index, PromptToken { id, text, logprob, top_tokens }) in prompt.iter().enumerate() {
            let logprob = if index == 0 { f32::NAN } else { *logprob };
            let top_logprobs = (index > 0).then(|| TopLogprobs::new((*id, text, logprob), top_tokens));
            self.push(offset, text, logprob, top_logprobs);
        }
    }

    /// Adds a token, with the most likely tokens at its position.
    pub(super) fn push_token(&mut self, offset: &mut usize, token: &Token, top_tokens: &[Token]) {
        let Token { id, text, logprob, is_special: _ } = token;
        self.push(offset, text, *logprob, Some(TopLogprobs::new((*id, text, *logprob), top_tokens)));
    }

    fn push(&mut self, offset: &mut usize, text: &str, logprob: f32, top_logprobs: Option<TopLogprobs>) {
        self.tokens.push(text.to_owned());
        self.token_logprobs.push(finite(logprob));
        self.top_logprobs.push(top_logprobs);
        self.text_offset.push(*offset);
        *offset += text.chars().count();
    }
}

impl TopLogprobs {
    /// Collects the candidates, then the token itself if it is not among them. If several tokens have the same text, as
    /// parts of a character do, only the first one is kept.
    fn new((id, text, logprob): (u32, &str, f32), candidates: &[Token]) -> Self {
        let mut entries: Vec<(String, Option<f32>)> = Vec::with_capacity(candidates.len() + 1);
        let is_candidate = candidates.iter().any(|candidate| candidate.id == id);
        let own = (!is_candidate).then_some((text, logprob));
        let texts = candidates.iter().map(|other| if other.id == id { text } else { other.text.as_str() });
        let others = texts.zip(candidates.iter().map(|candidate| candidate.logprob));
        for (text, logprob) in others.chain(own) {
            if !entries.iter().any(|(known, _)| known == text) {
                entries.push((text.to_owned(), finite(logprob)));
            }
        }
        Self(entries)
    }
}

impl Serialize for TopLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(text, logprob)| (text, logprob)))
    }
}

/// Returns `None` for NaN and infinity, which JSON lacks.
fn finite(logprob: f32) -> Option<f32> {
    logprob.is_finite().then_some(logprob)
}
