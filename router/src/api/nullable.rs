//! Parsers for fields in which a client may ask for the default by a value: `null`, or -1 for a number.
//!
//! Python clients send unset fields as `null`. TGI refuses `null` for some fields; accepting `null` harms no client.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{IntoDeserializer, Visitor};
use serde::{Deserialize, Deserializer};

/// Reads a boolean; `null` means false.
pub(super) fn null_as_false<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(false))
}

/// Reads a non-negative whole number; `null` and -1 are read as `None`. In the APIs of llama.cpp and LM Studio, -1
/// means a random seed, or as many tokens as the context has room for.
pub(super) fn minus_one_as_none<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_any(NumberOrNone(PhantomData))
}

struct NumberOrNone<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for NumberOrNone<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, -1 or null")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Self::Value, E> {
        if number == -1 { Ok(None) } else { T::deserialize(number.into_deserializer()).map(Some) }
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Self::Value, E> {
        T::deserialize(number.into_deserializer()).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Body {
        #[serde(default, deserialize_with = "minus_one_as_none")]
        seed: Option<u64>,
        #[serde(default, deserialize_with = "minus_one_as_none")]
        max_tokens: Option<u32>,
    }

    #[test]
    fn minus_one_is_none_and_other_negative_numbers_are_wrong() {
        for (json, seed, max_tokens) in [
            ("{}", None, None),
            (r#"{"seed":null,"max_tokens":null}"#, None, None),
            (r#"{"seed":-1,"max_tokens":-1}"#, None, None),
            (r#"{"seed":18446744073709551615,"max_tokens":0}"#, Some(u64::MAX), Some(0)),
        ] {
            let body: Body = serde_json::from_str(json).unwrap();
            assert_eq!((body.seed, body.max_tokens), (seed, max_tokens), "{json}");
        }
        for (json, word) in [
            (r#"{"seed":-2}"#, "integer `-2`"),
            (r#"{"max_tokens":4294967296}"#, "integer `4294967296`"),
            (r#"{"seed":1.5}"#, "expected a whole number, -1 or null"),
            (r#"{"max_tokens":"5"}"#, "expected a whole number, -1 or null"),
        ] {
            let error = serde_json::from_str::<Body>(json).unwrap_err().to_string();
            assert!(error.contains(word), "{json}: {error}");
        }
    }
}
