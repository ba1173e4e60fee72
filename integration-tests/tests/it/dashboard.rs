//! Checks that the Grafana dashboard of compose.yaml queries only metrics that the server has.

use std::collections::BTreeSet;
use std::path::Path;

use integration_tests::Server;
use serde_json::Value;

/// Keywords of PromQL, which look like names of metrics.
const KEYWORDS: [&str; 4] = ["by", "without", "and", "or"];

/// Returns all queries of the dashboard.
fn queries(dashboard: &Value) -> Vec<&str> {
    match dashboard {
        Value::Object(fields) => {
            let own = fields.get("expr").and_then(Value::as_str);
            own.into_iter().chain(fields.values().flat_map(queries)).collect()
        }
        Value::Array(items) => items.iter().flat_map(queries).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

/// Returns the query without the text between each `open` and the next `close`. These pairs must not be nested.
fn without(query: &str, open: &str, close: char) -> String {
    let mut parts = query.split(open);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(close).map_or("", |(_, rest)| rest))
}

/// Returns the names of the metrics in a query: all words except functions, labels, keywords and numbers.
fn metrics(query: &str) -> Vec<String> {
    let query = [("by (", ')'), ("{", '}'), ("[", ']')]
        .iter()
        .fold(query.to_owned(), |query, (open, close)| without(&query, open, *close));
    let is_in_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let mut names = Vec::new();
    let mut rest = query.as_str();
    while let Some(start) = rest.find(is_in_name) {
        let word = &rest[start..];
        let end = word.find(|letter| !is_in_name(letter)).unwrap_or(word.len());
        let (name, after) = word.split_at(end);
        let is_function = after.trim_start().starts_with('(');
        if !is_function && !KEYWORDS.contains(&name) && !name.starts_with(|letter: char| letter.is_ascii_digit()) {
            names.push(name.to_owned());
        }
        rest = after;
    }
    names
}

#[test]
fn metrics_are_found_in_queries() {
    for (query, expected) in [
        ("tgi_queue_size", vec!["tgi_queue_size"]),
        (
            "histogram_quantile(0.95, sum by (le, method) (rate(tgi_a_bucket{method=\"decode\"}[$__rate_interval])))",
            vec!["tgi_a_bucket"],
        ),
        ("sum(rate(vllm:hits[1m])) / (hilo_a + hilo_b)", vec!["vllm:hits", "hilo_a", "hilo_b"]),
    ] {
        assert_eq!(metrics(query), expected, "{query}");
    }
}

#[test]
fn the_dashboard_asks_only_for_metrics_that_are_there() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docker/grafana/dashboard.json");
    let dashboard: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let wanted: BTreeSet<String> = queries(&dashboard).into_iter().flat_map(metrics).collect();
    assert!(wanted.len() > 10, "{wanted:?}");

    let server = Server::mock().start();
    // Histograms appear on the page with their first sample.
    server.client().generate("Once", 8);
    let page = server.client().get("/metrics").text;
    let names: BTreeSet<&str> = page.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
    let missing: Vec<&String> = wanted.iter().filter(|name| !names.contains(name.as_str())).collect();
    assert_eq!(missing, Vec::<&String>::new(), "{names:?}");
}
