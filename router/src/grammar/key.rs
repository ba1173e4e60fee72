//! The key of a kept grammar: a hash of 128 bits. The grammar itself may take megabytes.
//!
//! Entry point: [`GrammarKeys`]. The hash is seeded at random in each process, so nobody can search for two grammars
//! with the same key.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::io;

use serde_json::Value;

use super::Grammar;

/// Identifies a grammar in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GrammarKey([u64; 2]);

/// Computes keys. Each of the two hash functions yields half of a key.
#[derive(Debug, Default)]
pub(super) struct GrammarKeys([RandomState; 2]);

/// A writer that hashes its input.
struct HashWriter<H>(H);

impl GrammarKeys {
    /// Returns the key of a grammar. The order of properties matters, because answers have them in this order.
    pub(super) fn of(&self, grammar: &Grammar) -> GrammarKey {
        GrammarKey(self.0.each_ref().map(|state| {
            let mut hasher = state.build_hasher();
            hash(grammar, &mut hasher);
            hasher.finish()
        }))
    }
}

fn hash(grammar: &Grammar, hasher: &mut impl Hasher) {
    std::mem::discriminant(grammar).hash(hasher);
    match grammar {
        Grammar::JsonObject => {}
        Grammar::JsonSchema(schema) => hash_json(schema, hasher),
        Grammar::Regex(text) | Grammar::Lark(text) => text.hash(hasher),
        Grammar::Choice(texts) => texts.hash(hasher),
        Grammar::Within { lark, answer } => {
            lark.hash(hasher);
            hash(answer, hasher);
        }
    }
}

fn hash_json(json: &Value, hasher: &mut impl Hasher) {
    serde_json::to_writer(HashWriter(hasher), json).expect("hashing never fails, and keys of JSON are strings");
}

impl<H: Hasher> io::Write for HashWriter<&mut H> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_part_of_a_grammar_counts() {
        let schema = |text: &str| Grammar::JsonSchema(serde_json::from_str(text).unwrap());
        let texts = |texts: &[&str]| Grammar::Choice(texts.iter().map(|text| (*text).to_owned()).collect());
        let all = [
            Grammar::JsonObject,
            schema(r#"{"properties": {"a": {}, "b": {}}}"#),
            schema(r#"{"properties": {"b": {}, "a": {}}}"#),
            schema(r#"{"properties": {"a": {}, "b": {}}, "required": ["a"]}"#),
            Grammar::Regex("a".to_owned()),
            Grammar::Lark("a".to_owned()),
            texts(&["a"]),
            texts(&["a", "b"]),
            texts(&["ab"]),
            Grammar::Regex("a".to_owned()).within("b".to_owned()),
            Grammar::Regex("a".to_owned()).within("c".to_owned()),
            Grammar::Lark("a".to_owned()).within("b".to_owned()),
        ];
        let keys = GrammarKeys::default();
        for (index, grammar) in all.iter().enumerate() {
            let same: Vec<usize> = (0..all.len()).filter(|other| keys.of(&all[*other]) == keys.of(grammar)).collect();
            assert_eq!(same, [index], "{grammar:?}");
        }
    }

    #[test]
    fn keys_differ_from_process_to_process() {
        let grammar = Grammar::JsonSchema(json!({"type": "integer"}));
        assert_ne!(GrammarKeys::default().of(&grammar), GrammarKeys::default().of(&grammar));
    }
}
