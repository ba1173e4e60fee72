//! Escapes text, so that a log line stays one line and its fields stay distinct, even if clients wrote the text.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns the text with an escape in place of each character for which [`is_control`] returns true.
pub(crate) fn control(text: &str) -> Cow<'_, str> {
    escape(text, |c| c.escape_default().to_string())
}

/// As [`control`], but with JSON escapes. In compact JSON these characters can only be inside strings.
pub(crate) fn control_in_json(json: String) -> String {
    match escape(&json, |c| format!("\\u{:04x}", u32::from(c))) {
        Cow::Borrowed(_) => json,
        Cow::Owned(escaped) => escaped,
    }
}

/// Returns the value of a field, in quotes unless it is clearly one word.
pub(crate) fn value(text: &str) -> Cow<'_, str> {
    let is_word = |c: char| !c.is_whitespace() && !is_control(c) && !matches!(c, '"' | '=' | '\\');
    if !text.is_empty() && text.chars().all(is_word) {
        return text.into();
    }
    format!("{text:?}").into()
}

/// Cuts text after at most `max_bytes` bytes and appends a mark with the number of missing bytes. Shorter text is
/// unchanged.
pub(crate) fn cut(text: &mut String, max_bytes: usize) {
    if text.len() > max_bytes {
        let end = text.floor_char_boundary(max_bytes);
        let mark = cut_mark(text.len() - end);
        text.truncate(end);
        text.push_str(&mark);
    }
}

/// Returns the mark after text that was cut. `num_bytes` is the number of missing bytes.
pub fn cut_mark(num_bytes: usize) -> String {
    format!("… ({num_bytes} more bytes)")
}

fn escape(text: &str, replacement: impl Fn(char) -> String) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        let _ = if is_control(c) { escaped.write_str(&replacement(c)) } else { escaped.write_char(c) };
    }
    escaped.into()
}

/// True for control characters, separators of lines and paragraphs, and the characters that embed, override or isolate
/// a direction of writing.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_one_word_or_quoted() {
        for (text, expected) in [
            ("demo", "demo"),
            ("http://0.0.0.0:80/a?b", "http://0.0.0.0:80/a?b"),
            ("größer", "größer"),
            ("", "\"\""),
            ("a b", "\"a b\""),
            ("a=1", "\"a=1\""),
            ("say \"hi\"", "\"say \\\"hi\\\"\""),
            ("x\nERROR forged", "\"x\\nERROR forged\""),
            ("x\u{1b}[2J", "\"x\\u{1b}[2J\""),
            ("x\u{9b}2J\u{2028}\u{202e}", "\"x\\u{9b}2J\\u{2028}\\u{202e}\""),
        ] {
            assert_eq!(value(text), expected);
        }
    }

    #[test]
    fn control_characters_are_escaped_and_nothing_else() {
        assert_eq!(control("it's \"so\" \\n größer"), "it's \"so\" \\n größer");
        assert_eq!(control("a\r\nb\t\u{7f}\u{85}"), "a\\r\\nb\\t\\u{7f}\\u{85}");
        assert_eq!(control_in_json("\"a\u{85}b\u{2028}\"".to_owned()), "\"a\\u0085b\\u2028\"");
    }

    #[test]
    fn cuts_say_how_much_is_missing() {
        let mut text = "äöü".to_owned();
        cut(&mut text, 6);
        assert_eq!(text, "äöü");
        cut(&mut text, 3);
        assert_eq!(text, "ä… (4 more bytes)");
    }
}
