//! Prepares a JSON schema for `llguidance`: limits white space, and allows only dates and times that exist.

use serde_json::{Value, json};

/// The pattern of white space between the tokens of JSON. Its length is limited, so that a model cannot fill its answer
/// with white space.
const WHITESPACE: &str = "(\\n[ \\t]{0,16}|[ \\t]{1,2})";

/// Keywords whose contents are values, not schemas.
const VALUES: [&str; 4] = ["const", "default", "enum", "examples"];

const YEAR: &str = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)";
const LEAP_YEAR: &str = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)";
const DAY: &str =
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
const TIME: &str = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";

/// Returns the schema with the date patterns added, and with the white space pattern unless it has options of its own
/// for `llguidance`.
pub(super) fn prepare(mut schema: Value) -> Value {
    add_patterns(&mut schema);
    if let Value::Object(keywords) = &mut schema {
        keywords.entry("x-guidance").or_insert_with(|| json!({ "whitespace_pattern": WHITESPACE }));
    }
    schema
}

/// Replaces date and time formats by patterns, because the patterns of `llguidance` allow leap seconds at any time and
/// February 29 in every year, which validators refuse. A schema that has a `pattern` keeps its format.
fn add_patterns(schema: &mut Value) {
    match schema {
        Value::Object(keywords) => {
            let pattern = keywords.get("format").and_then(Value::as_str).and_then(pattern);
            if let Some(pattern) = pattern.filter(|_| !keywords.contains_key("pattern")) {
                keywords.remove("format");
                keywords.insert("pattern".to_owned(), Value::from(pattern));
            }
            let schemas = keywords.iter_mut().filter(|(keyword, _)| !VALUES.contains(&keyword.as_str()));
            schemas.for_each(|(_, value)| add_patterns(value));
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(add_patterns),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn pattern(format: &str) -> Option<String> {
    let date = format!("({YEAR}-{DAY}|{LEAP_YEAR}-02-29)");
    match format {
        "date" => Some(format!("^{date}$")),
        "time" => Some(format!("^{TIME}$")),
        "date-time" => Some(format!("^{date}T{TIME}$")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_schemas_get_patterns() {
        let schema = json!({
            "properties": {"format": {"type": "string", "format": "date"}, "x": {"format": "email"}},
            "anyOf": [{"format": "time", "pattern": "^1"}, {"const": {"format": "date"}}, {"format": "date-time"}],
        });
        let prepared = prepare(schema);
        assert!(prepared["properties"]["format"]["pattern"].as_str().unwrap().starts_with("^(([0-9]{3}"));
        assert_eq!(prepared["properties"]["x"], json!({"format": "email"}));
        assert_eq!(prepared["anyOf"][0], json!({"format": "time", "pattern": "^1"}));
        assert_eq!(prepared["anyOf"][1], json!({"const": {"format": "date"}}));
        assert!(prepared["anyOf"][2].get("format").is_none());
        assert_eq!(prepared["x-guidance"]["whitespace_pattern"], WHITESPACE);
        let own = json!({"x-guidance": {"whitespace_flexible": false}});
        assert_eq!(prepare(own.clone()), own);
    }
}
