//! Random conversations, and the functions (tools) that models may call in them.

use serde_json::{Value, json};

use crate::body::Body;
use crate::draw::Draw;
use crate::grammars::Grammar;
use crate::prompts;
use crate::requests::Form;

const QUESTIONS: [&str; 4] = [
    "What is 7 + 2?",
    "Tell me a story about a dog.",
    "What is the opposite of hot?",
    "Tom has a red ball. What does Tom have?",
];
const ODD_ROLES: [&str; 5] = ["tool", "developer", "system", "nobody", ""];

/// One in this number of conversations has tools.
const REQUESTS_PER_TOOLS: u32 = 5;
/// Values of `tool_choice`; an empty one leaves the field out.
const CHOICES: [&str; 7] = ["", "", "auto", "none", "required", "weather", "weather"];

/// The form in which a dialect writes functions.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ToolForm {
    /// An object within the tool, as in `/v1/chat/completions`.
    Nested,
    /// Fields of the tool itself, as in `/v1/responses`.
    Flat,
    /// Fields with Anthropic's names, as in `/v1/messages`.
    Anthropic,
}

/// Draws messages. The last one is usually the user's.
pub(crate) fn messages(draw: &mut Draw) -> Value {
    let mut messages = Vec::new();
    if draw.one_in(6) {
        messages.push(json!({"role": "system", "content": "Be brief."}));
    }
    let count = draw.pick(&[1, 1, 1, 2, 3, 5]);
    for left in (0..count).rev() {
        let role = if left % 2 == 0 { "user" } else { "assistant" };
        let role = if draw.goes_too_far() { draw.pick(&ODD_ROLES) } else { role };
        messages.push(json!({"role": role, "content": content(draw)}));
    }
    if draw.one_in(8) {
        messages.push(json!({"role": "assistant", "content": "The answer is"}));
    }
    messages.into()
}

fn content(draw: &mut Draw) -> Value {
    if draw.goes_too_far() {
        return draw.take(vec![Value::Null, json!(7), json!([]), json!([{"type": "image_url"}]), json!("")]);
    }
    let text = if draw.one_in(2) { draw.pick(&QUESTIONS).to_owned() } else { prompts::text(draw) };
    if draw.one_in(5) { json!([{"type": "text", "text": text}, {"type": "text", "text": "!"}]) } else { text.into() }
}

/// Sets tools in some of the requests. Returns the form that an answer has if the model ends it: function calls if the
/// model must call a function, otherwise `form`.
pub(crate) fn set_tools(draw: &mut Draw, body: &mut Body, tool_form: ToolForm, form: Form) -> Form {
    if !draw.one_in(REQUESTS_PER_TOOLS) {
        return form;
    }
    let weather = json!({"type": "object", "required": ["city"], "properties": {
        "city": {"enum": ["Paris", "🤣"]}, "days": {"type": "integer", "minimum": 0, "maximum": 9}
    }});
    let other = Grammar::draw_schema(draw);
    let other = if other["type"] == "object" { other } else { json!({"type": "object"}) };
    let other = if draw.goes_too_far() { json!(7) } else { other };
    let mut tools = vec![tool_form.tool("weather", &weather)];
    if draw.one_in(2) {
        tools.push(tool_form.tool("other", &other));
    }
    body.set("tools", tools);
    let choice = if draw.goes_too_far() { "nobody" } else { draw.pick(&CHOICES) };
    if !choice.is_empty() {
        body.set("tool_choice", tool_form.choice(choice));
    }
    if draw.has() && !matches!(tool_form, ToolForm::Anthropic) {
        body.set("parallel_tool_calls", draw.one_in(2));
    }
    if ["", "auto", "none"].contains(&choice) { form } else { Form::Calls }
}

impl ToolForm {
    fn tool(self, name: &str, schema: &Value) -> Value {
        let description = "Says something.";
        match self {
            Self::Nested => {
                let function = json!({"name": name, "description": description, "parameters": schema});
                json!({"type": "function", "function": function})
            }
            Self::Flat => {
                json!({"type": "function", "name": name, "description": description, "parameters": schema})
            }
            Self::Anthropic => json!({"name": name, "description": description, "input_schema": schema}),
        }
    }

    /// Returns a value of `tool_choice` in the dialect's form. `choice` is a word such as `auto`, or the name of a
    /// function.
    fn choice(self, choice: &str) -> Value {
        let is_word = ["auto", "none", "required"].contains(&choice);
        match self {
            Self::Nested | Self::Flat if is_word => choice.into(),
            Self::Nested => json!({"type": "function", "function": {"name": choice}}),
            Self::Flat => json!({"type": "function", "name": choice}),
            Self::Anthropic if choice == "required" => json!({"type": "any"}),
            Self::Anthropic if is_word => json!({"type": choice}),
            Self::Anthropic => json!({"type": "tool", "name": choice}),
        }
    }
}
