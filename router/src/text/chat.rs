//! Turns conversations into text and tokens, and prompts into tokens, on the tokenizer's threads.
//!
//! The template of a conversation writes every special token itself, so the tokenizer adds none to its text. A second
//! beginning-of-sequence token would make answers worse.

use std::sync::Arc;

use super::chat_files::ChatTemplates;
use super::chat_template::{ChatInputs, ChatTemplateError, RenderedChat};
use super::tokenizer::TokenSpan;
use super::{TextError, Tokenizer, TokenizerPool};

/// Renders conversations, and tokenizes them and prompts. Clones are cheap.
#[derive(Debug, Clone)]
pub(crate) struct Chat {
    templates: Arc<ChatTemplates>,
    tokenizer_pool: TokenizerPool,
    max_text_bytes: usize,
}

/// A text or a rendered conversation, with its tokens.
#[derive(Debug)]
pub(crate) struct TokenizedText {
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenSpan>,
}

impl TokenizedText {
    /// The memory of the text and the tokens, in bytes.
    pub(crate) fn num_bytes(&self) -> usize {
        self.text.len() + size_of_val(self.tokens.as_slice())
    }
}

/// The reason why a conversation or a prompt cannot be rendered or tokenized.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChatError {
    #[error(transparent)]
    Template(#[from] ChatTemplateError),
    #[error(transparent)]
    Tokenizer(#[from] TextError),
    #[error("the text has {given} bytes; at most {limit} are allowed")]
    TooLong { limit: usize, given: usize },
}

impl Chat {
    /// Creates the renderer. It refuses to tokenize texts of more than `max_text_bytes`. The renderings on all threads
    /// of the pool share the memory of the pool.
    pub(crate) fn new(mut templates: ChatTemplates, tokenizer_pool: TokenizerPool, max_text_bytes: usize) -> Self {
        templates.limit_memory(tokenizer_pool.bytes_per_thread());
        Self { templates: Arc::new(templates), tokenizer_pool, max_text_bytes }
    }

    /// Returns the tokens of a prompt, with the special tokens that the model expects around it.
    ///
    /// # Errors
    /// When the text is too long, the tokenizer cannot represent it, or the pool is too busy.
    pub(crate) async fn tokenize_prompt(&self, text: String) -> Result<TokenizedText, ChatError> {
        let num_bytes = text.len();
        check_len(&text, self.max_text_bytes)?;
        let work = move |tokenizer: &Tokenizer| {
            let tokens = tokenizer.tokenize_spans(&text, true)?;
            Ok::<_, TextError>(TokenizedText { text, tokens })
        };
        Ok(self.tokenizer_pool.run(num_bytes, work).await??)
    }

    /// Returns the text of a conversation, and the form in which the answer will be read.
    ///
    /// # Errors
    /// When the conversation cannot be rendered, or the pool is too busy.
    pub(crate) async fn render(&self, inputs: ChatInputs) -> Result<RenderedChat, ChatError> {
        let (templates, num_bytes) = (Arc::clone(&self.templates), inputs.num_bytes());
        let work = move |tokenizer: &Tokenizer| {
            let RenderedChat { text, answer_form } = templates.render(inputs)?;
            let answer_form = answer_form.with_special_marks(|mark| tokenizer.special_id(mark));
            Ok::<_, ChatError>(RenderedChat { text, answer_form })
        };
        self.tokenizer_pool.run(num_bytes, work).await?
    }

    /// Returns the text of a conversation, and its tokens.
    ///
    /// # Errors
    /// When the conversation cannot be rendered, its text is too long, the tokenizer cannot represent it, or the pool
    /// is too busy.
    pub(crate) async fn tokenize(&self, inputs: ChatInputs) -> Result<TokenizedText, ChatError> {
        let (templates, num_bytes) = (Arc::clone(&self.templates), inputs.num_bytes());
        let limit = self.max_text_bytes;
        let work = move |tokenizer: &Tokenizer| {
            let text = templates.render(inputs)?.text;
            check_len(&text, limit)?;
            let tokens = tokenizer.tokenize_spans(&text, false)?;
            Ok::<_, ChatError>(TokenizedText { text, tokens })
        };
        self.tokenizer_pool.run(num_bytes, work).await?
    }
}

fn check_len(text: &str, limit: usize) -> Result<(), ChatError> {
    let given = text.len();
    if given > limit { Err(ChatError::TooLong { limit, given }) } else { Ok(()) }
}
