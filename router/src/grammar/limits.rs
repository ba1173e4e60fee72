//! What is too large to begin with: `llguidance` counts its steps, but not all that it does before the first one.

use serde_json::{Map, Value};

use super::{Grammar, GrammarError};

/// Most bytes of a grammar that is a text.
const MAX_TEXT_BYTES: usize = 256 << 10;

/// Most keywords, names and values of a schema together.
const MAX_NODES: usize = 50_000;

/// Most properties of an object: the time goes with their square, a second for a thousand.
const MAX_PROPERTIES: usize = 1000;

/// Most schemas in a list such as `anyOf`.
const MAX_ALTERNATIVES: usize = 500;

/// Most ways to choose one alternative of each part of an `allOf`, each of which is compiled by itself.
const MAX_COMBINATIONS: usize = 256;

/// Checks what can be counted.
///
/// # Errors
/// Names what is too large, and how large it may be.
pub(super) fn check(grammar: &Grammar) -> Result<(), GrammarError> {
    let bytes = |given: usize| at_most("bytes", given, MAX_TEXT_BYTES);
    match grammar {
        Grammar::JsonObject => Ok(()),
        Grammar::JsonSchema(schema) => check_schema(schema),
        Grammar::Regex(text) | Grammar::Lark(text) => bytes(text.len()),
        Grammar::Choice(choices) => bytes(choices.iter().map(String::len).sum()),
        Grammar::Within { lark, answer } => bytes(lark.len()).and_then(|()| check(answer)),
    }
}

/// Checks a schema, be it alone or part of a grammar.
///
/// # Errors
/// As [`check`].
pub(super) fn check_schema(schema: &Value) -> Result<(), GrammarError> {
    check_node(schema, &mut 0)
}

fn check_node(schema: &Value, num_nodes: &mut usize) -> Result<(), GrammarError> {
    *num_nodes += 1;
    at_most("keywords, names and values", *num_nodes, MAX_NODES)?;
    match schema {
        Value::Object(members) => check_keywords(members, num_nodes),
        Value::Array(values) => values.iter().try_for_each(|value| check_node(value, num_nodes)),
        Value::String(text) => at_most("bytes in a string", text.len(), MAX_TEXT_BYTES),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

fn check_keywords(members: &Map<String, Value>, num_nodes: &mut usize) -> Result<(), GrammarError> {
    for (keyword, value) in members {
        match (keyword.as_str(), value) {
            ("properties" | "patternProperties", Value::Object(properties)) => {
                at_most("properties of an object", properties.len(), MAX_PROPERTIES)?;
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(schemas)) => {
                at_most("alternatives", schemas.len(), MAX_ALTERNATIVES)?;
                if keyword == "allOf" {
                    let ways = schemas.iter().map(num_alternatives).fold(1, usize::saturating_mul);
                    at_most("combinations of alternatives", ways, MAX_COMBINATIONS)?;
                }
            }
            _ => {}
        }
        check_node(value, num_nodes)?;
    }
    Ok(())
}

fn num_alternatives(schema: &Value) -> usize {
    let lists = ["anyOf", "oneOf"].iter().filter_map(|keyword| schema.get(keyword).and_then(Value::as_array));
    lists.map(|list| list.len().max(1)).fold(1, usize::saturating_mul)
}

fn at_most(what: &str, given: usize, limit: usize) -> Result<(), GrammarError> {
    if given > limit {
        return Err(GrammarError::Invalid(format!("it has {given} {what}; at most {limit} are allowed")));
    }
    Ok(())
}
