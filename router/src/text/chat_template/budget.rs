//! The bytes of text that the filters, the methods and the output of one rendering may make together.
//!
//! A failed allocation would end the whole server. A result that can be many times as long as its inputs is charged
//! before it is made, and others afterwards. What the operators `~`, `+` and `*` make is not charged, because minijinja
//! has no hook for them. A rendering stays on its thread from its start to its end, so each thread has one budget.

use std::borrow::Cow;
use std::cell::Cell;

use minijinja::{Error, ErrorKind, Value};

use super::MAX_TEXT_BYTES;
use super::python::str_of;

thread_local! {
    static LEFT: Cell<usize> = const { Cell::new(MAX_TEXT_BYTES) };
}

/// Begins a rendering on this thread.
pub(super) fn start() {
    LEFT.set(MAX_TEXT_BYTES);
}

/// Returns the number of bytes that are left.
pub(super) fn left() -> usize {
    LEFT.get()
}

/// Takes bytes from the budget.
///
/// # Errors
/// When fewer are left.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    LEFT.set(left().checked_sub(bytes).ok_or_else(too_long)?);
    Ok(())
}

/// Returns the error of a text for which too few bytes are left. The rendering ends as if its output were too long.
pub(super) fn too_long() -> Error {
    Error::new(ErrorKind::WriteFailure, "too much text")
}

/// Charges a text that was just made, and returns it.
///
/// # Errors
/// When fewer bytes are left.
pub(super) fn charged(text: String) -> Result<String, Error> {
    charge(text.len())?;
    Ok(text)
}

/// Returns `str(value)`, and charges it if it is a new text.
///
/// # Errors
/// When fewer bytes are left.
pub(super) fn text_of(value: &Value) -> Result<Cow<'_, str>, Error> {
    let text = str_of(value);
    if matches!(text, Cow::Owned(_)) {
        charge(text.len())?;
    }
    Ok(text)
}

/// Returns `text.repeat(count)`.
///
/// # Errors
/// When fewer bytes are left.
pub(super) fn repeat(text: &str, count: usize) -> Result<String, Error> {
    charge(text.len().checked_mul(count).ok_or_else(too_long)?)?;
    Ok(text.repeat(count))
}

/// Charges the result of replacing the first `count` occurrences of `old` in a text by `new`.
///
/// # Errors
/// When fewer bytes are left.
pub(super) fn charge_replacement(text: &str, old: &str, new: &str, count: usize) -> Result<(), Error> {
    let num_matches = text.matches(old).take(count).count();
    let kept_bytes = text.len() - num_matches * old.len();
    charge(num_matches.checked_mul(new.len()).and_then(|bytes| bytes.checked_add(kept_bytes)).ok_or_else(too_long)?)
}

/// A text that grows up to what is left of the budget.
#[derive(Debug)]
pub(super) struct GrowingText {
    text: String,
    limit_bytes: usize,
}

impl GrowingText {
    pub(super) fn new() -> Self {
        Self { text: String::new(), limit_bytes: left() }
    }

    /// Appends a text.
    ///
    /// # Errors
    /// When fewer bytes are left.
    pub(super) fn push_str(&mut self, text: &str) -> Result<(), Error> {
        if text.len() > self.limit_bytes - self.text.len() {
            return Err(too_long());
        }
        self.text.push_str(text);
        Ok(())
    }

    /// Charges the text, and returns it.
    ///
    /// # Errors
    /// When fewer bytes are left.
    pub(super) fn finish(self) -> Result<String, Error> {
        charged(self.text)
    }
}
