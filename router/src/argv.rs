//! The arguments of a command line, written from values.

use std::ffi::OsString;

/// A list of flags, written as `--name=value`, so that a value may begin with a dash.
#[derive(Default)]
pub(crate) struct Argv(pub(crate) Vec<OsString>);

impl Argv {
    pub(crate) fn flag(&mut self, name: &str, value: impl std::fmt::Display) {
        self.0.push(format!("{name}={value}").into());
    }

    pub(crate) fn switch(&mut self, name: &str, is_on: bool) {
        if is_on {
            self.0.push(name.into());
        }
    }

    pub(crate) fn optional(&mut self, name: &str, value: Option<impl std::fmt::Display>) {
        if let Some(value) = value {
            self.flag(name, value);
        }
    }
}
