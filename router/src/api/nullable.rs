//! Fields that clients send as `null` when they mean the default.
//!
//! Python clients serialise every field they know. TGI refuses `null` for some of them; accepting it breaks nobody.

use serde::{Deserialize, Deserializer};

/// Reads a boolean, with `null` for false.
pub(super) fn null_as_false<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(false))
}
