//! Named values: options that a plugin receives, and attributes and costs that it returns.

#![expect(unsafe_code, reason = "reads the union of PJRT_NamedValue")]

use std::ffi::c_char;
use std::marker::PhantomData;

use crate::api::{array, text};
use crate::error::Error;
use crate::ffi::values::{NamedValue, NamedValueUnion, named_value_kind};

/// The value of an option, an attribute or a cost.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A text.
    String(String),
    /// An integer.
    I64(i64),
    /// A list of integers.
    I64List(Vec<i64>),
    /// A float.
    F32(f32),
    /// A boolean.
    Bool(bool),
}

impl Value {
    /// The value, if it is an integer.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::I64(value) => Some(*value),
            Self::String(_) | Self::I64List(_) | Self::F32(_) | Self::Bool(_) => None,
        }
    }

    /// The text, if it is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(value) => Some(value),
            Self::I64(_) | Self::I64List(_) | Self::F32(_) | Self::Bool(_) => None,
        }
    }
}

/// Returns the first value with this name.
pub(crate) fn find<'a>(values: &'a [(String, Value)], name: &str) -> Option<&'a Value> {
    values.iter().find(|(found, _)| found == name).map(|(_, value)| value)
}

/// Copies named values that the plugin lends. Values whose kind this crate does not know are left out.
///
/// # Errors
/// When the plugin's elements have another size than [`NamedValue`]. A newer header may add fields, and then only the
/// plugin knows where the next element starts. `function` names the C function that returned the array.
///
/// # Safety
/// `start` is null or points to `size` named values, of any version of the header, whose pointers are readable.
pub(crate) unsafe fn read_values(
    start: *const NamedValue,
    size: usize,
    function: &'static str,
) -> Result<Vec<(String, Value)>, Error> {
    let mut values = Vec::new();
    for index in 0..if start.is_null() { 0 } else { size } {
        // SAFETY: the elements before this one have the size of `NamedValue`, so this is where the element starts.
        let named = unsafe { start.add(index) };
        // SAFETY: in every version of the header, an element starts with its size.
        if unsafe { (&raw const (*named).struct_size).read() } != size_of::<NamedValue>() {
            return Err(Error::Contract { function, what: "named values of another size than those of API 0.104" });
        }
        // SAFETY: the element has all fields, and the caller promised that it is valid.
        let named = unsafe { &*named };
        // SAFETY: the caller promised that the pointers are readable.
        let name = unsafe { text(named.name, named.name_size) };
        // SAFETY: as above.
        values.extend(unsafe { read_value(named) }.map(|value| (name, value)));
    }
    Ok(values)
}

/// Copies a value. `None` if this crate does not know its kind.
///
/// # Safety
/// The pointers of `named` are readable.
unsafe fn read_value(named: &NamedValue) -> Option<Value> {
    let NamedValue { value, value_size, kind, .. } = *named;
    match kind {
        // SAFETY: the kind says which member of the union is set, and the caller promised that it is readable.
        named_value_kind::STRING => Some(Value::String(unsafe { text(value.string, value_size) })),
        // SAFETY: as above.
        named_value_kind::I64 => Some(Value::I64(unsafe { value.int })),
        // SAFETY: as above.
        named_value_kind::I64_LIST => Some(Value::I64List(unsafe { array(value.ints, value_size) }.to_vec())),
        // SAFETY: as above.
        named_value_kind::F32 => Some(Value::F32(unsafe { value.float })),
        // SAFETY: as above.
        named_value_kind::BOOL => Some(Value::Bool(unsafe { value.boolean } != 0)),
        _ => None,
    }
}

/// Options for a C function, as an array that borrows the names and values.
pub(crate) struct Options<'a> {
    values: Vec<NamedValue>,
    borrowed: PhantomData<&'a [(&'a str, Value)]>,
}

impl<'a> Options<'a> {
    /// Converts the options.
    pub(crate) fn new(options: &'a [(&'a str, Value)]) -> Self {
        Self { values: options.iter().map(|(name, value)| write_value(name, value)).collect(), borrowed: PhantomData }
    }

    /// The array, valid as long as `self`.
    pub(crate) fn as_ptr(&self) -> *const NamedValue {
        self.values.as_ptr()
    }

    /// The number of options.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }
}

/// Returns a named value that borrows `name` and `value`.
pub(crate) fn write_value(name: &str, value: &Value) -> NamedValue {
    let (kind, union, value_size) = match value {
        Value::String(text) => {
            (named_value_kind::STRING, NamedValueUnion { string: text.as_ptr().cast::<c_char>() }, text.len())
        }
        Value::I64(int) => (named_value_kind::I64, NamedValueUnion { int: *int }, 1),
        Value::I64List(ints) => (named_value_kind::I64_LIST, NamedValueUnion { ints: ints.as_ptr() }, ints.len()),
        Value::F32(float) => (named_value_kind::F32, NamedValueUnion { float: *float }, 1),
        Value::Bool(boolean) => (named_value_kind::BOOL, NamedValueUnion { boolean: u8::from(*boolean) }, 1),
    };
    NamedValue {
        struct_size: size_of::<NamedValue>(),
        extension_start: std::ptr::null(),
        name: name.as_ptr().cast::<c_char>(),
        name_size: name.len(),
        kind,
        value: union,
        value_size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_the_way_through_c() {
        let given = [
            ("text", Value::String("hé".into())),
            ("empty", Value::String(String::new())),
            ("int", Value::I64(-7)),
            ("ints", Value::I64List(vec![2, 4, 1])),
            ("none", Value::I64List(Vec::new())),
            ("float", Value::F32(0.5)),
            ("yes", Value::Bool(true)),
        ];
        let options = Options::new(&given);
        // SAFETY: `options` owns the array, and `given` owns the names and values.
        let read = unsafe { read_values(options.as_ptr(), options.len(), "f") }.expect("the size of this header");
        let expected: Vec<(String, Value)> = given.iter().map(|(n, v)| (n.to_string(), v.clone())).collect();
        assert_eq!(read, expected);
        assert_eq!(find(&read, "int").and_then(Value::as_i64), Some(-7));
        assert_eq!(find(&read, "text").and_then(Value::as_str), Some("hé"));
        assert_eq!(find(&read, "missing"), None);
    }

    #[test]
    fn a_kind_of_a_newer_header_is_left_out() {
        let mut value = write_value("new", &Value::I64(1));
        value.kind = 99;
        // SAFETY: the array is the local variable `value`, whose name is static.
        assert!(unsafe { read_values(&raw const value, 1, "f") }.is_ok_and(|values| values.is_empty()));
    }

    #[test]
    fn elements_of_a_newer_header_are_an_error() {
        // Two elements that are one word longer than ours.
        let mut words = [0_usize; 16];
        for first in [0, 8] {
            words[first] = 64;
        }
        // SAFETY: every element starts with its size, and its other words are zero.
        let error = unsafe { read_values(words.as_ptr().cast(), 2, "PJRT_X") }.expect_err("another size");
        let expected = "PJRT_X: the plugin returned named values of another size than those of API 0.104";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn any_byte_but_zero_is_true() {
        let mut value = write_value("flag", &Value::Bool(true));
        for (byte, expected) in [(0, false), (1, true), (2, true), (255, true)] {
            value.value = NamedValueUnion { boolean: byte };
            // SAFETY: the array is the local variable `value`, whose name is static.
            let read = unsafe { read_values(&raw const value, 1, "f") }.expect("the size of this header");
            assert_eq!(read, [("flag".to_owned(), Value::Bool(expected))]);
        }
    }
}
