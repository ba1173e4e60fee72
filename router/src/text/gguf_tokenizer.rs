//! Converts the tokenizer of a GGUF file to a tokenizer.json.
//!
//! Entry points: [`tokenizer_json`], [`tokenizer_config`]. A GGUF file only names the rule that splits texts into words
//! (`tokenizer.ggml.pre`). The names are llama.cpp's (`src/llama-vocab.cpp`), and the rules are those of the models'
//! own tokenizers. A name that is not in [`CUTS`] is an error, because a guess could produce other tokens
//! than the model was trained on.

use std::collections::HashMap;

use model_files::{Gguf, GgufValue};
use serde_json::{Map, Value, json};

use super::gguf_cuts::{self, CUTS};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";

/// The kinds of tokens in `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenKind {
    fn of(value: Option<&GgufValue>) -> Self {
        match value {
            Some(GgufValue::Integer(2)) => Self::Unknown,
            Some(GgufValue::Integer(3)) => Self::Control,
            Some(GgufValue::Integer(4)) => Self::UserDefined,
            Some(GgufValue::Integer(5)) => Self::Unused,
            Some(GgufValue::Integer(6)) => Self::Byte,
            _ => Self::Normal,
        }
    }
}

/// Returns the text of a tokenizer.json that is equivalent to the tokenizer in the file.
///
/// # Errors
/// When metadata is missing or unknown; the message says what to do.
pub(super) fn tokenizer_json(gguf: &Gguf) -> Result<Vec<u8>, String> {
    let file = Vocabulary::read(gguf)?;
    let parts = match gguf.text(MODEL) {
        Some("gpt2") => file.byte_level(gguf)?,
        Some("llama") => file.sentence_pieces(&file.merges(file.scores(gguf)?)?, gguf),
        // Pieces as in SentencePiece, but with a list of merges.
        Some("gemma4") => file.sentence_pieces(&pairs(gguf)?, gguf),
        other => {
            let other = other.unwrap_or("nothing");
            return Err(format!("{MODEL} is {other}, but only gpt2, llama and gemma4 are supported; {INSTEAD}"));
        }
    };
    let Parts { normalizer, pre_tokenizer, decoder, model, adds_bos } = parts;
    let json = json!({
        "version": "1.0",
        "added_tokens": file.added_tokens(),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": file.post_processor(gguf, adds_bos),
        "decoder": decoder,
        "model": model,
    });
    Ok(json.to_string().into_bytes())
}

/// Returns the chat entries of a tokenizer_config.json: the template, and the tokens that templates name.
pub(super) fn tokenizer_config(gguf: &Gguf) -> Map<String, Value> {
    const TOKENS: [(&str, &str); 4] = [
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ];
    let tokens = gguf.list("tokenizer.ggml.tokens").unwrap_or_default();
    let token = |(name, key): (&str, &str)| match tokens.get(usize::try_from(gguf.count(key)?).ok()?)? {
        GgufValue::Text(token) => Some((name.to_owned(), json!(token))),
        GgufValue::Integer(_) | GgufValue::Float(_) | GgufValue::Bool(_) | GgufValue::List(_) => None,
    };
    let template = gguf.text("tokenizer.chat_template").map(|template| ("chat_template".to_owned(), json!(template)));
    TOKENS.into_iter().filter_map(token).chain(template).collect()
}

const INSTEAD: &str = "put the tokenizer.json of the model beside the file";

/// The maximum length, in bytes, of a normal token whose merges are found by trying all its splits, which takes a time
/// that grows with the square of the length. The longest pieces of known models have about a hundred bytes.
const MAX_PIECE_BYTES: usize = 256;

/// The parts in which the two kinds of tokenizers differ.
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Value,
    adds_bos: bool,
}

/// The tokens of a file, with their kinds.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    kinds: Vec<TokenKind>,
}

impl<'a> Vocabulary<'a> {
    fn read(gguf: &'a Gguf) -> Result<Self, String> {
        let tokens = texts(gguf, "tokenizer.ggml.tokens")?;
        let kinds = gguf.list("tokenizer.ggml.token_type").unwrap_or_default();
        let kinds = (0..tokens.len()).map(|id| TokenKind::of(kinds.get(id))).collect();
        Ok(Self { tokens, kinds })
    }

