//! Checks the types of the values in a JSON schema, because `llguidance` panics when it quotes some wrong values.
//!
//! Entry point: [`check`]. To check a keyword, add a row to [`TABLE`]. Keywords that are not in the table are left to
//! `llguidance`, which refuses those that it cannot enforce.

use serde_json::{Map, Value};

/// The maximum number of characters of a wrong value that an error shows.
const MAX_SHOWN: usize = 40;

/// The type of a keyword's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Number,
    /// A number, or a boolean as in draft 4.
    Bound,
    /// An integer that is not negative.
    Count,
    Text,
    /// A text or a list of texts.
    Types,
    Texts,
    List,
    Schema,
    /// A schema, or a list of schemas as in drafts before 2020-12.
    Items,
    Schemas,
    /// An object with a schema for each name.
    Named,
}

/// The keywords whose values are checked.
const TABLE: [(&str, Kind); 31] = [
    ("$defs", Kind::Named),
    ("$ref", Kind::Text),
    ("additionalItems", Kind::Schema),
    ("additionalProperties", Kind::Schema),
    ("allOf", Kind::Schemas),
    ("anyOf", Kind::Schemas),
    ("definitions", Kind::Named),
    ("enum", Kind::List),
    ("exclusiveMaximum", Kind::Bound),
    ("exclusiveMinimum", Kind::Bound),
    ("format", Kind::Text),
    ("items", Kind::Items),
    ("maxItems", Kind::Count),
    ("maxLength", Kind::Count),
    ("maxProperties", Kind::Count),
    ("maximum", Kind::Number),
    ("minItems", Kind::Count),
    ("minLength", Kind::Count),
    ("minProperties", Kind::Count),
    ("minimum", Kind::Number),
    ("multipleOf", Kind::Number),
    ("not", Kind::Schema),
    ("oneOf", Kind::Schemas),
    ("pattern", Kind::Text),
    ("patternProperties", Kind::Named),
    ("prefixItems", Kind::Schemas),
    ("properties", Kind::Named),
    ("propertyNames", Kind::Schema),
    ("required", Kind::Texts),
    ("type", Kind::Types),
    ("unevaluatedProperties", Kind::Schema),
];

/// Checks the values of keywords at all levels of a schema.
///
/// # Errors
/// When a value has a wrong type. The message names the keyword, its place, the allowed type and the value.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    check_schema(schema, "#")
}

fn check_schema(schema: &Value, place: &str) -> Result<(), String> {
    match schema {
        Value::Object(keywords) => check_keywords(keywords, place),
        Value::Bool(_) => Ok(()),
        other => Err(format!("the schema at {place} must be an object, true or false. Given: {}", shown(other))),
    }
}

fn check_keywords(keywords: &Map<String, Value>, place: &str) -> Result<(), String> {
    for (keyword, value) in keywords {
        let Some((_, kind)) = TABLE.iter().find(|(name, _)| name == keyword) else { continue };
        if !kind.fits(value) {
            return Err(format!("its `{keyword}` at {place} must be {}. Given: {}", kind.words(), shown(value)));
        }
        let place = format!("{place}/{keyword}");
        match (kind, value) {
            (Kind::Named, Value::Object(schemas)) => {
                schemas.iter().try_for_each(|(name, schema)| check_schema(schema, &below(&place, name)))?;
            }
            (Kind::Schemas | Kind::Items, Value::Array(schemas)) => {
                let mut numbered = schemas.iter().enumerate();
                numbered.try_for_each(|(index, schema)| check_schema(schema, &format!("{place}/{index}")))?;
            }
            (Kind::Schema | Kind::Items, schema) => check_schema(schema, &place)?,
            _ => {}
        }
    }
    Ok(())
}

/// Returns the place of a member with this name, shortened if the name is long.
fn below(place: &str, name: &str) -> String {
    let name: String = name.chars().take(MAX_SHOWN).collect();
    format!("{place}/{name}")
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl Kind {
    fn fits(self, value: &Value) -> bool {
        let all_texts = || value.as_array().is_some_and(|values| values.iter().all(Value::is_string));
        match self {
            Self::Number => value.is_number(),
            Self::Bound => value.is_number() || value.is_boolean(),
            Self::Count => value.is_u64(),
            Self::Text => value.is_string(),
            Self::Types => value.is_string() || all_texts(),
            Self::Texts => all_texts(),
            Self::List | Self::Schemas => value.is_array(),
            Self::Schema => value.is_object() || value.is_boolean(),
            Self::Items => value.is_object() || value.is_boolean() || value.is_array(),
            Self::Named => value.is_object(),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::Bound => "a number, true or false",
            Self::Count => "an integer >= 0",
            Self::Text => "a string",
            Self::Types => "a string or a list of strings",
            Self::Texts => "a list of strings",
            Self::List => "a list",
            Self::Schema => "a schema: an object, true or false",
            Self::Items => "a schema or a list of schemas",
            Self::Schemas => "a list of schemas",
            Self::Named => "an object of schemas",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wrong_types_are_refused_with_their_place() {
        let long = "é".repeat(60);
        let start = "é".repeat(39);
        for (keyword, kind) in TABLE {
            let wrong = match kind {
                Kind::Text | Kind::Types => json!([7, long]),
                _ => json!(long),
            };
            let schema = json!({"properties": {"ä": {keyword: wrong}}});
            let error = check(&schema).unwrap_err();
            let expected = format!("its `{keyword}` at #/properties/ä must be {}. Given: ", kind.words());
            assert!(error.starts_with(&expected), "{error}");
            let end = if wrong.is_string() { format!("Given: \"{start}…") } else { "é…".to_owned() };
            assert!(error.ends_with(&end), "{error}");
        }
        for (schema, expected) in [
            (json!({"required": ["a", 7]}), "its `required` at # must be a list of strings. Given: [\"a\",7]"),
            (json!({"minLength": -1}), "its `minLength` at # must be an integer >= 0. Given: -1"),
            (
                json!({"anyOf": [{}, {"maxItems": 1.5}]}),
                "its `maxItems` at #/anyOf/1 must be an integer >= 0. Given: 1.5",
            ),
            (json!({"items": [true, {"$defs": {"a": 7}}]}), "the schema at #/items/1/$defs/a must be an object"),
        ] {
            let error = check(&schema).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn values_and_names_are_not_taken_for_keywords() {
        for schema in [
            json!(false),
            json!({"const": {"minimum": "a"}, "enum": [{"type": 7}], "default": {"required": 1}}),
            json!({"properties": {"minimum": {"type": ["string", "null"]}, "items": true}, "x-own": {"pattern": 7}}),
            json!({"exclusiveMinimum": true, "minimum": 1, "items": [{}], "additionalItems": false}),
        ] {
            assert_eq!(check(&schema), Ok(()), "{schema}");
        }
    }
}
