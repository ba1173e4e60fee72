//! The bytes of each token of a byte-level vocabulary, so that detokenizing only copies them.
//!
//! Such a vocabulary writes every byte as a printable character (Radford et al. 2019, GPT-2's `encoder.py`), and a
//! token's bytes depend on no other token. Other kinds of vocabularies have no such table.

use tokenizers::{DecoderWrapper, Tokenizer};

/// The bytes of all tokens, one after the other.
#[derive(Debug)]
pub(super) struct ByteTable {
    bytes: Vec<u8>,
    /// The offset at which each token's bytes end; they begin where the previous token's bytes end.
    ends: Vec<usize>,
}

impl ByteTable {
    /// Returns the table of a tokenizer; `None` unless the tokenizer has a byte-level decoder.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let Some(DecoderWrapper::ByteLevel(_)) = tokenizer.get_decoder() else { return None };
        let num_ids = tokenizer.get_vocab(true).into_values().max().map_or(0, |largest| largest as usize + 1);
        let mut table = Self { bytes: Vec::new(), ends: Vec::with_capacity(num_ids) };
        for id in 0..num_ids as u32 {
            // Ids that belong to no token have no text.
            table.push(&tokenizer.id_to_token(id).unwrap_or_default());
        }
        Some(table)
    }

    /// Adds a token. If some of its characters do not stand for bytes, as in added tokens, its bytes are those of the
    /// token as written.
    fn push(&mut self, token: &str) {
        match token.chars().map(byte_of).collect::<Option<Vec<u8>>>() {
            Some(bytes) => self.bytes.extend(bytes),
            None => self.bytes.extend(token.as_bytes()),
        }
        self.ends.push(self.bytes.len());
    }

    /// Returns the text of several tokens. Bytes that form no character become U+FFFD; unknown tokens have no text.
    pub(super) fn text(&self, token_ids: &[u32]) -> String {
        let mut bytes = Vec::with_capacity(8 * token_ids.len());
        token_ids.iter().for_each(|id| bytes.extend_from_slice(self.token(*id as usize)));
        String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// Returns the bytes of one token; empty for an unknown id.
    pub(super) fn token(&self, idx: usize) -> &[u8] {
        let start = if idx == 0 { 0 } else { self.ends.get(idx - 1).copied().unwrap_or_default() };
        self.ends.get(idx).map_or(&[], |end| &self.bytes[start..*end])
    }
}

/// The byte that a character stands for: printable characters of Latin-1 stand for themselves, and characters from
/// U+0100 on for the other bytes in order.
fn byte_of(character: char) -> Option<u8> {
    match u8::try_from(character) {
        Ok(byte) => is_printable(byte).then_some(byte),
        Err(_) => (0..=u8::MAX).filter(|byte| !is_printable(*byte)).nth(character as usize - 0x100),
    }
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

#[cfg(test)]
mod tests {
    use model_files::ModelFiles;
    use proptest::prelude::*;

    use super::*;

    fn demo() -> Tokenizer {
        Tokenizer::from_bytes(ModelFiles::Demo.read("tokenizer.json").unwrap()).unwrap()
    }

    #[test]
    fn every_token_is_what_the_decoder_makes_of_it() {
        let tokenizer = demo();
        let table = ByteTable::of(&tokenizer).unwrap();
        for id in 0..tokenizer.get_vocab_size(true) as u32 + 3 {
            assert_eq!(table.text(&[id]), tokenizer.decode(&[id], false).unwrap(), "token {id}");
        }
    }

    #[test]
    fn text_that_stands_for_no_bytes_is_itself() {
        let mut table = ByteTable { bytes: Vec::new(), ends: Vec::new() };
        for token in ["Ġa", "", "漢 字", "ÃŃ"] {
            table.push(token);
        }
        assert_eq!([0, 1, 2, 3, 4].map(|id| table.text(&[id])), [" a", "", "漢 字", "í", ""]);
        assert_eq!(table.text(&[2, 0]), "漢 字 a");
    }

    #[test]
    fn other_decoders_have_no_table() {
        let mut tokenizer = demo();
        tokenizer.with_decoder(None::<DecoderWrapper>);
        assert!(ByteTable::of(&tokenizer).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn runs_of_tokens_are_what_the_decoder_makes_of_them(ids in prop::collection::vec(0..crate::testing::VOCAB_SIZE, 0..20)) {
            let tokenizer = demo();
            let table = ByteTable::of(&tokenizer).unwrap();
            prop_assert_eq!(table.text(&ids), tokenizer.decode(&ids, false).unwrap());
        }
    }
}