    /// The parts of a byte-level tokenizer, which merges bytes in the order of a list.
    fn byte_level(&self, gguf: &Gguf) -> Result<Parts, String> {
        let pre = gguf.text(PRE).unwrap_or("default");
        let cut = CUTS.iter().find(|(name, _)| *name == pre).map(|(_, cut)| *cut);
        let cut = cut.ok_or_else(|| {
            let known = CUTS.map(|(name, _)| name).join(", ");
            format!("{PRE} is {pre}, but only these are supported: {known}; {INSTEAD}")
        })?;
        let merges = pairs(gguf)?;
        Ok(Parts {
            normalizer: if cut.is_composed { json!({"type": "NFC"}) } else { Value::Null },
            pre_tokenizer: cut.pre_tokenizer(),
            decoder: gguf_cuts::letters(true),
            model: json!({"type": "BPE", "ignore_merges": cut.ignores_merges, "vocab": self.ids(), "merges": merges}),
            adds_bos: cut.adds_bos,
        })
    }

    /// Returns the scores of all tokens.
    fn scores<'g>(&self, gguf: &'g Gguf) -> Result<&'g [GgufValue], String> {
        let scores = gguf.list("tokenizer.ggml.scores").unwrap_or_default();
        let (found, expected) = (scores.len(), self.tokens.len());
        if found != expected {
            return Err(format!("tokenizer.ggml.scores has {found} scores for {expected} tokens; {INSTEAD}"));
        }
        Ok(scores)
    }

    /// The parts of a SentencePiece tokenizer. Unknown characters become bytes.
    fn sentence_pieces(&self, merges: &[[&str; 2]], gguf: &Gguf) -> Parts {
        let has_prefix = gguf.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
        let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let mut normalizers = vec![spaces];
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if has_prefix {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let unknown = self.kinds.iter().position(|kind| *kind == TokenKind::Unknown).map(|id| self.tokens[id]);
        Parts {
            normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
            pre_tokenizer: Value::Null,
            decoder: json!({"type": "Sequence", "decoders": decoders}),
            model: json!({"type": "BPE", "unk_token": unknown, "fuse_unk": true, "byte_fallback": true, "vocab": self.ids(),
                "merges": merges}),
            adds_bos: true,
        }
    }

    /// Returns every pair of pieces that joins to a normal piece, in the order of the scores of the joined pieces.
    fn merges(&self, scores: &[GgufValue]) -> Result<Vec<[&'a str; 2]>, String> {
        let known: HashMap<&str, usize> = self.tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
        let score = |id: usize| match &scores[id] {
            GgufValue::Float(score) => *score,
            GgufValue::Integer(_) | GgufValue::Bool(_) | GgufValue::Text(_) | GgufValue::List(_) => 0.0,
        };
        let mut pieces: Vec<usize> = (0..self.tokens.len()).filter(|id| self.kinds[*id] == TokenKind::Normal).collect();
        if let Some(id) = pieces.iter().find(|id| self.tokens[**id].len() > MAX_PIECE_BYTES) {
            let given = self.tokens[*id].len();
            return Err(format!(
                "token {id} in tokenizer.ggml.tokens has {given} bytes; at most {MAX_PIECE_BYTES} are allowed; \
                 {INSTEAD}"
            ));
        }
        pieces.sort_by(|a, b| score(*b).total_cmp(&score(*a)).then(a.cmp(b)));
        let splits = |piece: &'a str| piece.char_indices().skip(1).map(move |(at, _)| piece.split_at(at));
        let pairs = pieces.into_iter().flat_map(|id| splits(self.tokens[id]));
        let is_merge = |(left, right): &(&str, &str)| known.contains_key(left) && known.contains_key(right);
        Ok(pairs.filter(is_merge).map(Into::into).collect())
    }

    fn ids(&self) -> Map<String, Value> {
        self.tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), json!(id))).collect()
    }

    /// Returns the tokens that the tokenizer looks for in a text before it splits the text into words.
    fn added_tokens(&self) -> Vec<Value> {
        let is_added =
            |kind: TokenKind| matches!(kind, TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown);
        let added = |id: usize| {
            let (content, special) = (self.tokens[id], self.kinds[id] != TokenKind::UserDefined);
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": special})
        };
        (0..self.tokens.len()).filter(|id| is_added(self.kinds[*id])).map(added).collect()
    }

    /// Returns the post-processor, which adds the special tokens before and after a text.
    fn post_processor(&self, gguf: &Gguf, adds_bos: bool) -> Value {
        let token = |flag: &str, default: bool, id: &str| {
            let wanted = gguf.flag(flag).unwrap_or(default);
            let id = gguf.count(id).filter(|id| wanted && (*id as usize) < self.tokens.len())?;
            Some((id, self.tokens[id as usize]))
        };
        let first = token("tokenizer.ggml.add_bos_token", adds_bos, "tokenizer.ggml.bos_token_id");
        let last = token("tokenizer.ggml.add_eos_token", false, "tokenizer.ggml.eos_token_id");
        let piece = |(_, token): (u64, &str)| json!({"SpecialToken": {"id": token, "type_id": 0}});
        let sequence = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
        let around = |sequences: &[&str]| -> Vec<Value> {
            let inner = sequences.iter().map(|name| sequence(name));
            first.map(piece).into_iter().chain(inner).chain(last.map(piece)).collect()
        };
        let specials = first
            .into_iter()
            .chain(last)
            .map(|(id, token)| (token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]})));
        let specials: Map<String, Value> = specials.collect();
        json!({"type": "TemplateProcessing", "single": around(&["A"]), "pair": around(&["A", "B"]), "special_tokens": specials})
    }
}

