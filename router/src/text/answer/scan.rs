//! A cursor over text that may be incomplete: every read succeeds, fails, or needs more text.

use super::json_value::JsonValue;
use super::tools::{Tool, Tools};

/// The reason why a read failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Miss {
    /// More text is needed to decide.
    Short,
    /// The text is not what was to be read.
    Other,
}

/// The result of a read.
pub(super) type Scan<T> = Result<T, Miss>;

/// A position in a text.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    /// True if no more text will come.
    is_end: bool,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str, is_end: bool) -> Self {
        Self { text, at: 0, is_end }
    }

    /// The number of bytes read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(super) fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Reads `literal`, which must be next.
    pub(super) fn eat(&mut self, literal: &str) -> Scan<()> {
        if self.rest().starts_with(literal) {
            self.at += literal.len();
            return Ok(());
        }
        Err(if literal.starts_with(self.rest()) { self.short() } else { Miss::Other })
    }

    /// Reads `literal` if it is next, and returns true then.
    pub(super) fn eats(&mut self, literal: &str) -> Scan<bool> {
        match self.eat(literal) {
            Ok(()) => Ok(true),
            Err(Miss::Other) => Ok(false),
            Err(Miss::Short) => Err(Miss::Short),
        }
    }

    /// Reads one of the texts in `literals` if it is next, and returns true then.
    pub(super) fn eats_any(&mut self, literals: &[&str]) -> Scan<bool> {
        let found: Vec<_> = literals.iter().map(|literal| self.clone().eat(literal).map(|()| literal.len())).collect();
        if let Some(len) = found.iter().find_map(|found| found.ok()) {
            self.at += len;
            return Ok(true);
        }
        if found.contains(&Err(Miss::Short)) { Err(Miss::Short) } else { Ok(false) }
    }

    /// Reads one of the texts in `literals`, which must be next.
    pub(super) fn eat_any(&mut self, literals: &[&str]) -> Scan<()> {
        if self.eats_any(literals)? { Ok(()) } else { Err(Miss::Other) }
    }

    /// Reads up to the end of `literal`, and returns the text before `literal`.
    pub(super) fn until(&mut self, literal: &str) -> Scan<&'a str> {
        let len = self.rest().find(literal).ok_or(self.short())?;
        let before = &self.rest()[..len];
        self.at += len + literal.len();
        Ok(before)
    }

    /// As [`Self::until`], for the first of the texts in `literals`. Two of them must not be able to overlap in a text.
    pub(super) fn until_any(&mut self, literals: &[&str]) -> Scan<&'a str> {
        let found = literals.iter().filter_map(|literal| Some((self.rest().find(literal)?, literal.len())));
        let (len, literal_len) = found.min().ok_or(self.short())?;
        let before = &self.rest()[..len];
        self.at += len + literal_len;
        Ok(before)
    }

    /// Reads up to the first of the texts in `literals`, or else to the end of the answer.
    pub(super) fn skip_to_any(&mut self, literals: &[&str]) -> Scan<()> {
        let len = literals.iter().filter_map(|literal| self.rest().find(literal)).min();
        self.at += if self.is_end { len.unwrap_or(self.rest().len()) } else { len.ok_or(Miss::Short)? };
        Ok(())
    }

    /// Returns the next character without reading it.
    pub(super) fn peek(&self) -> Scan<char> {
        self.rest().chars().next().ok_or(self.short())
    }

    /// Reads the next character.
    pub(super) fn take(&mut self) -> Scan<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Ok(c)
    }

    /// Reads characters while `allowed` returns true, and returns them.
    pub(super) fn while_in(&mut self, allowed: fn(char) -> bool) -> Scan<&'a str> {
        let len = self.rest().find(|c| !allowed(c));
        let len = if self.is_end { len.unwrap_or(self.rest().len()) } else { len.ok_or(Miss::Short)? };
        let found = &self.rest()[..len];
        self.at += len;
        Ok(found)
    }

    /// Reads the name of a tool if one of the texts in `behind` comes after the name. That text is not read.
    pub(super) fn tool<'t>(&mut self, tools: &'t Tools, behind: &[&str]) -> Scan<&'t Tool> {
        let mut miss = Miss::Other;
        for tool in tools.each() {
            let mut ahead = self.clone();
            match ahead.eat(&tool.name).and_then(|()| ahead.clone().eats_any(behind)) {
                Ok(true) => {
                    self.at = ahead.at;
                    return Ok(tool);
                }
                Ok(false) | Err(Miss::Other) => {}
                Err(Miss::Short) => miss = Miss::Short,
            }
        }
        Err(miss)
    }

    /// Reads a JSON value and returns its text, which is not validated.
    pub(super) fn json(&mut self) -> Scan<&'a str> {
        if matches!(self.peek()?, '{' | '[' | '"') {
            let len = JsonValue::default().push(self.rest()).ok_or(self.short())?;
            let value = &self.rest()[..len];
            self.at += len;
            return Ok(value);
        }
        let value = self.while_in(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.'))?;
        if value.is_empty() { Err(Miss::Other) } else { Ok(value) }
    }

    /// Reads a JSON string.
    pub(super) fn json_string(&mut self) -> Scan<String> {
        if self.peek()? != '"' {
            return Err(Miss::Other);
        }
        serde_json::from_str(self.json()?).map_err(|_| Miss::Other)
    }

    /// Reads up to the end of an object that has begun.
    pub(super) fn end_of_object(&mut self) -> Scan<()> {
        self.at += JsonValue::inside_object().push(self.rest()).ok_or(self.short())?;
        Ok(())
    }

    fn short(&self) -> Miss {
        if self.is_end { Miss::Other } else { Miss::Short }
    }
}
