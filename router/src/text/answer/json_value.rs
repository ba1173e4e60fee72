//! Finds the end of a JSON object, list or string that arrives in pieces. The text inside the value is not validated.

/// The state after reading the first part of an object, a list or a string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct JsonValue {
    depth: usize,
    is_in_text: bool,
    is_escaped: bool,
}

impl JsonValue {
    /// Returns the state after reading the first bracket of an object.
    pub(super) fn inside_object() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    /// True inside a string.
    pub(super) fn is_in_text(&self) -> bool {
        self.is_in_text
    }

    /// Reads more text. Returns the number of bytes up to the value's end, if the text contains it.
    pub(super) fn push(&mut self, text: &str) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_in_text => self.is_escaped = true,
                b'"' => self.is_in_text = !self.is_in_text,
                _ if self.is_in_text => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            if self.depth == 0 && !self.is_in_text && matches!(byte, b'}' | b']' | b'"') {
                return Some(at + 1);
            }
        }
        None
    }
}
