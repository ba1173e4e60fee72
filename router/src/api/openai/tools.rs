//! The tools of a request, and the client's choice among them. All dialects are converted to OpenAI's form.

use std::sync::Arc;

use serde_json::Value;

use super::OpenAiSampling;
use crate::api::RequestContext;
use crate::error::ApiError;
use crate::generation::GenerationRequest;
use crate::grammar::{after_thought, calls, calls_or};
use crate::text::{AnswerForm, RenderedChat};
use crate::validation::{GenerationOptions, PromptInput, ValidationError};

/// The tool fields of a body.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToolFields {
    pub(crate) tools: Option<Vec<Value>>,
    pub(crate) tool_choice: Option<Value>,
    pub(crate) parallel_tool_calls: Option<bool>,
}

/// The tools that the model may call.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ToolUse {
    /// Functions in OpenAI's form, at least one. `None` means that the model cannot call any tool.
    pub(crate) tools: Option<Vec<Value>>,
    pub(crate) choice: ToolChoice,
    pub(crate) has_one_call: bool,
}

/// The client's choice among the tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// The model may call a tool or not.
    #[default]
    Auto,
    Required,
    /// The model must call the function of this name.
    Function(String),
}

impl ToolFields {
    /// Checks the fields and converts them.
    ///
    /// # Errors
    /// When a tool is malformed or not a function, or the choice is malformed or asks for a tool that is not in the
    /// list.
    pub(crate) fn into_use(self) -> Result<ToolUse, ApiError> {
        let tools = self.tools.unwrap_or_default();
        for (index, tool) in tools.iter().enumerate() {
            check_tool(tool).map_err(|sentence| ApiError::BodyShape(format!("tools[{index}]{sentence}")))?;
        }
        let Some(choice) = choice(self.tool_choice.as_ref())? else { return Ok(ToolUse::default()) };
        let is_known = |name: &str| tools.iter().any(|tool| tool["function"]["name"] == *name);
        match &choice {
            ToolChoice::Function(name) if !is_known(name) => {
                return Err(ApiError::BodyShape(format!("tool_choice: {name:?} is not the name of one of the tools")));
            }
            ToolChoice::Required if tools.is_empty() => {
                return Err(ApiError::BodyShape("tool_choice: \"required\" needs tools".to_owned()));
            }
            ToolChoice::Auto | ToolChoice::Required | ToolChoice::Function(_) => {}
        }
        // An empty list becomes `None`, because templates that only check whether `tools` exists would announce an
        // empty list.
        let has_one_call = self.parallel_tool_calls == Some(false);
        Ok(ToolUse { tools: Some(tools).filter(|tools| !tools.is_empty()), choice, has_one_call })
    }
}

impl ToolUse {
    /// Returns the generation request that continues a conversation.
    ///
    /// # Errors
    /// When the grammar that enforces the tool calls is too large.
    pub(crate) fn request(
        &self,
        RenderedChat { text, answer_form }: RenderedChat,
        sampling: OpenAiSampling,
        RequestContext { received_at, request_id, tenant: _ }: RequestContext,
    ) -> Result<GenerationRequest, ApiError> {
        let mut options = sampling.into_options(0, false);
        self.apply(answer_form, &mut options)?;
        Ok(GenerationRequest {
            prompt: PromptInput::Rendered(text.into()),
            options,
            num_choices: 1,
            received_at,
            request_id,
        })
    }

    /// Sets the form by which the answer is parsed, and the grammar that enforces a tool call or the format of the
    /// answer.
    ///
    /// # Errors
    /// When the grammar is too large.
    pub(crate) fn apply(&self, mut form: AnswerForm, options: &mut GenerationOptions) -> Result<(), ApiError> {
        form.has_one_call = self.has_one_call;
        if self.tools.is_some() {
            options.names.grammar = "tools";
        }
        let grammar = match (&self.choice, options.grammar.take().map(Arc::unwrap_or_clone)) {
            (ToolChoice::Auto, None) => Ok(None),
            (ToolChoice::Auto, Some(answer)) if self.tools.is_none() => Ok(Some(after_thought(&form, answer))),
            (ToolChoice::Auto, Some(answer)) => {
                let syntax = form.make_enforceable();
                calls_or(&form, syntax, answer).map(Some)
            }
            // The answer consists of calls only, so a format for other text does not apply.
            (ToolChoice::Required, _) => {
                let syntax = form.make_enforceable();
                calls(&form, syntax, None).map(Some)
            }
            (ToolChoice::Function(name), _) => {
                let syntax = form.make_enforceable();
                calls(&form, syntax, Some(name)).map(Some)
            }
        };
        let field = options.names.grammar;
        let grammar =
            grammar.map_err(|error| ApiError::Generation(ValidationError::Grammar { field, error }.into()))?;
        options.grammar = grammar.map(Arc::new);
        options.answer_form = Some(form);
        Ok(())
    }
}

