//! Limits the size of grammars before compiling, because `llguidance` limits the number of its steps, but not all of
//! its work before the first step.

use serde_json::{Map, Value};

use super::{Grammar, GrammarError, keywords, terminals};

/// The maximum number of bytes in the text of a grammar, or in one string of a schema.
const MAX_TEXT_BYTES: usize = 256 << 10;

/// The maximum number of values in a schema, counted at every level.
const MAX_NODES: usize = 50_000;

/// The maximum number of properties of an object. The time to compile grows with the square of this number.
const MAX_PROPERTIES: usize = 1000;

/// The maximum number of schemas in a list such as `anyOf`.
const MAX_ALTERNATIVES: usize = 500;

/// The maximum number of ways to take one alternative from each schema in an `allOf`, because each such combination is
/// compiled separately.
const MAX_COMBINATIONS: usize = 256;

/// The maximum number of patterns for the members of an object, because each is compared with all others.
const MAX_PATTERNS: usize = 100;

/// The largest `multipleOf`, read without its decimal point, because the compiled grammar has a state for each
/// remainder. In a schema with `allOf`, this also limits the least common multiple of all values of `multipleOf`.
const MAX_MULTIPLE: u64 = 100_000;

/// The number of nodes, the values of `multipleOf` and the use of `allOf` that the check of a schema has found so far.
#[derive(Debug, Default)]
struct Counted {
    num_nodes: usize,
    multiples: Vec<f64>,
    has_all_of: bool,
}

/// The maximum size of a small grammar, in bytes or, for a schema, in nodes (values at every level). Small grammars
/// never wait for large ones.
const SMALL_BYTES: usize = 16 << 10;
const SMALL_NODES: usize = 1000;

/// True if a grammar is not small, so that it may take long to compile.
pub(super) fn is_large(grammar: &Grammar) -> bool {
    match grammar {
        Grammar::JsonObject => false,
        Grammar::JsonSchema(schema) => num_nodes(schema) > SMALL_NODES,
        Grammar::Regex(text) | Grammar::Lark(text) => text.len() > SMALL_BYTES,
        Grammar::Choice(choices) => choices.iter().map(String::len).sum::<usize>() > SMALL_BYTES,
        Grammar::Within { lark, answer } => lark.len() > SMALL_BYTES || is_large(answer),
    }
}

fn num_nodes(schema: &Value) -> usize {
    1 + match schema {
        Value::Object(members) => members.values().map(num_nodes).sum(),
        Value::Array(values) => values.iter().map(num_nodes).sum(),
        Value::String(text) => text.len() / 32,
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Checks the sizes of a grammar.
///
/// # Errors
/// When a size is too large; the message names it and the limit.
pub(super) fn check(grammar: &Grammar) -> Result<(), GrammarError> {
    let bytes = |given: usize| at_most("bytes", given, MAX_TEXT_BYTES);
    match grammar {
        Grammar::JsonObject => Ok(()),
        Grammar::JsonSchema(schema) => check_schema(schema),
        Grammar::Regex(text) => bytes(text.len()),
        Grammar::Lark(text) => bytes(text.len()).and_then(|()| terminals::check(text).map_err(GrammarError::Invalid)),
        Grammar::Choice(choices) => bytes(choices.iter().map(String::len).sum()),
        Grammar::Within { lark, answer } => bytes(lark.len()).and_then(|()| check(answer)),
    }
}

/// Checks a schema, alone or as part of a grammar.
///
/// # Errors
/// As [`check`].
pub(super) fn check_schema(schema: &Value) -> Result<(), GrammarError> {
    let mut counted = Counted::default();
    check_node(schema, &mut counted)?;
    keywords::check(schema).map_err(GrammarError::Invalid)?;
    check_multiples(&counted)
}

fn check_node(schema: &Value, counted: &mut Counted) -> Result<(), GrammarError> {
    counted.num_nodes += 1;
    at_most("values", counted.num_nodes, MAX_NODES)?;
    match schema {
        Value::Object(members) => check_keywords(members, counted),
        Value::Array(values) => values.iter().try_for_each(|value| check_node(value, counted)),
        Value::String(text) => at_most("bytes in a string", text.len(), MAX_TEXT_BYTES),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

fn check_keywords(members: &Map<String, Value>, counted: &mut Counted) -> Result<(), GrammarError> {
    for (keyword, value) in members {
        match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                at_most("properties of an object", properties.len(), MAX_PROPERTIES)?;
            }
            ("patternProperties", Value::Object(patterns)) => {
                at_most("patterns of an object's members", patterns.len(), MAX_PATTERNS)?;
            }
            ("multipleOf", Value::Number(multiple)) => counted.multiples.extend(multiple.as_f64()),
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(schemas)) => {
                at_most("alternatives", schemas.len(), MAX_ALTERNATIVES)?;
                if keyword == "allOf" {
                    counted.has_all_of = true;
                    let ways = schemas.iter().map(num_alternatives).fold(1, usize::saturating_mul);
                    at_most("combinations of alternatives", ways, MAX_COMBINATIONS)?;
                }
            }
            _ => {}
        }
        check_node(value, counted)?;
    }
    Ok(())
}

/// Checks all values of `multipleOf`. With an `allOf`, a number may have to be a multiple of several values, that is,
/// of their least common multiple.
fn check_multiples(Counted { multiples, has_all_of, .. }: &Counted) -> Result<(), GrammarError> {
    let num_decimals = |multiple: &f64| multiple.to_string().split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let most_decimals = multiples.iter().map(num_decimals).max().unwrap_or(0);
    let mut together = 1;
    for multiple in multiples {
        let num_decimals = if *has_all_of { most_decimals } else { num_decimals(multiple) };
        // A number beyond `u64` becomes `u64::MAX`, which is too large as well.
        let digits = (multiple.abs() * 10_f64.powi(i32::try_from(num_decimals).unwrap_or(i32::MAX))).round() as u64;
        let number = if *has_all_of { least_common_multiple(together, digits) } else { digits };
        if number > MAX_MULTIPLE {
            return Err(GrammarError::Invalid(format!(
                "its `multipleOf` {multiple} is too large: without the decimal point it must be <= {MAX_MULTIPLE}; \
                 with an `allOf`, this limits the least common multiple of all values, too"
            )));
        }
        together = number;
    }
    Ok(())
}

fn least_common_multiple(a: u64, b: u64) -> u64 {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor.max(1)).saturating_mul(b)
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
