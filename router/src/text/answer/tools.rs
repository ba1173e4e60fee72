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
    /// schema lacks the parameter, if `type` allows a string, or if there is no `type` and all values of `enum` are
    /// strings. Otherwise, and for `null` if there are several types, the text is read as JSON or as a Python constant;
    /// a text that is neither is a string too.
    pub(super) fn value(&self, parameter: &str, text: &str) -> Json {
        let schema = self.parameters.get("properties").and_then(|properties| properties.get(parameter));
        let is_text = schema.is_none_or(|schema| match schema.get("type") {
            Some(Json::String(kind)) => kind == "string",
            Some(Json::Array(kinds)) => kinds.contains(&Json::from("string")) && text != "null",
            _ => schema.get("enum").and_then(Json::as_array).is_some_and(|values| values.iter().all(Json::is_string)),
        });
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
