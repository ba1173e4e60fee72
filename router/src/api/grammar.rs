//! Structured output in requests: an object with a `type`, as in TGI's `grammar` and the `response_format` of other
//! APIs.
//!
//! | form | API |
//! |---|---|
//! | `{"type": "text"}` | OpenAI |
//! | `{"type": "json_object"}` | OpenAI |
//! | `{"type": "json_schema", "json_schema": {"name", "schema", "strict"}}` | OpenAI |
//! | `{"type": "json_schema", "schema": …}`, `{"type": "json_object", "schema": …}` | llama.cpp |
//! | `{"type": "json" or "json_object", "value": schema, or a string with one}` | TGI |
//! | `{"type": "json_schema", "value": {"name", "schema"}}` | TGI |
//! | `{"type": "regex", "value": …}` | TGI |
//! | `{"type": "choice", "value": […]}`, `{"type": "lark", "value": …}` | this server |

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::grammar::Grammar;

/// The fields of all forms together.
#[derive(Debug, Deserialize)]
struct Tagged {
    r#type: String,
    value: Option<Value>,
    schema: Option<Value>,
    json_schema: Option<Value>,
}

/// Reads an object in one of the module's forms. `null` and the type `text` mean no grammar.
///
/// # Errors
/// When the type is unknown, or a field that the type needs is missing or malformed.
pub(super) fn tagged<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Grammar>, D::Error> {
    let tagged = Option::<Tagged>::deserialize(deserializer)?;
    tagged.map_or(Ok(None), Tagged::into_grammar).map_err(D::Error::custom)
}

impl Tagged {
    fn into_grammar(self) -> Result<Option<Grammar>, String> {
        let Self { r#type, value, schema, json_schema } = self;
        let grammar = match r#type.as_str() {
            "text" => return Ok(None),
            "json_object" => match value.or(schema) {
                Some(value) => schema_or_text(value)?,
                None => Grammar::JsonObject,
            },
            "json" => schema_or_text(value.or(schema).ok_or("`value` must be a JSON schema")?)?,
            "json_schema" => {
                let nested = json_schema.or(value).and_then(|mut object| object.get_mut("schema").map(Value::take));
                schema_or_text(nested.or(schema).ok_or("`json_schema.schema` must be a JSON schema")?)?
            }
            "regex" => Grammar::Regex(text(value)?),
            "lark" => Grammar::Lark(text(value)?),
            "choice" => Grammar::Choice(choice(value.unwrap_or_default())?),
            other => {
                return Err(format!(
                    "`type` {other:?} is not supported; allowed are \"text\", \"json_object\", \"json_schema\", \"json\", \
                     \"regex\", \"choice\" and \"lark\""
                ));
            }
        };
        Ok(Some(grammar))
    }
}

/// Reads a JSON schema, which may also be given as a string of JSON.
///
/// # Errors
/// When the string is not JSON, or the schema is neither an object nor a boolean.
pub(super) fn schema_or_text(value: Value) -> Result<Grammar, String> {
    let schema = match value {
        Value::String(text) => {
            serde_json::from_str(&text).map_err(|error| format!("the string is not a JSON schema: {error}"))?
        }
        other => other,
    };
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Grammar::JsonSchema(schema)),
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(format!("a JSON schema must be an object, true or false. Given: {schema}"))
        }
    }
}

/// Reads the allowed texts of a grammar of type `choice`.
///
/// # Errors
/// When the value is not a list of strings.
pub(super) fn choice(value: Value) -> Result<Vec<String>, String> {
    serde_json::from_value(value).map_err(|_| "a choice must be a list of strings".to_owned())
}

fn text(value: Option<Value>) -> Result<String, String> {
    match value {
        Some(Value::String(text)) => Ok(text),
        _ => Err("`value` must be a string".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Body {
        #[serde(default, deserialize_with = "tagged")]
        format: Option<Grammar>,
    }

    fn parse(format: &Value) -> Result<Option<Grammar>, String> {
        let body = serde_json::from_value::<Body>(json!({ "format": format }));
        body.map(|body| body.format).map_err(|error| error.to_string())
    }

    #[test]
    fn every_form_is_read() {
        let schema = json!({"type": "integer"});
        let wanted = Some(Grammar::JsonSchema(schema.clone()));
        for form in [
            json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": true}}),
            json!({"type": "json_schema", "schema": schema}),
            json!({"type": "json_object", "schema": schema}),
            json!({"type": "json", "value": schema}),
            json!({"type": "json", "value": schema.to_string()}),
            json!({"type": "json_object", "value": schema}),
            json!({"type": "json_schema", "value": {"name": "n", "schema": schema}}),
        ] {
            assert_eq!(parse(&form), Ok(wanted.clone()), "{form}");
        }
        assert_eq!(parse(&json!({"type": "json_object"})), Ok(Some(Grammar::JsonObject)));
        assert_eq!(parse(&json!({"type": "regex", "value": "a+"})), Ok(Some(Grammar::Regex("a+".into()))));
        assert_eq!(parse(&json!({"type": "choice", "value": ["a"]})), Ok(Some(Grammar::Choice(vec!["a".into()]))));
        for none in [json!({"type": "text"}), Value::Null] {
            assert_eq!(parse(&none), Ok(None));
        }
        assert_eq!(serde_json::from_str::<Body>("{}").unwrap().format, None);
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (form, expected) in [
            (json!({"type": "yaml"}), "`type` \"yaml\" is not supported"),
            (json!({"type": "json_schema"}), "`json_schema.schema` must be a JSON schema"),
            (json!({"type": "json"}), "`value` must be a JSON schema"),
            (json!({"type": "json", "value": 7}), "a JSON schema must be an object, true or false. Given: 7"),
            (json!({"type": "json", "value": "{"}), "the string is not a JSON schema: EOF while parsing"),
            (json!({"type": "regex", "value": ["a"]}), "`value` must be a string"),
            (json!({"type": "choice", "value": "a"}), "a choice must be a list of strings"),
            (json!({}), "missing field `type`"),
        ] {
            let error = parse(&form).unwrap_err();
            assert!(error.starts_with(expected), "{form}: {error}");
        }
    }
}