/// Checks a tool. The error is text to be appended to the tool's path.
fn check_tool(tool: &Value) -> Result<(), String> {
    match tool.get("type").and_then(Value::as_str) {
        Some("function") => {}
        Some(kind) => return Err(format!(".type: {kind:?} is not supported; this server knows \"function\"")),
        None => return Err(".type: must be \"function\"".to_owned()),
    }
    let function = &tool["function"];
    if function["name"].as_str().is_none_or(str::is_empty) {
        return Err(".function.name: must be a string that is not empty".to_owned());
    }
    match &function["parameters"] {
        Value::Null | Value::Object(_) => Ok(()),
        _ => Err(".function.parameters: must be a JSON schema, an object".to_owned()),
    }
}

/// Returns the choice, or `None` if the model must not call any tool. A string that is not one of OpenAI's words is the
/// name of a function, as in TGI's API.
fn choice(choice: Option<&Value>) -> Result<Option<ToolChoice>, ApiError> {
    let named = |value: &Value| value["function"]["name"].as_str().map(|name| ToolChoice::Function(name.to_owned()));
    match choice {
        None | Some(Value::Null) => Ok(Some(ToolChoice::Auto)),
        Some(Value::String(word)) => Ok(match word.as_str() {
            "auto" => Some(ToolChoice::Auto),
            "none" => None,
            "required" => Some(ToolChoice::Required),
            name => Some(ToolChoice::Function(name.to_owned())),
        }),
        Some(value) if value["type"] == "function" => named(value).map(Some).ok_or_else(wrong_choice),
        Some(_) => Err(wrong_choice()),
    }
}

fn wrong_choice() -> ApiError {
    let sentence = "tool_choice: must be \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}";
    ApiError::BodyShape(sentence.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &Value) -> Result<ToolUse, String> {
        let tools = body["tools"].as_array().cloned();
        let parallel_tool_calls = body["parallel_tool_calls"].as_bool();
        let fields = ToolFields { tools, tool_choice: body.get("tool_choice").cloned(), parallel_tool_calls };
        fields.into_use().map_err(|error| error.to_string())
    }

    #[test]
    fn the_choice_has_many_forms() {
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        for (choice, expected) in [
            (Value::Null, ToolChoice::Auto),
            (json!("auto"), ToolChoice::Auto),
            (json!("required"), ToolChoice::Required),
            (json!("f"), ToolChoice::Function("f".to_owned())),
            (json!({"type": "function", "function": {"name": "f"}}), ToolChoice::Function("f".to_owned())),
        ] {
            let given = read(&json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false})).unwrap();
            assert_eq!((given.choice, given.has_one_call, given.tools.unwrap().len()), (expected, true, 1));
        }
        assert_eq!(read(&json!({"tools": tools, "tool_choice": "none"})), Ok(ToolUse::default()));
        assert_eq!(read(&json!({"tools": [], "tool_choice": "auto"})), Ok(ToolUse::default()));
    }

    #[test]
    fn errors_say_where() {
        let tool = |function: Value| json!([{"type": "function", "function": function}]);
        for (body, expected) in [
            (json!({"tools": [{}]}), "tools[0].type: must be \"function\""),
            (
                json!({"tools": [{"type": "web_search"}]}),
                "tools[0].type: \"web_search\" is not supported; this server knows \"function\"",
            ),
            (json!({"tools": tool(json!({}))}), "tools[0].function.name: must be a string that is not empty"),
            (
                json!({"tools": tool(json!({"name": "f", "parameters": 7}))}),
                "tools[0].function.parameters: must be a JSON schema, an object",
            ),
            (
                json!({"tools": tool(json!({"name": "f"})), "tool_choice": "g"}),
                "tool_choice: \"g\" is not the name of one of the tools",
            ),
            (json!({"tool_choice": "required"}), "tool_choice: \"required\" needs tools"),
            (json!({"tool_choice": {"type": "allowed_tools"}}), "tool_choice: must be \"auto\", \"none\""),
        ] {
            let error = read(&body).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
