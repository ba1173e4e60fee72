//! Parses the page `/metrics`. Only the values can be looked up.

use std::collections::BTreeMap;

/// The values of metrics, by name and labels as written on the page, such as `tgi_request_failure{err="overloaded"}`.
#[derive(Debug)]
pub struct Metrics {
    values: BTreeMap<String, f64>,
}

impl Metrics {
    /// Parses a page.
    ///
    /// # Panics
    /// When `page` is not a page of metrics.
    pub fn parse(page: &str) -> Self {
        let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let values = lines.map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no metric: {line:?}"));
            (name.to_owned(), value.parse().unwrap_or_else(|error| panic!("{error}: {line:?}")))
        });
        Self { values: values.collect() }
    }

    /// The value of the metric with this name and these labels, or of the only one with this name and any labels.
    ///
    /// # Panics
    /// When the page has no such metric, or several.
    pub fn value(&self, name: &str) -> f64 {
        if let Some(value) = self.values.get(name) {
            return *value;
        }
        let is_it = |key: &&String| key.strip_prefix(name).is_some_and(|labels| labels.starts_with('{'));
        let found: Vec<&String> = self.values.keys().filter(is_it).collect();
        let [key] = found.as_slice() else { panic!("no metric {name}, or several, among {:?}", self.values.keys()) };
        self.values[*key]
    }
}
