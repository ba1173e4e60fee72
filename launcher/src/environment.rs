//! The variables of this process, read once and then passed as a value.

use std::collections::BTreeMap;
use std::fmt;

/// The values of some variables. Some are secrets, so values are never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Environment(pub(crate) BTreeMap<&'static str, String>);

impl Environment {
    /// Reads the variables of these names.
    pub(crate) fn read(names: impl Iterator<Item = &'static str>) -> Self {
        let value = |name| Some((name, std::env::var_os(name)?.to_string_lossy().into_owned()));
        Self(names.filter_map(value).collect())
    }

    /// The value of a variable. An empty one counts as not set.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
