//! Finds grammars whose compilation may take any amount of time or memory. They are first tried in a child process
//! (`trial`).
//!
//! Entry point: [`needs_trial`], which looks only at the client's text, before `llguidance` sees it. The derivative of
//! an intersection has a term for each combination of its parts' terms, and `llguidance` computes it in one step that
//! nothing can interrupt. So this module looks for everything that becomes an intersection or a complement, and for
//! groups that are repeated a number of times. In doubt a grammar needs a trial: a trial costs milliseconds.

use serde_json::{Map, Value};

use super::{Grammar, terminals};

/// Keywords of which an object is described by other schemas too.
const REFERENCES: [&str; 4] = ["allOf", "anyOf", "oneOf", "$ref"];

/// Keywords that constrain a value by themselves.
const ASSERTIONS: [&str; 21] = [
    "additionalProperties",
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "prefixItems",
    "properties",
    "required",
    "type",
];

/// Keywords that make a regular expression of a value's text.
const TEXTS: [&str; 4] = ["const", "enum", "format", "pattern"];

/// The name before a JSON schema in a Lark grammar.
const JSON_IN_LARK: &str = "%json";

/// The parts of a schema that need a trial only together.
#[derive(Debug, Default)]
struct Found {
    /// True if several schemas describe one value.
    merges: bool,
    /// True if a text must match an expression.
    has_texts: bool,
    /// True if the schema needs a trial, whatever else it has.
    is_risky: bool,
}

/// True if the grammar must be tried in a child process before this process compiles it.
pub(super) fn needs_trial(grammar: &Grammar) -> bool {
    match grammar {
        Grammar::JsonObject | Grammar::Choice(_) => false,
        Grammar::JsonSchema(schema) => is_schema_risky(schema),
        Grammar::Regex(regex) => repeats_groups(regex),
        Grammar::Lark(lark) => is_lark_risky(lark),
        Grammar::Within { lark, answer } => is_lark_risky(lark) || needs_trial(answer),
    }
}

fn is_schema_risky(schema: &Value) -> bool {
    let mut found = Found::default();
    find(schema, &mut found);
    found.is_risky || (found.merges && found.has_texts)
}

