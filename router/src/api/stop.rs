//! Stop sequences in requests: a list of strings as in TGI's API, or a bare string as OpenAI's clients send it.
//!
//! `validation` checks the number of stop sequences and their lengths.

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Reads a string, a list of strings, or `null`.
pub(super) fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    deserializer.deserialize_any(StopVisitor)
}

struct StopVisitor;

impl<'de> Visitor<'de> for StopVisitor {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a string or a list of strings")
    }

    fn visit_str<E>(self, stop: &str) -> Result<Self::Value, E> {
        Ok(vec![stop.to_owned()])
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(serde::de::value::SeqAccessDeserializer::new(list))
    }
}
