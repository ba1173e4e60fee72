//! Turns tokens into text, one at a time. Text is held back until its last character is complete. The returned pieces
//! join to the text of all tokens together, except for text that was held back too long and is returned as it is.
//!
//! ```text
//!  ids  ... [ context ][ held back ]
//!            0          read       len
//! ```
//!
//! The text of the context tokens has been returned already, or belongs to the prompt. Some decoders need these tokens
//! before the next ones, because the tokens before a token decide if its text begins with a space.

use super::{TextError, Tokenizer};

/// The maximum number of prompt tokens that are the context of the first new token.
const CONTEXT_TOKENS: usize = 5;

/// The number of tokens at which no more are held back. A character has at most four bytes, so this many tokens without
/// a complete character at the end are not text. Their decoded text is then returned as it is, which limits the work
/// per token.
const MAX_HELD_TOKENS: usize = 64;

/// The decoder's output for bytes that form no character, such as the first bytes of a character.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// The state of detokenizing one sequence: the last tokens, and the text of the context tokens among them.
#[derive(Debug)]
pub struct Detokenizer {
    token_ids: Vec<u32>,
    read: usize,
    /// The text of `token_ids[..read]`.
    context: String,
}

impl Detokenizer {
    /// Creates the detokenizer of the tokens that come after `prompt`.
    ///
    /// # Errors
    /// When the tokenizer's decoder fails.
    pub fn new(tokenizer: &Tokenizer, prompt: &[u32]) -> Result<Self, TextError> {
        let token_ids = prompt[prompt.len().saturating_sub(CONTEXT_TOKENS)..].to_vec();
        let context = tokenizer.detokenize(&token_ids)?;
        Ok(Self { read: token_ids.len(), token_ids, context })
    }

    /// Adds a token. Returns the text that it completes, which may be empty or longer than the token's own text.
    ///
    /// # Errors
    /// When the tokenizer's decoder fails.
    pub fn push(&mut self, tokenizer: &Tokenizer, token_id: u32) -> Result<String, TextError> {
        self.token_ids.push(token_id);
        let text = tokenizer.detokenize(&self.token_ids)?;
        let is_incomplete = text.ends_with(REPLACEMENT) || text.len() <= self.context.len();
        if is_incomplete && self.token_ids.len() - self.read < MAX_HELD_TOKENS {
            return Ok(String::new());
        }
        let piece = self.after_context(&text);
        self.token_ids.drain(..self.read);
        self.read = self.token_ids.len();
        self.context = tokenizer.detokenize(&self.token_ids)?;
        Ok(piece)
    }

    /// Returns the text still held back, with U+FFFD for incomplete characters. Nothing is held back afterwards.
    ///
    /// # Errors
    /// When the tokenizer's decoder fails.
    pub fn flush(&mut self, tokenizer: &Tokenizer) -> Result<String, TextError> {
        let text = tokenizer.detokenize(&self.token_ids)?;
        let piece = self.after_context(&text);
        self.context = text;
        self.read = self.token_ids.len();
        Ok(piece)
    }

    /// Returns the text after the context. If the context ends inside a character, `text` has the whole character
    /// instead of the replacement, and the character counts as new.
    fn after_context(&self, text: &str) -> String {
        let context = self.context.as_str();
        let complete = context.strip_suffix(REPLACEMENT).unwrap_or(context);
        text.strip_prefix(context).or_else(|| text.strip_prefix(complete)).unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::tokenizer::demo;

    fn stream(tokenizer: &Tokenizer, prompt: &[u32], token_ids: &[u32]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(tokenizer, prompt).unwrap();
        let mut pieces: Vec<String> = token_ids.iter().map(|&id| detokenizer.push(tokenizer, id).unwrap()).collect();
        pieces.push(detokenizer.flush(tokenizer).unwrap());
        pieces
    }

    #[test]
    fn characters_are_never_split() {
        let tokenizer = demo();
        let prompt = tokenizer.tokenize("Say").unwrap();
        let text = " naïve 漢字 👩‍👩‍👧 done";
        let token_ids = &tokenizer.tokenize(text).unwrap()[1..];
        let pieces = stream(&tokenizer, &prompt, token_ids);
        assert!(pieces.iter().all(|piece| !piece.contains(REPLACEMENT)), "{pieces:?}");
        assert!(pieces.iter().any(String::is_empty), "some token completes no character: {pieces:?}");
        assert_eq!(pieces.concat(), text);
    }

    #[test]
    fn a_cut_character_comes_out_at_the_end() {
        let tokenizer = demo();
        let token_ids = tokenizer.tokenize("🦜").unwrap();
        let pieces = stream(&tokenizer, &[], &token_ids[1..token_ids.len() - 1]);
        assert_eq!(pieces.concat(), "\u{fffd}");
    }

    #[test]
    fn endless_rubbish_is_not_held_for_ever() {
        let tokenizer = demo();
        let start_of_character = tokenizer.tokenize("🦜").unwrap()[1];
        let pieces = stream(&tokenizer, &[], &[start_of_character; 3 * MAX_HELD_TOKENS]);
        assert!(!pieces[MAX_HELD_TOKENS].is_empty() || !pieces[MAX_HELD_TOKENS - 1].is_empty());
        assert_eq!(pieces.concat().chars().count(), 3 * MAX_HELD_TOKENS);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn pieces_of_random_text_join_to_it(prompt in "\\PC{0,8}", text in "\\PC{0,40}") {
            let tokenizer = demo();
            let prompt = tokenizer.tokenize(&prompt).unwrap();
            let token_ids = &tokenizer.tokenize(&text).unwrap()[1..];
            prop_assert_eq!(stream(&tokenizer, &prompt, token_ids).concat(), text);
        }

        #[test]
        fn pieces_of_random_tokens_join_to_the_text_of_all(token_ids in prop::collection::vec(0..crate::testing::VOCAB_SIZE, 0..60)) {
            let tokenizer = demo();
            let pieces = stream(&tokenizer, &[], &token_ids);
            prop_assert_eq!(pieces.concat(), tokenizer.detokenize(&token_ids).unwrap());
        }
    }
}
