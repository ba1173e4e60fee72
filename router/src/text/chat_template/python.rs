//! Python's `str` and `repr` of values. Chat templates are written and tested with Python, and the model was trained on
//! text that Python printed.
//!
//! Printing never fails.

use std::borrow::Cow;
use std::fmt::Write as _;

use minijinja::Value;
use minijinja::value::ValueKind;

/// The maximum depth to which nested lists and objects are printed. JSON in requests is nested less deeply.
pub(super) const MAX_DEPTH: usize = 200;

/// Returns `str(value)`.
pub(super) fn str_of(value: &Value) -> Cow<'_, str> {
    match value.as_str() {
        Some(text) => Cow::Borrowed(text),
        None if value.is_undefined() => Cow::Borrowed(""),
        None => Cow::Owned(repr(value)),
    }
}

/// Returns `repr(value)`.
pub(super) fn repr(value: &Value) -> String {
    let mut out = String::new();
    write_repr(&mut out, value, 0);
    out
}

/// True if `str.strip` removes the character.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

fn write_repr(out: &mut String, value: &Value, depth: usize) {
    match value.kind() {
        _ if depth > MAX_DEPTH => out.push_str("..."),
        ValueKind::String => write_str_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => out.push_str(&number(value, ["nan", "inf"])),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(out, &item, depth + 1);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(out, &key, depth + 1);
                out.push_str(": ");
                write_repr(out, &value.get_item(&key).unwrap_or_default(), depth + 1);
            }
            out.push('}');
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        _ => drop(write!(out, "{value}")),
    }
}

fn write_str_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => drop(match u32::from(c) {
                code @ ..=0xff => write!(out, "\\x{code:02x}"),
                code @ ..=0xffff => write!(out, "\\u{code:04x}"),
                code => write!(out, "\\U{code:08x}"),
            }),
        }
    }
    out.push(quote);
}

/// Returns `str.isprintable` of a character. Rust's `Debug` escapes the characters that are not printable, and also
/// quotes and backslashes. `Debug` escapes combining marks only at the start of a text, so the character is tested
/// after an `a`.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let mut after_a = ['a', c].iter().collect::<String>().escape_debug().skip(1).collect::<Vec<_>>();
    after_a.pop() == Some(c) && after_a.is_empty()
}

/// Returns a fractional number as Python's `repr` does: the fewest digits that round-trip. NaN and infinity have the
/// given names.
pub(super) fn number(value: &Value, [nan, infinity]: [&str; 2]) -> String {
    let Ok(number) = f64::try_from(value.clone()) else { return value.to_string() };
    if number.is_nan() {
        return nan.to_owned();
    }
    if number.is_infinite() {
        return if number < 0.0 { format!("-{infinity}") } else { infinity.to_owned() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent @ (..-4 | 16..)) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ => {
            let positional = number.to_string();
            if positional.contains('.') { positional } else { positional + ".0" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(json: &str) -> Value {
        Value::from_serialize(serde_json::from_str::<serde_json::Value>(json).unwrap())
    }

    #[test]
    fn numbers() {
        for (json, expected) in [
            ("1", "1"),
            ("-7", "-7"),
            ("18446744073709551615", "18446744073709551615"),
            ("1.0", "1.0"),
            ("-0.0", "-0.0"),
            ("0.1", "0.1"),
            ("2.5e-4", "0.00025"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("1.5e-7", "1.5e-07"),
            ("123456789012345680.0", "1.2345678901234568e+17"),
            ("1e15", "1000000000000000.0"),
            ("1e16", "1e+16"),
            ("1e100", "1e+100"),
            ("0.30000000000000004", "0.30000000000000004"),
        ] {
            assert_eq!(repr(&value(json)), expected, "{json}");
        }
    }

    #[test]
    fn values() {
        let json = r#"{"a":[1,"x",null,true,{}],"it's":"\"","q":"it's","é\n":"\u0000\u00ad\u200b\ud83e\udd9c"}"#;
        let expected = r#"{'a': [1, 'x', None, True, {}], "it's": '"', 'q': "it's", 'é\n': '\x00\xad\u200b🦜'}"#;
        assert_eq!(str_of(&value(json)), expected);
        assert_eq!((str_of(&Value::UNDEFINED), str_of(&Value::from("é"))), ("".into(), "é".into()));
        assert_eq!(repr(&Value::from("e\u{301}'\"")), "'e\u{301}\\'\"'");
    }
}
