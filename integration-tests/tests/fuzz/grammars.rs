//! Grammars of all kinds: valid ones, and ones that the server should refuse.

use serde_json::{Value, json};

use crate::body::Body;
use crate::draw::Draw;
use crate::requests::Form;

/// Valid regular expressions. The first two match only characters that are made of byte tokens, which prompts and
/// biases make unlikely.
const EXPRESSIONS: [&str; 12] = [
    "🤣{2}",
    "(🤣|日){1,3}",
    "a",
    "[ab]{1,5}",
    "yes|no",
    r"\d{3}-\d{4}",
    ".{0,20}",
    ".*",
    "(a|b)*c",
    "(?i)once upon a time",
    r"[\u{1F600}-\u{1F64F}]+",
    "",
];
const WRONG_EXPRESSIONS: [&str; 6] = ["(", "a{99999}{9999}", r"\b", "(?=a)", "[z-a]", r"(a)\1"];
const LARKS: [&str; 4] = [
    r#"start: "a" | "b" start"#,
    r#"start: /[0-9]+/ "!""#,
    "start: smile+\nsmile: \"🤣\"",
    "start: object\nobject: %json {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"null\"}}}",
];
const WRONG_LARKS: [&str; 5] = ["", "start: missing", "start: start", "start: \"a", "nothing: \"a\""];

/// The form of the answer that a request demands.
#[derive(Debug)]
pub(crate) enum Grammar {
    Schema(Value),
    JsonObject,
    Expression(&'static str),
    Choice(Vec<&'static str>),
    Lark(&'static str),
}

impl Grammar {
    /// Draws a grammar of any kind.
    pub(crate) fn draw(draw: &mut Draw) -> Self {
        let is_wrong = draw.goes_too_far();
        match draw.below(10) {
            0..=3 => Self::Schema(draw.take(if is_wrong { wrong_schemas() } else { schemas() })),
            4 => Self::JsonObject,
            5..=7 => Self::Expression(if is_wrong { draw.pick(&WRONG_EXPRESSIONS) } else { draw.pick(&EXPRESSIONS) }),
            8 => Self::Choice(draw.take(if is_wrong { vec![vec![]] } else { choices() })),
            _ => Self::Lark(if is_wrong { draw.pick(&WRONG_LARKS) } else { draw.pick(&LARKS) }),
        }
    }

    /// Draws a valid schema.
    pub(crate) fn draw_schema(draw: &mut Draw) -> Value {
        draw.take(schemas())
    }

    /// The form of an answer that follows the grammar and ended by itself.
    pub(crate) fn form(&self) -> Form {
        match self {
            Self::Schema(_) | Self::JsonObject => Form::Json,
            Self::Expression(_) | Self::Choice(_) | Self::Lark(_) => Form::Any,
        }
    }

    /// Returns the grammar as an object with a `type`, in one of the notations that all dialects accept.
    pub(crate) fn tagged(&self, draw: &mut Draw) -> Value {
        match self {
            Self::Schema(schema) => draw.take(vec![
                json!({"type": "json", "value": schema}),
                json!({"type": "json_schema", "schema": schema}),
                json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": true}}),
                json!({"type": "json_object", "schema": schema}),
            ]),
            Self::JsonObject => json!({"type": "json_object"}),
            Self::Expression(expression) => json!({"type": "regex", "value": expression}),
            Self::Choice(texts) => json!({"type": "choice", "value": texts}),
            Self::Lark(grammar) => json!({"type": "lark", "value": grammar}),
        }
    }

    /// Sets the grammar in one of the fields that OpenAI's routes accept for it.
    pub(crate) fn set_openai(&self, draw: &mut Draw, body: &mut Body) {
        let tagged = self.tagged(draw);
        match (draw.below(4), self) {
            (0, Self::Schema(schema)) => body.set("guided_json", schema.clone()),
            (0, Self::Expression(expression)) => body.set("guided_regex", *expression),
            (0, Self::Choice(texts)) => body.set("guided_choice", texts.clone()),
            (0, Self::Lark(grammar)) => body.set("guided_grammar", *grammar),
            (1, _) => body.set("grammar", tagged),
            _ => body.set("response_format", tagged),
        }
    }
}

fn schemas() -> Vec<Value> {
    let name = json!({"type": "string", "pattern": "^[a-z]{1,6}$"});
    let node = json!({"type": "object", "required": ["next"], "properties": {
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}
    }});
    vec![
        json!({"type": "object", "properties": {"age": {"type": "integer", "maximum": 30}}, "required": ["age"]}),
        json!({"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3}),
        json!({"type": "string", "maxLength": 12}),
        json!({"enum": ["red", "blue", "🤣🤣", 7, null]}),
        json!({"anyOf": [{"type": "null"}, {"type": "boolean"}]}),
        json!({"type": "integer", "minimum": -5, "maximum": 5}),
        json!({"const": {"a": [1, "x"]}}),
        json!({"type": "object", "required": ["name"], "properties": {
            "name": name, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}
        }}),
        json!({"$ref": "#/$defs/node", "$defs": {"node": node}}),
        json!({"type": "string", "format": "date"}),
        json!(true),
    ]
}

fn wrong_schemas() -> Vec<Value> {
    vec![
        json!({"not": {"type": "null"}}),
        json!({"type": "array", "uniqueItems": true}),
        json!({"type": "string", "pattern": "("}),
        json!({"$ref": "#/$defs/nowhere"}),
        json!({"$ref": "http://localhost:1/schema.json"}),
        json!({"type": "integer", "minimum": 5, "maximum": -5}),
        json!({"type": "colour"}),
        json!(false),
        json!(7),
        json!("{"),
    ]
}

fn choices() -> Vec<Vec<&'static str>> {
    vec![vec!["red", "green"], vec!["🤣🤣"], vec![""], vec!["a", "aa", "aaa"], vec!["<|eos|>", "a"]]
}
