//! From a conversation to its text and the tokens of it, on the tokenizer's threads.
//!
//! The template writes every special token itself, so the tokenizer adds none: a second token for the beginning would
//! make answers worse.

use std::sync::Arc;

use super::chat_files::ChatTemplates;
use super::chat_template::{ChatInputs, ChatTemplateError, RenderedChat};
use super::tokenizer::TokenSpan;
use super::{TextError, TokenizerPool};

/// Renders and tokenizes conversations; cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Chat {
    templates: Arc<ChatTemplates>,
    tokenizer_pool: TokenizerPool,
}

/// A conversation as the model reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenizedChat {
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenSpan>,
}

/// Why a conversation has no tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChatError {
    #[error(transparent)]
    Template(#[from] ChatTemplateError),
    #[error(transparent)]
    Tokenizer(#[from] TextError),
}

impl Chat {
    pub(crate) fn new(templates: ChatTemplates, tokenizer_pool: TokenizerPool) -> Self {
        Self { templates: Arc::new(templates), tokenizer_pool }
    }

    /// The tokens of a prompt, with the special tokens that the model expects around it.
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text.
    pub(crate) async fn tokenize_prompt(&self, text: String) -> Result<Vec<TokenSpan>, ChatError> {
        Ok(self.tokenizer_pool.run(move |tokenizer| tokenizer.tokenize_spans(&text, true)).await??)
    }

    /// The text of a conversation, and what is read out of the answer to it.
    ///
    /// # Errors
    /// When the template refuses the conversation.
    pub(crate) async fn render(&self, inputs: ChatInputs) -> Result<RenderedChat, ChatError> {
        let templates = Arc::clone(&self.templates);
        let rendered = self.tokenizer_pool.run(move |tokenizer| {
            let RenderedChat { text, answer_form } = templates.render(inputs)?;
            let answer_form = answer_form.with_special_marks(|mark| tokenizer.special_id(mark));
            Ok(RenderedChat { text, answer_form })
        });
        rendered.await?
    }

    /// The text of a conversation, and its tokens.
    ///
    /// # Errors
    /// When the template refuses the conversation, or the tokenizer its text.
    pub(crate) async fn tokenize(&self, inputs: ChatInputs) -> Result<TokenizedChat, ChatError> {
        let templates = Arc::clone(&self.templates);
        let tokenized = self.tokenizer_pool.run(move |tokenizer| {
            let text = templates.render(inputs)?.text;
            let tokens = tokenizer.tokenize_spans(&text, false)?;
            Ok(TokenizedChat { text, tokens })
        });
        tokenized.await?
    }
}
