//! `logit_bias` in requests, as in OpenAI's API: an object whose keys are token ids, as strings, and whose values are
//! numbers.
//!
//! `validation` checks later, with the other parameters, that the token ids and numbers are allowed.

use proto::LogitBias;
use serde::Deserializer;
use serde::de::{Error, MapAccess, Visitor};

/// Reads the object. `null` means no biases. Entries keep their order.
pub(super) fn by_token_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<LogitBias>, D::Error> {
    deserializer.deserialize_any(BiasVisitor)
}

struct BiasVisitor;

impl<'de> Visitor<'de> for BiasVisitor {
    type Value = Vec<LogitBias>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object of token ids and numbers")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut biases = Vec::new();
        while let Some((key, bias)) = map.next_entry::<String, f32>()? {
            let token_id = key.parse();
            let token_id = token_id
                .map_err(|_| A::Error::custom(format!("`logit_bias` has a key that is not a token id: {key:?}")))?;
            biases.push(LogitBias { token_id, bias });
        }
        Ok(biases)
    }
}
