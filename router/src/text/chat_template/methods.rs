//! Methods of Python's `str`, `list` and `dict` that templates call, where `minijinja_contrib` lacks them or differs
//! from Python.
//!
//! Methods that change a list or a dictionary are missing, because transformers forbids them too.

use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::python;

/// Calls a method that minijinja lacks.
///
/// # Errors
/// When there is no such method, or the arguments do not fit.
pub(super) fn call(state: &State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let found = match (value.kind(), value.as_str()) {
        (_, Some(text)) => string_method(text, method, args)?,
        (ValueKind::Seq | ValueKind::Iterable, None) => list_method(value, method, args)?,
        (ValueKind::Map, None) if method == "copy" => Some(value.clone()),
        _ => None,
    };
    match found {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let result = match method {
        "strip" => strip(text, args, true, true)?.into(),
        "lstrip" => strip(text, args, true, false)?.into(),
        "rstrip" => strip(text, args, false, true)?.into(),
        "split" => split(text, args, false)?,
        "rsplit" => split(text, args, true)?,
        "splitlines" => split_lines(text, args)?,
        "join" => join(text, args)?.into(),
        "find" => find(text, args, false)?.map_or(Value::from(-1), Value::from),
        "rfind" => find(text, args, true)?.map_or(Value::from(-1), Value::from),
        "index" => find(text, args, false)?.map(Value::from).ok_or_else(not_found)?,
        "rindex" => find(text, args, true)?.map(Value::from).ok_or_else(not_found)?,
        "partition" | "rpartition" => partition(text, args, method == "rpartition")?,
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        // Python returns false for an empty string.
        "isalnum" | "isalpha" | "isdigit" | "isnumeric" | "isspace" | "islower" | "isupper" if text.is_empty() => {
            false.into()
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

fn join(joiner: &str, args: &[Value]) -> Result<String, Error> {
    let (items,): (&Value,) = from_args(args)?;
    let items: Vec<Value> = items.try_iter()?.collect();
    Ok(items.iter().map(python::str_of).collect::<Vec<_>>().join(joiner))
}

fn list_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(match method {
        "index" => {
            let (item,): (&Value,) = from_args(args)?;
            let index = value.try_iter()?.position(|candidate| candidate == *item);
            Some(index.map(Value::from).ok_or_else(not_found)?)
        }
        "count" => {
            let (item,): (&Value,) = from_args(args)?;
            Some(value.try_iter()?.filter(|candidate| candidate == item).count().into())
        }
        "copy" => Some(value.clone()),
        _ => None,
    })
}

fn not_found() -> Error {
    Error::new(ErrorKind::InvalidOperation, "the value was not found")
}

fn strip<'a>(text: &'a str, args: &[Value], start: bool, end: bool) -> Result<&'a str, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    let is_stripped = |c: char| chars.map_or_else(|| python::is_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(is_stripped) } else { text };
    Ok(if end { text.trim_end_matches(is_stripped) } else { text })
}

/// The methods `split` and `rsplit`. Without a separator they split at runs of white space.
fn split(text: &str, args: &[Value], from_end: bool) -> Result<Value, Error> {
    let (separator, max, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(kwargs.get("sep")?).filter(|separator| !separator.is_none());
    let max = max.or(kwargs.get("maxsplit")?).and_then(|max| usize::try_from(max).ok());
    kwargs.assert_all_used()?;
    let limit = max.map_or(usize::MAX, |max| max.saturating_add(1));
    let pieces: Vec<&str> = match &separator {
        None if from_end => reversed(split_spaces(text, limit, true)),
        None => split_spaces(text, limit, false),
        Some(separator) => {
            let invalid = || Error::new(ErrorKind::InvalidOperation, "the separator must be a text that is not empty");
            let separator = separator.as_str().filter(|separator| !separator.is_empty()).ok_or_else(invalid)?;
            match from_end {
                true => reversed(text.rsplitn(limit, separator).collect()),
                false => text.splitn(limit, separator).collect(),
            }
        }
    };
    Ok(pieces.into_iter().map(Value::from).collect())
}

fn reversed(mut pieces: Vec<&str>) -> Vec<&str> {
    pieces.reverse();
    pieces
}

/// Splits at runs of white space into at most `limit` pieces, from the end of the text if `from_end`. The last piece is
/// the rest of the text, stripped only on the side from which the text is read.
fn split_spaces(text: &str, limit: usize, from_end: bool) -> Vec<&str> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    loop {
        let is_space = python::is_space;
        rest = if from_end { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
        if rest.is_empty() {
            return pieces;
        }
        let space = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(space) = space.filter(|_| pieces.len() + 1 < limit) else {
            pieces.push(rest);
            return pieces;
        };
        let width = rest[space..].chars().next().map_or(0, char::len_utf8);
        let (before, after) = (&rest[..space], &rest[space + width..]);
        pieces.push(if from_end { after } else { before });
        rest = if from_end { before } else { after };
    }
}

fn split_lines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keeps_ends, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
    let keeps_ends = keeps_ends.or(kwargs.get("keepends")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let ends = ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(end) = rest.find(ends) {
        let width = match rest[end..].strip_prefix("\r\n") {
            Some(_) => 2,
            None => rest[end..].chars().next().map_or(0, char::len_utf8),
        };
        lines.push(Value::from(&rest[..if keeps_ends { end + width } else { end }]));
        rest = &rest[end + width..];
    }
    if !rest.is_empty() {
        lines.push(rest.into());
    }
    Ok(lines.into())
}

/// Returns the index, in characters, of the first or last occurrence of a text between two optional indices.
fn find(text: &str, args: &[Value], from_end: bool) -> Result<Option<usize>, Error> {
    let (wanted, Rest(range)): (&str, Rest<Option<i64>>) = from_args(args)?;
    let num_chars = text.chars().count();
    let place = |index: usize, default: usize| match range.get(index).copied().flatten() {
        Some(place) if place < 0 => {
            num_chars.saturating_sub(usize::try_from(place.unsigned_abs()).unwrap_or(usize::MAX))
        }
        Some(place) => usize::try_from(place).unwrap_or(usize::MAX),
        None => default,
    };
    let (start, end) = (place(0, 0), place(1, num_chars).min(num_chars));
    if start > end {
        return Ok(None);
    }
    let byte = |place: usize| text.char_indices().nth(place).map_or(text.len(), |(byte, _)| byte);
    let part = &text[byte(start)..byte(end)];
    let found = if from_end { part.rfind(wanted) } else { part.find(wanted) };
    Ok(found.map(|byte| start + part[..byte].chars().count()))
}

fn partition(text: &str, args: &[Value], from_end: bool) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    let halves = if from_end { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match halves {
        Some((before, after)) => [before, separator, after],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from_iter(parts))
}
