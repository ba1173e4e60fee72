//! The tools of a request.

use serde_json::Value as Json;

/// Functions that the model may call.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tools(Vec<Tool>);

/// One function.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tool {
    pub(super) name: String,
    /// The JSON schema of the arguments, or null.
    pub(super) parameters: Json,
}

impl Tools {
    /// Reads functions in OpenAI's form; other tools are skipped.
    pub(crate) fn new(tools: &[Json]) -> Self {
        let tool = |tool: &Json| {
            let function = tool.get("function")?;
            let name = function.get("name")?.as_str().filter(|name| !name.is_empty())?;
            Some(Tool { name: name.to_owned(), parameters: function.get("parameters").cloned().unwrap_or_default() })
        };
        Self(tools.iter().filter_map(tool).collect())
    }

    pub(super) fn each(&self) -> impl Iterator<Item = &Tool> {
        self.0.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn find(&self, name: &str) -> Option<&Tool> {
        self.each().find(|tool| tool.name == name)
    }
}

impl Tool {
    /// Returns the value of a parameter that the model wrote as `text`, without quotes. The value is a string if the
    /// schema lacks the parameter, if `type` or one of the schemas in `anyOf` or `oneOf` allows a string, or if there
    /// is no `type` and all values of `enum` are strings. Otherwise, and for `null` if there are several types, the
    /// text is read as JSON or as a Python constant; a text that is neither is a string too.
    pub(super) fn value(&self, parameter: &str, text: &str) -> Json {
        let schema = self.parameters.get("properties").and_then(|properties| properties.get(parameter));
        let is_text = schema.is_none_or(|schema| allows_text(schema, text));
        let text_of = || Json::from(text);
        if is_text {
            return text_of();
        }
        match text.trim() {
            "True" => Json::Bool(true),
            "False" => Json::Bool(false),
            "None" => Json::Null,
            text => serde_json::from_str(text).unwrap_or_else(|_| text_of()),
        }
    }
}

/// True if a schema allows the text as a string.
fn allows_text(schema: &Json, text: &str) -> bool {
    match schema.get("type") {
        Some(Json::String(kind)) => return kind == "string",
        Some(Json::Array(kinds)) => return kinds.contains(&Json::from("string")) && text != "null",
        _ => {}
    }
    let list = |keyword: &str| schema.get(keyword).and_then(Json::as_array);
    if let Some(schemas) = list("anyOf").or_else(|| list("oneOf")) {
        return text != "null" && schemas.iter().any(|schema| allows_text(schema, text));
    }
    list("enum").is_some_and(|values| values.iter().all(Json::is_string))
}
