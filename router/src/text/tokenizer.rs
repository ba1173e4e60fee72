//! The tokenizer of one model, from `tokenizer.json` or a GGUF file, and the list of its special tokens.
//!
//! No other code of the router reads `tokenizer.json`. Because long texts take long, prompts go through
//! `tokenizer_pool`, and completions are detokenized a few tokens at a time.

use std::collections::HashSet;

use model_files::{ModelFiles, ModelFilesError};

use super::byte_table::ByteTable;
use super::gguf_tokenizer;
use super::vocabulary::{self, TokenBytes};

const FILE: &str = "tokenizer.json";

/// The errors of tokenizing and detokenizing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The file is missing or cannot be read.
    #[error("{0}")]
    File(String),
    /// The file is not a tokenizer.
    #[error("{location}: tokenizer.json is not a tokenizer: {message}")]
    NotATokenizer { location: String, message: String },
    /// The GGUF file has no supported tokenizer.
    #[error("{location} has no usable tokenizer: {message}")]
    Gguf { location: String, message: String },
    /// The text cannot be tokenized.
    #[error("{0}")]
    Tokenize(String),
    /// Other texts occupy the threads or their memory.
    #[error("too many other texts are being tokenized")]
    Busy,
    /// The tokens cannot be detokenized.
    #[error("{num_tokens} tokens cannot be detokenized: {message}")]
    Detokenize { num_tokens: usize, message: String },
}

/// Converts text to ids and back.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// The bytes of each token; `None` if the vocabulary is not byte-level.
    byte_table: Option<ByteTable>,
    special_ids: HashSet<u32>,
    /// The tokens that the tokenizer adds before a prompt.
    prefix: Vec<u32>,
}

/// A token and its range in the text, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenSpan {
    pub(crate) id: u32,
    pub(crate) start: usize,
    pub(crate) stop: usize,
}

impl Tokenizer {
    /// Reads the tokenizer of a model.
    ///
    /// # Errors
    /// When the model has no tokenizer, or a tokenizer that cannot be parsed.
    pub fn load(files: &ModelFiles) -> Result<Self, TextError> {
        let file = |error: ModelFilesError| TextError::File(describe(&error));
        let bytes = match (files.read_optional(FILE).map_err(file)?, files.gguf().map_err(file)?) {
            (None, Some(gguf)) => {
                let described = gguf_tokenizer::tokenizer_json(&gguf);
                described.map_err(|message| TextError::Gguf { location: files.to_string(), message })?
            }
            (Some(bytes), _) => bytes.into_owned(),
            (None, None) => files.read(FILE).map_err(file)?.into_owned(),
        };
        Self::from_bytes(&bytes).map_err(|message| TextError::NotATokenizer { location: files.to_string(), message })
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
        // The truncation and the padding that the file may ask for do not apply to requests.
        inner.with_truncation(None).map_err(|error| error.to_string())?;
        inner.with_padding(None);
        let added = inner.get_added_tokens_decoder();
        let special_ids = added.into_iter().filter(|(_, token)| token.special).map(|(id, _)| id).collect();
        let prefix = prefix(&inner).map_err(|error| error.to_string())?;
        Ok(Self { byte_table: ByteTable::of(&inner), inner, special_ids, prefix })
    }

    /// Returns the token ids of a prompt, with the special tokens that the model expects around it. If the text already
    /// begins with the tokens that come before it, these are not added again.
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text.
    pub fn tokenize(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.ids(text, true)
    }

    /// Returns the token ids of a text that contains all its special tokens; none are added.
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text.
    pub(crate) fn tokenize_bare(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.ids(text, false)
    }

    /// Returns the number of tokens at the start of `token_ids` that the tokenizer added before `text`.
    ///
    /// # Errors
    /// When the tokenizer's decoder fails.
    pub(crate) fn num_added(&self, text: &str, token_ids: &[u32]) -> Result<usize, TextError> {
        let is_added = token_ids.starts_with(&self.prefix) && !text.starts_with(&self.detokenize(&self.prefix)?);
        Ok(if is_added { self.prefix.len() } else { 0 })
    }

    fn ids(&self, text: &str, adds_special: bool) -> Result<Vec<u32>, TextError> {
        let encoding = self.inner.encode_fast(text, adds_special);
        let encoding = encoding.map_err(|error| TextError::Tokenize(error.to_string()))?;
        let ids = encoding.get_ids();
        Ok(ids[if adds_special { self.num_repeated(ids) } else { 0 }..].to_vec())
    }

    /// Returns the number of leading tokens that are repeated because the text begins with them too.
    fn num_repeated(&self, ids: &[u32]) -> usize {
        let is_there = |ids: &[u32]| ids.starts_with(&self.prefix);
        let len = self.prefix.len();
        if is_there(ids) && is_there(&ids[len..]) { len } else { 0 }
    }

