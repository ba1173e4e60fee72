//! Text and tokens: from a prompt to ids, from ids to text that never breaks a character, and where text says stop.
//!
//! Nothing here knows of requests, steps or HTTP.

mod byte_table;
mod detokenizer;
mod gguf_tokenizer;
mod stop_strings;
mod tokenizer;
mod tokenizer_pool;

pub(crate) use detokenizer::Detokenizer;
pub(crate) use stop_strings::StopStrings;
pub use tokenizer::TextError;
pub(crate) use tokenizer::Tokenizer;
pub(crate) use tokenizer_pool::TokenizerPool;
