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

    /// The value of the metric with this name and these labels.
    ///
    /// # Panics
    /// When the page has no such metric.
    pub fn value(&self, name: &str) -> f64 {
        self.values.get(name).copied().unwrap_or_else(|| panic!("no metric {name} among {:?}", self.values.keys()))
    }
}