/// Returns the pairs of tokens that are merged, in order.
fn pairs(gguf: &Gguf) -> Result<Vec<[&str; 2]>, String> {
    texts(gguf, "tokenizer.ggml.merges")?
        .into_iter()
        .map(|merge| merge.split_once(' ').map(|(left, right)| [left, right]))
        .collect::<Option<_>>()
        .ok_or_else(|| format!("a merge in tokenizer.ggml.merges is not a pair of tokens; {INSTEAD}"))
}

fn texts<'a>(gguf: &'a Gguf, key: &str) -> Result<Vec<&'a str>, String> {
    let text = |value: &'a GgufValue| match value {
        GgufValue::Text(text) => Some(text.as_str()),
        GgufValue::Integer(_) | GgufValue::Float(_) | GgufValue::Bool(_) | GgufValue::List(_) => None,
    };
    let values = gguf.list(key).ok_or_else(|| format!("the file has no {key}; {INSTEAD}"))?;
    values.iter().map(text).collect::<Option<_>>().ok_or_else(|| format!("{key} is not a list of texts; {INSTEAD}"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use model_files::ModelFiles;

    use super::super::Tokenizer;
    use super::*;

    fn folders() -> Vec<PathBuf> {
        let of = |folder: &'static str| {
            let names = checkpoints::names(folder).into_iter();
            names.map(move |name| checkpoints::folder(&format!("{folder}/{name}")))
        };
        of("gguf").chain(of("gguf-tokenizers")).collect()
    }

    #[test]
    fn texts_have_the_tokens_that_they_had_before_the_conversion() {
        let mut num_texts = 0;
        for folder in folders() {
            let tokenizer = Tokenizer::load(&ModelFiles::open(folder.to_str().unwrap()).unwrap()).unwrap();
            let reference: Value =
                serde_json::from_slice(&std::fs::read(folder.join("reference.json")).unwrap()).unwrap();
            for case in reference["texts"].as_array().unwrap() {
                let text = case["text"].as_str().unwrap();
                let ids = serde_json::to_value(tokenizer.tokenize(text).unwrap()).unwrap();
                assert_eq!(ids, case["ids"], "{}: {text:?}", folder.display());
                num_texts += 1;
            }
        }
        assert!(num_texts >= 60, "only {num_texts} texts");
    }

    #[test]
    fn a_piece_is_at_most_as_long_as_the_limit() {
        let num_merges = |len: usize| {
            let long = "a".repeat(len);
            let vocabulary = Vocabulary { tokens: vec!["a", long.as_str()], kinds: vec![TokenKind::Normal; 2] };
            let scores = [GgufValue::Float(0.0), GgufValue::Float(0.0)];
            vocabulary.merges(&scores).map(|merges| merges.len())
        };
        assert_eq!((num_merges(2), num_merges(MAX_PIECE_BYTES)), (Ok(1), Ok(0)));
        insta::assert_snapshot!(
            num_merges(MAX_PIECE_BYTES + 1).unwrap_err(),
            @"token 1 in tokenizer.ggml.tokens has 257 bytes; at most 256 are allowed; put the tokenizer.json of the model beside the file"
        );
    }

    #[test]
    fn tokens_become_text_again() {
        for folder in folders() {
            let tokenizer = Tokenizer::load(&ModelFiles::open(folder.to_str().unwrap()).unwrap()).unwrap();
            let text = "the little dog, naïve café — 猫が好き 🦜";
            let ids = tokenizer.tokenize(text).unwrap();
            let special = ids.iter().take_while(|id| tokenizer.is_special(**id)).count();
            assert_eq!(tokenizer.detokenize(&ids[special..]).unwrap(), text, "{}", folder.display());
        }
    }
}
