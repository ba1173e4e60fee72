//! Python's `json.dumps`, which transformers uses for the filter `tojson`: spaces after separators, no HTML escapes,
//! keys in the order of the object.

use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::python::{MAX_DEPTH, number};

/// The layout options of `json.dumps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JsonStyle {
    pub(super) ensure_ascii: bool,
    /// If set, each item is on a line of its own, indented by this text once per level.
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) sort_keys: bool,
}

/// Returns `json.dumps(value)`.
///
/// # Errors
/// When the value contains something that JSON lacks, such as a function or an undefined value, or is nested too
/// deeply.
pub(super) fn json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut writer = Writer { out: String::new(), style, depth: 0 };
    writer.value(value)?;
    Ok(writer.out)
}

struct Writer<'a> {
    out: String,
    style: &'a JsonStyle,
    depth: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => drop(write!(self.out, "{value}")),
            ValueKind::Number => self.out.push_str(&number(value, ["NaN", "Infinity"])),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.items(['[', ']'], &items, Self::value)?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.style.sort_keys {
                    keys.sort();
                }
                self.items(['{', '}'], &keys, |writer, key| {
                    writer.key(key)?;
                    writer.out.push_str(&writer.style.key_separator);
                    writer.value(&value.get_item(key)?)
                })?;
            }
            kind => return Err(no_json(&format!("its kind is {kind}"))),
        }
        Ok(())
    }

    fn items(
        &mut self,
        [open, close]: [char; 2],
        items: &[Value],
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.depth >= MAX_DEPTH {
            return Err(no_json("it is nested too deeply"));
        }
        self.out.push(open);
        self.depth += 1;
        for (index, item) in items.iter().enumerate() {
            self.out.push_str(if index > 0 { &self.style.item_separator } else { "" });
            self.new_line();
            write(self, item)?;
        }
        self.depth -= 1;
        if !items.is_empty() {
            self.new_line();
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent.as_str(), self.depth));
        }
    }

    /// Writes a key. A key that is another simple value becomes a string, as in Python.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        if key.kind() == ValueKind::String {
            return self.value(key);
        }
        self.out.push('"');
        self.value(key)?;
        self.out.push('"');
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\x08' => self.out.push_str("\\b"),
                '\x0c' => self.out.push_str("\\f"),
                c if c < ' ' || (self.style.ensure_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn no_json(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value cannot be written as JSON: {reason}"))
}
