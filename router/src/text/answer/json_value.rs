//! Where a value of JSON ends, while it grows. What is between its first and its last bracket is not judged.

/// The part of an object, a list or a text that was seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct JsonValue {
    depth: usize,
    is_in_text: bool,
    is_escaped: bool,
}

impl JsonValue {
    /// Behind the first bracket.
    pub(super) fn inside_object() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    /// Reads more of it. Bytes up to its end, if it is in here.
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
