//! Environment variables of this process, read once and then passed around as a value.

use std::collections::BTreeMap;
use std::fmt;

/// Variables that are set, with their values. Some values are secrets, so `Debug` prints only the names.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Environment(pub(crate) BTreeMap<&'static str, String>);

impl Environment {
    /// Reads the variables with these names from the environment of this process.
    pub(crate) fn read(names: impl Iterator<Item = &'static str>) -> Self {
        let value = |name| Some((name, std::env::var_os(name)?.to_string_lossy().into_owned()));
        Self(names.filter_map(value).collect())
    }

    /// The value of a variable. A variable with an empty value counts as not set.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