    /// Returns the tokens with their ranges in the text. With `adds_special`, special tokens are added as in
    /// [`Tokenizer::tokenize`].
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text.
    pub(crate) fn tokenize_spans(&self, text: &str, adds_special: bool) -> Result<Vec<TokenSpan>, TextError> {
        let encoding = self.inner.encode(text, adds_special).map_err(|error| TextError::Tokenize(error.to_string()))?;
        let num_left_out = if adds_special { self.num_repeated(encoding.get_ids()) } else { 0 };
        let spans = encoding.get_ids().iter().zip(encoding.get_offsets()).skip(num_left_out);
        Ok(spans.map(|(&id, &(start, stop))| TokenSpan { id, start, stop }).collect())
    }

    /// Returns the text of several tokens, special ones included. Bytes that form no character become U+FFFD.
    ///
    /// # Errors
    /// When the tokenizer's decoder fails.
    pub(crate) fn detokenize(&self, token_ids: &[u32]) -> Result<String, TextError> {
        if let Some(byte_table) = &self.byte_table {
            return Ok(byte_table.text(token_ids));
        }
        self.inner
            .decode(token_ids, false)
            .map_err(|error| TextError::Detokenize { num_tokens: token_ids.len(), message: error.to_string() })
    }

    /// True if a token is markup of the model rather than text.
    pub(crate) fn is_special(&self, token_id: u32) -> bool {
        self.special_ids.contains(&token_id)
    }

    /// Returns the bytes of each token, in the order of the ids.
    pub(crate) fn token_bytes(&self) -> Vec<TokenBytes> {
        vocabulary::token_bytes(&self.inner, self.byte_table.as_ref(), |id| self.is_special(id))
    }

    /// Returns the id of the special token with this text.
    pub(crate) fn special_id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text).filter(|id| self.is_special(*id))
    }

    /// The number of tokens, including added ones. Every token id is below this number, unless the ids have gaps.
    pub(crate) fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}

/// Returns the tokens that the tokenizer adds before a text.
fn prefix(tokenizer: &tokenizers::Tokenizer) -> tokenizers::Result<Vec<u32>> {
    let whole = tokenizer.encode_fast("a", true)?;
    let bare = tokenizer.encode_fast("a", false)?;
    let (whole, bare) = (whole.get_ids(), bare.get_ids());
    let len = whole.windows(bare.len().max(1)).position(|ids| ids == bare).unwrap_or(0);
    Ok(whole[..len].to_vec())
}

/// Returns the message of a file error, with its cause.
pub(super) fn describe(error: &ModelFilesError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
pub(super) fn demo() -> Tokenizer {
    Tokenizer::load(&ModelFiles::Demo).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_begins_with_the_special_token_and_round_trips() {
        let tokenizer = demo();
        let ids = tokenizer.tokenize("Once upon a time, 42 🦜.").unwrap();
        assert!(tokenizer.is_special(ids[0]) && ids.iter().skip(1).all(|&id| !tokenizer.is_special(id)));
        assert_eq!(tokenizer.detokenize(&ids[1..]).unwrap(), "Once upon a time, 42 🦜.");
    }

    #[test]
    fn a_rendered_text_gets_no_further_special_token() {
        let tokenizer = demo();
        let spans = tokenizer.tokenize_spans("<|bos|>é", false).unwrap();
        let ids: Vec<u32> = spans.iter().map(|span| span.id).collect();
        assert_eq!(ids, tokenizer.tokenize("é").unwrap());
        assert_eq!((spans[0].start, spans[0].stop, spans.last().unwrap().stop), (0, 7, 9));
    }

    #[test]
    fn the_special_token_comes_once() {
        let tokenizer = demo();
        let ids = tokenizer.tokenize("é").unwrap();
        assert_eq!(tokenizer.tokenize("<|bos|>é").unwrap(), ids);
        assert_eq!(tokenizer.tokenize("<|bos|><|bos|>é").unwrap().len(), ids.len() + 1);
        assert_eq!(
            tokenizer.tokenize_spans("<|bos|>é", true).unwrap(),
            tokenizer.tokenize_spans("<|bos|>é", false).unwrap()
        );
        for (text, num_added) in [("é", 1), ("<|bos|>é", 0), ("<|bos|><|bos|>é", 0), ("", 1)] {
            let ids = tokenizer.tokenize(text).unwrap();
            assert_eq!(tokenizer.num_added(text, &ids), Ok(num_added), "{text}");
        }
    }

    #[test]
    fn a_file_that_is_no_tokenizer_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let files = ModelFiles::open(directory.path().to_str().unwrap()).unwrap();
        let error = Tokenizer::load(&files).unwrap_err().to_string();
        assert!(error.ends_with("has no tokenizer.json"), "{error}");
        std::fs::write(directory.path().join(FILE), "{}").unwrap();
        let error = Tokenizer::load(&files).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json is not a tokenizer"), "{error}");
    }
}
