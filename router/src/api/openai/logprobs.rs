//! Log-probabilities in OpenAI's two forms: a list of tokens for chats, parallel lists for completions.

use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::generation::{PromptToken, Token};

/// `logprobs` of a choice of a chat.
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

/// `logprobs` of a choice of a completion.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    #[schema(value_type = Vec<Option<Object>>)]
    top_logprobs: Vec<Value>,
    /// Characters before each token.
    text_offset: Vec<usize>,
}

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
    /// Adds a token of the prompt; other candidates for it are not known.
    pub(super) fn push_prompt(&mut self, offset: &mut usize, token: &PromptToken) {
        self.push(offset, &token.text, token.logprob);
        self.top_logprobs.push(Value::Null);
    }

    /// Adds a token, and what else it could have been.
    pub(super) fn push_token(&mut self, offset: &mut usize, token: &Token, top_tokens: &[Token]) {
        self.push(offset, &token.text, token.logprob);
        let top_tokens: Map<String, Value> =
            top_tokens.iter().map(|token| (token.text.clone(), json!(finite(token.logprob)))).collect();
        self.top_logprobs.push(Value::Object(top_tokens));
    }

    fn push(&mut self, offset: &mut usize, text: &str, logprob: f32) {
        self.tokens.push(text.to_owned());
        self.token_logprobs.push(finite(logprob));
        self.text_offset.push(*offset);
        *offset += text.chars().count();
    }
}

/// JSON has no other numbers.
fn finite(logprob: f32) -> Option<f32> {
    logprob.is_finite().then_some(logprob)
}
