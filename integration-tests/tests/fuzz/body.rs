//! The body of a request, to which fields are added one by one.

use serde_json::{Map, Value};

/// A JSON object.
#[derive(Debug, Default)]
pub(crate) struct Body(Map<String, Value>);

impl Body {
    /// Sets a field.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    /// Removes a field.
    pub(crate) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }
}

impl From<Body> for Value {
    fn from(body: Body) -> Self {
        Self::Object(body.0)
    }
}