/// Searches a schema at all levels. Values that only look like schemas, such as those of `const`, are searched too:
/// they can only cause an unnecessary trial.
fn find(schema: &Value, found: &mut Found) {
    match schema {
        Value::Object(keywords) => {
            find_in_keywords(keywords, found);
            keywords.values().for_each(|value| find(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| find(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn find_in_keywords(keywords: &Map<String, Value>, found: &mut Found) {
    let has = |keyword: &str| keywords.contains_key(keyword);
    let text = |keyword: &str| keywords.get(keyword).and_then(Value::as_str);
    let num_references = REFERENCES.iter().filter(|keyword| has(keyword)).count();
    let has_assertions = ASSERTIONS.iter().any(|keyword| has(keyword));
    let num_parts_of_all = keywords.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    found.merges |= num_parts_of_all > 1 || num_references + usize::from(has_assertions) > 1;
    found.has_texts |= TEXTS.iter().any(|keyword| has(keyword));
    let num_expressions = [text("pattern"), text("format")].into_iter().flatten().count();
    let has_length = has("minLength") || has("maxLength");
    let has_patterns = keywords.get("patternProperties").and_then(Value::as_object).is_some_and(|all| !all.is_empty());
    let expressions = [text("pattern"), text("whitespace_pattern")].into_iter().flatten();
    found.is_risky |= num_expressions + usize::from(has_length) > 1 && num_expressions > 0;
    found.is_risky |= has_patterns || expressions.into_iter().any(repeats_groups);
}

fn is_lark_risky(lark: &str) -> bool {
    let mut rest = lark;
    let mut without_schemas = String::with_capacity(lark.len());
    while let Some((before, after)) = rest.split_once(JSON_IN_LARK) {
        let mut schemas = serde_json::Deserializer::from_str(after).into_iter::<Value>();
        let Some(Ok(schema)) = schemas.next() else { return true };
        if is_schema_risky(&schema) {
            return true;
        }
        without_schemas.push_str(before);
        rest = &after[schemas.byte_offset()..];
    }
    without_schemas.push_str(rest);
    terminals::are_intersected_or_counted(&without_schemas)
}

/// True if an expression of the crate `regex` repeats a group, or a repetition, a number of times.
pub(super) fn repeats_groups(regex: &str) -> bool {
    let (mut is_escaped, mut class_depth, mut previous) = (false, 0_usize, ' ');
    for character in regex.chars() {
        let is_plain = std::mem::take(&mut is_escaped);
        match character {
            _ if is_plain => previous = ' ',
            '\\' => (is_escaped, previous) = (true, ' '),
            '[' => (class_depth, previous) = (class_depth + 1, ' '),
            ']' => (class_depth, previous) = (class_depth.saturating_sub(1), ' '),
            '{' if class_depth == 0 && matches!(previous, ')' | '}') => return true,
            _ if class_depth > 0 || character.is_whitespace() => {}
            other => previous = other,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ordinary_schemas_need_no_trial() {
        let address = json!({"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}});
        for schema in [
            json!(true),
            json!({"type": "string", "maxLength": 10}),
            json!({"type": "string", "format": "email"}),
            json!({"type": "number", "multipleOf": 0.01, "minimum": 0}),
            json!({"type": "object", "properties": {
                "pattern": {"type": "string", "minLength": 1}, "kind": {"enum": ["a", "b"]},
            }, "required": ["kind"], "additionalProperties": {"type": "string"}}),
            json!({"anyOf": [{"type": "string", "pattern": "a+"}, {"type": "null"}], "default": null, "title": "A"}),
            json!({"$defs": {"address": address}, "properties": {"home": {"allOf": [{"$ref": "#/$defs/address"}],
                "description": "where"}, "work": {"$ref": "#/$defs/address", "title": "Work"}}}),
            // Objects are merged member by member, and no member is a text with an expression.
            json!({"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "string"}}}]}),
        ] {
            assert!(!needs_trial(&Grammar::JsonSchema(schema.clone())), "{schema}");
        }
    }

    #[test]
    fn intersections_need_a_trial() {
        for schema in [
            json!({"allOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}]}),
            json!({"items": {"pattern": "a", "$ref": "#/$defs/b"}, "$defs": {"b": {"pattern": "b"}}}),
            json!({"properties": {"a": {"type": "string", "pattern": "a", "maxLength": 9}}}),
            json!({"type": "string", "format": "email", "pattern": "a"}),
            json!({"type": "string", "format": "date", "minLength": 9}),
            json!({"patternProperties": {"^a": {}, "^b": {}}}),
            json!({"type": "string", "enum": ["a", "b"], "anyOf": [{"pattern": "a"}, {"pattern": "b"}]}),
            json!({"allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}),
            json!({"pattern": "(a{1,5}){1,5}"}),
            json!({"type": "object", "x-guidance": {"whitespace_pattern": "( {1,5}){1,5}"}}),
        ] {
            assert!(needs_trial(&Grammar::JsonSchema(schema.clone())), "{schema}");
            let lark = Grammar::Lark(format!("start: \"a\" b\nb: %json {schema}\n"));
            assert!(needs_trial(&lark), "{schema}");
            let within = Grammar::JsonSchema(schema).within("start: @answer".to_owned());
            assert!(needs_trial(&within), "{within:?}");
        }
    }

    #[test]
    fn repeated_groups_are_found() {
        for regex in ["(ab){2}", "(a|b){1,500}", "a{1,500}{1,500}", "(?x) (a) {3}", "[é(](b){2,}", r"(\(){2}"] {
            assert!(needs_trial(&Grammar::Regex(regex.to_owned())), "{regex}");
        }
        for regex in ["[a-z]{1,500}", r"\){2}", "[)]{2}", r"[\])]{3}", "(a{2})*(b)+", "é{2}", ""] {
            assert!(!needs_trial(&Grammar::Regex(regex.to_owned())), "{regex}");
        }
    }

    #[test]
    fn lark_is_searched_outside_of_its_texts() {
        for lark in [
            "start: A\nA: /a/ & /b/",
            "start: A\nA: ~\"a\"",
            "start: A\nA: (\"a\" | \"b\"){3}",
            "start: A\nA: B{3}\nB: /a/",
            "start: /(a{1,9}){1,9}/",
            "start: %json {",
        ] {
            assert!(needs_trial(&Grammar::Lark(lark.to_owned())), "{lark}");
        }
        for lark in [
            "start: \"a & ~b\" // & ~\n  | /[&~]{3}/ # &",
            "start: (a \"é\"){0,15}\na: \"x\"{3}",
            "start: \"a\" b\nb: %json {\"type\": \"object\", \"properties\": {\"x\": {\"pattern\": \"&~\"}}}\nc: \"(\"",
            "start: t\nt[suffix=\"&\"]: /(?s:.*)/",
            "",
        ] {
            assert!(!needs_trial(&Grammar::Lark(lark.to_owned())), "{lark}");
        }
    }
}
