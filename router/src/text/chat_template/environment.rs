//! The environment of a template: Jinja as transformers sets it up. Filters and tests of minijinja that are known to
//! differ from Jinja's are replaced.
//!
//! The number of steps is limited. The process that renders limits the time and the memory of each step.

use jiff::civil::DateTime;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, filters, tests};

use super::json::{JsonStyle, json};
use super::methods;
use super::program::Raised;
use super::python::{self, str_of};

/// The maximum number of instructions in one rendering.
pub(super) const MAX_STEPS: u64 = 10_000_000;

/// Returns the environment, without a template.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(|out, _, value| Ok(out.write_str(&str_of(value))?));
    environment.set_unknown_method_callback(methods::call);
    environment.add_function("raise_exception", raise_exception);

    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| str_of(value).into_owned());
    environment.add_filter("pprint", python::repr);
    environment.add_filter("upper", |value: &Value| str_of(value).to_uppercase());
    environment.add_filter("lower", |value: &Value| str_of(value).to_lowercase());
    environment.add_filter("title", |value: &Value| filters::title(str_of(value)));
    environment.add_filter("capitalize", capitalize);
    environment.add_filter("trim", trim);
    environment.add_filter("replace", replace);
    environment.add_filter("indent", indent);
    environment.add_filter("join", join);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("items", items);
    environment.add_filter("int", int);
    environment.add_filter("float", float);

    environment.add_test("sequence", |value: &Value| is_sequence(value));
    environment.add_test("iterable", |value: &Value| is_sequence(value));
    environment.add_test("number", |value: &Value| value.kind() == ValueKind::Bool || tests::is_number(value));
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment
}

/// Returns the function `strftime_now` for a fixed time.
pub(super) fn strftime_at(now: DateTime) -> Value {
    Value::from_function(move |format: &str| {
        let invalid = |error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {error}"));
        jiff::fmt::strtime::format(format, now).map_err(invalid)
    })
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let raised = Raised(str_of(message).into_owned());
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(raised))
}

#[expect(clippy::needless_pass_by_value, reason = "minijinja hands them over by value")]
fn tojson(value: &Value, ensure_ascii: Option<Value>, indent: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = indent.or(kwargs.get("indent")?).filter(|indent| !indent.is_none());
    let indent = match indent {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(indent) => indent.to_owned(),
            None => " ".repeat(usize::try_from(i64::try_from(indent)?).unwrap_or(0)),
        }),
    };
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson takes two separators")),
    };
    let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let style = JsonStyle {
        ensure_ascii: is_set(ensure_ascii.or(kwargs.get("ensure_ascii")?)),
        indent,
        item_separator,
        key_separator,
        sort_keys: is_set(kwargs.get("sort_keys")?),
    };
    kwargs.assert_all_used()?;
    json(value, &style).map(Value::from)
}

fn capitalize(value: &Value) -> String {
    let text = str_of(value);
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    first + &chars.as_str().to_lowercase()
}

fn trim(value: &Value, chars: Option<&str>) -> String {
    let is_trimmed = |c: char| chars.map_or_else(|| python::is_space(c), |chars| chars.contains(c));
    str_of(value).trim_matches(is_trimmed).to_owned()
}

fn replace(value: &Value, old: &Value, new: &Value, count: Option<usize>) -> String {
    let (value, old, new) = (str_of(value), str_of(old), str_of(new));
    match count {
        Some(count) => value.replacen(&*old, &new, count),
        None => value.replace(&*old, &new),
    }
}

/// Indents all lines except the first line and empty lines. With `first` the first line is indented too, and with
/// `blank` empty lines.
#[expect(clippy::needless_pass_by_value, reason = "minijinja hands them over by value")]
fn indent(value: &Value, width: Option<Value>, first: Option<bool>, kwargs: Kwargs) -> Result<String, Error> {
    let width = width.or(kwargs.get("width")?).unwrap_or_else(|| Value::from(4));
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = kwargs.get::<Option<bool>>("blank")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let indention = match width.as_str() {
        Some(indention) => indention.to_owned(),
        None => " ".repeat(usize::try_from(i64::try_from(width)?).unwrap_or(0)),
    };
    let mut indented = String::new();
    for (index, line) in str_of(value).split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).enumerate() {
        indented.push_str(if index > 0 { "\n" } else { "" });
        let is_indented = if index == 0 { first } else { blank || !line.is_empty() };
        indented.push_str(if is_indented { &indention } else { "" });
        indented.push_str(line);
    }
    Ok(indented)
}

#[expect(clippy::needless_pass_by_value, reason = "minijinja hands them over by value")]
fn join(value: &Value, joiner: Option<&str>, attribute: Option<&str>, kwargs: Kwargs) -> Result<String, Error> {
    let joiner = joiner.or(kwargs.get("d")?).unwrap_or_default();
    let attribute = attribute.or(kwargs.get("attribute")?);
    kwargs.assert_all_used()?;
    let mut joined = String::new();
    for (index, item) in value.try_iter()?.enumerate() {
        let item = match attribute {
            Some(attribute) => item.get_attr(attribute)?,
            None => item,
        };
        joined.push_str(if index > 0 { joiner } else { "" });
        joined.push_str(&str_of(&item));
    }
    Ok(joined)
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::from(Vec::<Value>::new())) } else { filters::items(value) }
}

fn int(state: &State<'_, '_>, value: &Value, default: Option<i64>) -> Value {
    filters::int(state, value).unwrap_or_else(|_| default.unwrap_or(0).into())
}

fn float(state: &State<'_, '_>, value: &Value, default: Option<f64>) -> Value {
    filters::float(state, value).unwrap_or_else(|_| default.unwrap_or(0.0).into())
}

/// True for sequences in Python's sense: strings and dictionaries are sequences too, and an undefined value is an empty
/// one.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
}
