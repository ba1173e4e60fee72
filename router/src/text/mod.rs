//! Text and tokens: rendering conversations, tokenizing prompts, detokenizing without broken characters, finding stop
//! strings, and parsing answers.
//!
//! Nothing here knows of steps or HTTP.

mod answer;
mod byte_table;
mod caller;
mod chat;
mod chat_files;
mod chat_template;
mod detokenizer;
mod gguf_cuts;
mod gguf_tokenizer;
mod stop_strings;
mod tokenizer;
mod tokenizer_pool;
mod vocabulary;

use model_files::ModelFiles;

pub(crate) use answer::{Answer, AnswerEvent, AnswerForm, AnswerParser, CallSyntax, MarkedText, ToolCall};
pub(crate) use chat::{Chat, ChatError, TokenizedText};
pub(crate) use chat_files::{ChatOverrides, ChatTemplates};
pub(crate) use chat_template::{ChatEnding, ChatInputs, ChatTemplateError, RenderedChat};
pub use chat_template::{ChatRendererArgs, render_chats_as_process};
pub use detokenizer::Detokenizer;
pub(crate) use stop_strings::{StopFound, StopPatterns, StopStrings};
pub(crate) use tokenizer::TokenSpan;
pub use tokenizer::{TextError, Tokenizer};
pub(crate) use tokenizer_pool::TokenizerPool;
pub(crate) use vocabulary::TokenBytes;

/// The model's tokenizer and chat templates.
#[derive(Debug)]
pub(crate) struct ModelText {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) chat_templates: ChatTemplates,
}

impl ModelText {
    /// Reads the model's files, or the files that the user named instead.
    ///
    /// # Errors
    /// When there is no usable tokenizer, or a file that the user named cannot be read.
    pub(crate) fn load(files: &ModelFiles, overrides: ChatOverrides<'_>) -> Result<Self, TextError> {
        Ok(Self { tokenizer: Tokenizer::load(files)?, chat_templates: ChatTemplates::load(files, overrides)? })
    }
}
