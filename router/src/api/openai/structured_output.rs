//! The fields of OpenAI's routes that constrain the answer: `response_format`, and equivalent fields of vLLM, llama.cpp
//! and TGI. A body may use only one of them.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::grammar::{choice, schema_or_text, tagged};
use crate::api::schemas;
use crate::error::ApiError;
use crate::grammar::Grammar;

/// The fields that constrain the answer. A request may use only one of them.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct StructuredOutput {
    /// OpenAI's field, which also takes the forms of other servers.
    #[serde(default, deserialize_with = "tagged")]
    #[schema(schema_with = schemas::grammar)]
    response_format: Option<Grammar>,
    /// vLLM's constraint on the answer.
    structured_outputs: Option<Constraint>,
    guided_json: Option<Value>,
    guided_regex: Option<String>,
    guided_choice: Option<Value>,
    guided_grammar: Option<String>,
    /// llama.cpp's name for a JSON schema of the answer.
    json_schema: Option<Value>,
    /// TGI's field.
    #[serde(default, deserialize_with = "tagged")]
    #[schema(schema_with = schemas::grammar)]
    grammar: Option<Grammar>,
}

/// vLLM's form of a constraint on the answer.
#[derive(Debug, Deserialize, ToSchema)]
struct Constraint {
    json: Option<Value>,
    regex: Option<String>,
    choice: Option<Value>,
    grammar: Option<String>,
    json_object: Option<bool>,
}

impl StructuredOutput {
    /// Returns the constraint with the name of its field, if there is one.
    ///
    /// # Errors
    /// When the body has several constraints, or a malformed one.
    pub(super) fn into_grammar(self) -> Result<Option<(&'static str, Grammar)>, ApiError> {
        let Self {
            response_format,
            structured_outputs,
            guided_json,
            guided_regex,
            guided_choice,
            guided_grammar,
            json_schema,
            grammar,
        } = self;
        let mut found = vec![("response_format", response_format.map(Ok)), ("grammar", grammar.map(Ok))];
        found.extend([
            ("guided_json", guided_json.map(schema_or_text)),
            ("json_schema", json_schema.map(schema_or_text)),
        ]);
        found.extend([("guided_regex", guided_regex.map(|regex| Ok(Grammar::Regex(regex))))]);
        found.extend([("guided_choice", guided_choice.map(|value| choice(value).map(Grammar::Choice)))]);
        found.extend([("guided_grammar", guided_grammar.map(|grammar| Ok(Grammar::Lark(grammar))))]);
        if let Some(Constraint { json, regex, choice: texts, grammar, json_object }) = structured_outputs {
            found.extend([("structured_outputs.json", json.map(schema_or_text))]);
            found.extend([("structured_outputs.regex", regex.map(|regex| Ok(Grammar::Regex(regex))))]);
            found.extend([("structured_outputs.choice", texts.map(|value| choice(value).map(Grammar::Choice)))]);
            found.extend([("structured_outputs.grammar", grammar.map(|grammar| Ok(Grammar::Lark(grammar))))]);
            let is_any_object = json_object == Some(true);
            found.extend([("structured_outputs.json_object", is_any_object.then_some(Ok(Grammar::JsonObject)))]);
        }
        let mut asked = found.into_iter().filter_map(|(field, grammar)| grammar.map(|grammar| (field, grammar)));
        let Some((field, grammar)) = asked.next() else { return Ok(None) };
        if let Some((other, _)) = asked.next() {
            return Err(ApiError::BodyShape(format!("{other}: cannot be given together with {field}")));
        }
        let named = grammar.map(|grammar| Some((field, grammar)));
        named.map_err(|sentence| ApiError::BodyShape(format!("{field}: {sentence}")))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(body: &Value) -> Result<Option<Grammar>, String> {
        let output = serde_json::from_value::<StructuredOutput>(body.clone()).map_err(|error| error.to_string())?;
        let grammar = output.into_grammar().map_err(|error| error.to_string())?;
        Ok(grammar.map(|(_, grammar)| grammar))
    }

    #[test]
    fn every_dialect_is_read() {
        let schema = json!({"type": "integer"});
        let (json, regex) = (Grammar::JsonSchema(schema.clone()), Grammar::Regex("a".into()));
        let (lark, choice) = (Grammar::Lark("start: \"a\"".into()), Grammar::Choice(vec!["a".into(), "b".into()]));
        for (body, expected) in [
            (json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}), &json),
            (json!({"guided_json": schema}), &json),
            (json!({"guided_json": schema.to_string()}), &json),
            (json!({"structured_outputs": {"json": schema}}), &json),
            (json!({"json_schema": schema}), &json),
            (json!({"grammar": {"type": "json", "value": schema}}), &json),
            (json!({"guided_regex": "a"}), &regex),
            (json!({"structured_outputs": {"regex": "a"}}), &regex),
            (json!({"guided_choice": ["a", "b"]}), &choice),
            (json!({"structured_outputs": {"choice": ["a", "b"]}}), &choice),
            (json!({"guided_grammar": "start: \"a\""}), &lark),
            (json!({"structured_outputs": {"grammar": "start: \"a\""}}), &lark),
            (json!({"structured_outputs": {"json_object": true}}), &Grammar::JsonObject),
            (json!({"response_format": {"type": "json_object"}, "guided_json": null}), &Grammar::JsonObject),
        ] {
            assert_eq!(parse(&body), Ok(Some(expected.clone())), "{body}");
        }
        for body in [json!({}), json!({"response_format": {"type": "text"}}), json!({"structured_outputs": {}})] {
            assert_eq!(parse(&body), Ok(None), "{body}");
        }
    }

    #[test]
    fn two_of_them_are_one_too_many() {
        let body = json!({"response_format": {"type": "json_object"}, "guided_regex": "a"});
        let error = parse(&body).unwrap_err();
        assert!(error.ends_with("guided_regex: cannot be given together with response_format"), "{error}");
        let error = parse(&json!({"guided_choice": [1]})).unwrap_err();
        assert!(error.ends_with("guided_choice: a choice must be a list of strings"), "{error}");
    }
}
