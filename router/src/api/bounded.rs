//! Reads the messages of a body. If there are too many, reading stops before the rest is parsed into values.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error, IgnoredAny, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The maximum number of messages in a conversation.
pub(super) const MAX_MESSAGES: usize = 8192;
/// The maximum number of tools in a conversation.
pub(super) const MAX_TOOLS: usize = 1024;

/// Reads the messages of a conversation.
pub(super) fn messages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Map<String, Value>>, D::Error> {
    deserializer.deserialize_seq(Messages)
}

struct Messages;

impl<'de> Visitor<'de> for Messages {
    type Value = Vec<Map<String, Value>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while list.len() < MAX_MESSAGES {
            let Some(message) = items.next_element()? else { return Ok(list) };
            list.push(message);
        }
        match items.next_element::<IgnoredAny>()? {
            None => Ok(list),
            Some(_) => Err(Error::custom(format!("at most {MAX_MESSAGES} are allowed"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(count: usize) -> Result<usize, String> {
        let text = format!("[{}]", vec!["{}"; count].join(","));
        let read = messages(&mut serde_json::Deserializer::from_str(&text));
        read.map(|list| list.len()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_list_is_read_up_to_its_limit() {
        assert_eq!([read(0), read(1), read(MAX_MESSAGES)], [Ok(0), Ok(1), Ok(MAX_MESSAGES)]);
        for too_many in [MAX_MESSAGES + 1, 5 * MAX_MESSAGES] {
            let error = read(too_many).unwrap_err();
            assert!(error.starts_with("at most 8192 are allowed"), "{error}");
        }
    }
}
