//! The bytes that each token of a vocabulary stands for in the middle of a text. Grammars need them.

use tokenizers::Tokenizer;

use super::byte_table::ByteTable;

/// The meaning of a token id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TokenBytes {
    /// A piece of text, which may be part of a character.
    Text(Vec<u8>),
    /// Markup that is not text, as the vocabulary writes it.
    Special(String),
    /// Not a token, or a token without text.
    Unused,
}

/// Returns all tokens in the order of their ids.
pub(super) fn token_bytes(
    tokenizer: &Tokenizer,
    byte_table: Option<&ByteTable>,
    is_special: impl Fn(u32) -> bool,
) -> Vec<TokenBytes> {
    let num_ids = tokenizer.get_vocab(true).into_values().max().map_or(0, |largest| largest + 1);
    let anchor = Anchor::of(tokenizer);
    let bytes = |id: u32| {
        let Some(piece) = tokenizer.id_to_token(id) else { return TokenBytes::Unused };
        if is_special(id) {
            return TokenBytes::Special(piece);
        }
        let bytes = match byte_table {
            Some(table) => table.token(id as usize).to_vec(),
            None => anchor.bytes(tokenizer, id, &piece),
        };
        if bytes.is_empty() { TokenBytes::Unused } else { TokenBytes::Text(bytes) }
    };
    (0..num_ids).map(bytes).collect()
}

/// The tokens of a short text, placed before the examined token, because a decoder may treat the first token of a text
/// differently.
struct Anchor {
    ids: Vec<u32>,
    text: String,
    has_byte_pieces: bool,
}

impl Anchor {
    fn of(tokenizer: &Tokenizer) -> Self {
        let ids = tokenizer.encode_fast("a", false).map(|encoding| encoding.get_ids().to_vec()).unwrap_or_default();
        let text = tokenizer.decode(&ids, false).unwrap_or_default();
        // Vocabularies with pieces for single bytes have a piece for every byte (Kudo and Richardson 2018,
        // SentencePiece).
        let has_byte_pieces = [0, 255].iter().all(|byte| tokenizer.token_to_id(&format!("<0x{byte:02X}>")).is_some());
        Self { ids, text, has_byte_pieces }
    }

    fn bytes(&self, tokenizer: &Tokenizer, id: u32, piece: &str) -> Vec<u8> {
        if let Some(byte) = self.byte(piece) {
            return vec![byte];
        }
        let text = tokenizer.decode(&[&self.ids[..], &[id]].concat(), false).unwrap_or_default();
        text.strip_prefix(&self.text).unwrap_or_default().as_bytes().to_vec()
    }

    /// The byte that a piece such as `<0x0A>` stands for.
    fn byte(&self, piece: &str) -> Option<u8> {
        let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
        (self.has_byte_pieces && digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tokenizer::demo;

    /// Returns a vocabulary in the style of SentencePiece: a space is `▁`, and characters without a piece are written
    /// in bytes.
    fn pieces() -> Tokenizer {
        let bytes = (0..=255).map(|byte| format!("\"<0x{byte:02X}>\":{}", byte + 3));
        let words = ["▁a", "▁", "a", "▁the", "é"].iter().zip(259..).map(|(word, id)| format!("\"{word}\":{id}"));
        let vocab = bytes.chain(words).collect::<Vec<_>>().join(",");
        let json = format!(
            r#"{{"version":"1.0","added_tokens":[
                {{"id":0,"content":"<unk>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}},
                {{"id":1,"content":"<s>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}}],
            "normalizer":{{"type":"Sequence","normalizers":[{{"type":"Prepend","prepend":"▁"}},{{"type":"Replace","pattern":{{"String":" "}},"content":"▁"}}]}},
            "pre_tokenizer":null,"post_processor":null,
            "decoder":{{"type":"Sequence","decoders":[{{"type":"Replace","pattern":{{"String":"▁"}},"content":" "}},{{"type":"ByteFallback"}},{{"type":"Fuse"}},{{"type":"Strip","content":" ","start":1,"stop":0}}]}},
            "model":{{"type":"BPE","dropout":null,"unk_token":"<unk>","continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":true,"byte_fallback":true,"ignore_merges":false,"vocab":{{"<unk>":0,"<s>":1,{vocab}}},"merges":[["▁","a"]]}}}}"#
        );
        Tokenizer::from_bytes(json.as_bytes()).unwrap()
    }

    #[test]
    fn pieces_are_what_they_are_behind_others() {
        let tokenizer = pieces();
        let all = token_bytes(&tokenizer, None, |id| id < 2);
        let text = |text: &str| TokenBytes::Text(text.as_bytes().to_vec());
        assert_eq!(all[0], TokenBytes::Special("<unk>".to_owned()));
        assert_eq!(all[2], TokenBytes::Unused);
        assert_eq!(all[3 + 0x0a], text("\n"));
        assert_eq!(all[3 + 0xff], TokenBytes::Text(vec![0xff]));
        assert_eq!(all[259..], [text(" a"), text(" "), text("a"), text(" the"), text("é")]);
    }

    #[test]
    fn bytes_make_up_the_text() {
        let tokenizer = demo();
        let all = tokenizer.token_bytes();
        let sample = "Once upon a time, 42 🦜.\n\t{\"é\": [1, 2]}";
        let bytes: Vec<u8> = tokenizer
            .tokenize_bare(sample)
            .unwrap()
            .into_iter()
            .flat_map(|id| match &all[id as usize] {
                TokenBytes::Text(bytes) => bytes.clone(),
                TokenBytes::Special(_) | TokenBytes::Unused => panic!("token {id} of a text is none"),
            })
            .collect();
        assert_eq!(bytes, sample.as_bytes());
        assert!(
            matches!(&all[tokenizer.tokenize("").unwrap()[0] as usize], TokenBytes::Special(markup) if markup == "<|bos|>")
        );
    }
}
