//! Draws requests to the routes, each with a certain frequency.

use serde_json::{Value, json};

use crate::body::Body;
use crate::conversations::{self, ToolForm};
use crate::draw::Draw;
use crate::grammars::Grammar;
use crate::numbers::Whole;
use crate::parameters;
use crate::prompts;

/// A request over HTTP, and the expected kind of its answer.
#[derive(Debug)]
pub(crate) struct Request {
    /// The path of the POST request.
    pub(crate) path: &'static str,
    pub(crate) body: Value,
    pub(crate) dialect: Dialect,
    pub(crate) is_stream: bool,
    pub(crate) form: Form,
}

/// The shape of an answer, which depends on the route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Native,
    /// A native answer in a list of one element. By default it repeats the prompt.
    NativeList,
    Completion,
    Chat,
    Response,
    Message,
    Predictions,
    Tokens,
    ChatTokens,
    TokenCount,
}

/// The form of the text of an answer that the model ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Any,
    Json,
    Calls,
}

const CHOICES: Whole = Whole { name: "n", legal: &[1, 2, 3, 8], beyond: &[0, -1, 128, 129] };
const COMPLETION_LOGPROBS: Whole = Whole { name: "logprobs", legal: &[0, 1, 5], beyond: &[6, 20, 21, -1] };
const TOP_LOGPROBS: Whole = Whole { name: "top_logprobs", legal: &[0, 1, 5], beyond: &[6, 20, -1] };

/// Draws the next request.
pub(crate) fn draw(draw: &mut Draw) -> Request {
    draw.begin_request();
    let mut request = match draw.below(24) {
        0..=3 => generate(draw),
        4..=6 => generate_stream(draw),
        7 | 8 => compat(draw),
        9..=12 => completion(draw),
        13..=16 => chat(draw),
        17 | 18 => response(draw),
        19 | 20 => message(draw),
        21 => vertex(draw),
        22 => invocation(draw),
        _ => tokens(draw),
    };
    if draw.goes_too_far() {
        request.spoil(draw);
    }
    request
}

impl Request {
    fn new(path: &'static str, dialect: Dialect, body: Body, form: Form) -> Self {
        let body = Value::from(body);
        Self { path, is_stream: is_stream(path, &body), body, dialect, form }
    }

    /// Replaces the value of a random field with a value that probably has another type.
    fn spoil(&mut self, draw: &mut Draw) {
        let junk = draw.take(vec![Value::Null, json!(true), json!(-1), json!("x"), json!([]), json!({}), json!(1e308)]);
        let Value::Object(fields) = &mut self.body else { return };
        let index = draw.below(fields.len().max(1));
        if let Some((_, value)) = fields.iter_mut().nth(index) {
            *value = junk;
        }
        self.form = Form::Any;
        self.is_stream = is_stream(self.path, &self.body);
    }

    /// The expected number of choices in the answer.
    pub(crate) fn num_choices(&self) -> usize {
        let num_prompts = match &self.body["prompt"] {
            Value::Array(prompts) if !prompts.iter().all(Value::is_number) => prompts.len(),
            _ => 1,
        };
        num_prompts * self.body["n"].as_u64().unwrap_or(1) as usize
    }

    /// The prompt if the answer repeats it, otherwise an empty text.
    pub(crate) fn repeated_prompt(&self) -> &str {
        let wish = self.body["parameters"]["return_full_text"].as_bool();
        let is_repeated = wish.unwrap_or(self.dialect == Dialect::NativeList);
        if is_repeated { self.body["inputs"].as_str().unwrap_or_default() } else { "" }
    }
}

/// True if the answer to this request is a stream, unless it is an error.
fn is_stream(path: &str, body: &Value) -> bool {
    path == "/generate_stream" || body["stream"] == true
}

fn generate(draw: &mut Draw) -> Request {
    let (body, form) = native(draw, false);
    Request::new("/generate", Dialect::Native, body, form)
}

fn generate_stream(draw: &mut Draw) -> Request {
    let (body, form) = native(draw, true);
    Request::new("/generate_stream", Dialect::Native, body, form)
}

fn compat(draw: &mut Draw) -> Request {
    let is_stream = draw.one_in(3);
    let (mut body, form) = native(draw, is_stream);
    body.set("stream", is_stream);
    Request::new("/", Dialect::NativeList, body, form)
}

fn native(draw: &mut Draw, is_stream: bool) -> (Body, Form) {
    let mut body = Body::default();
    body.set("inputs", prompts::text(draw));
    if draw.one_in(80) {
        return (body, Form::Any);
    }
    let (parameters, form) = parameters::native(draw, is_stream);
    body.set("parameters", Value::from(parameters));
    (body, form)
}

fn completion(draw: &mut Draw) -> Request {
    let mut body = Body::default();
    body.set("prompt", prompts::any(draw));
    let form = parameters::openai(draw, &mut body);
    set_max_tokens(draw, &mut body, form);
    let is_stream = set_stream(draw, &mut body);
    if draw.has() {
        body.set(COMPLETION_LOGPROBS.name, COMPLETION_LOGPROBS.draw(draw));
    }
    if draw.has() && (!is_stream || draw.goes_too_far()) {
        body.set("echo", true);
        if draw.one_in(3) {
            body.set("max_tokens", 0);
        }
    }
    Request::new("/v1/completions", Dialect::Completion, body, form)
}

fn chat(draw: &mut Draw) -> Request {
    let mut body = Body::default();
    body.set("messages", conversations::messages(draw));
    let form = parameters::openai(draw, &mut body);
    let form = conversations::set_tools(draw, &mut body, ToolForm::Nested, form);
    set_max_tokens(draw, &mut body, form);
    set_stream(draw, &mut body);
    if draw.has() {
        body.set("logprobs", !draw.goes_too_far());
        body.set(TOP_LOGPROBS.name, TOP_LOGPROBS.draw(draw));
    }
    if draw.one_in(8) && draw.has() {
        body.set("add_generation_prompt", draw.one_in(2));
    }
    Request::new("/v1/chat/completions", Dialect::Chat, body, form)
}

fn response(draw: &mut Draw) -> Request {
    let mut body = Body::default();
    let input = if draw.one_in(2) { prompts::text(draw).into() } else { conversations::messages(draw) };
    body.set("input", input);
    let mut form = parameters::openai(draw, &mut body);
    if form == Form::Any && draw.one_in(5) {
        let grammar = Grammar::draw(draw);
        body.set("text", json!({"format": grammar.tagged(draw)}));
        form = grammar.form();
    }
    form = conversations::set_tools(draw, &mut body, ToolForm::Flat, form);
    parameters::set_max_tokens(draw, &mut body, "max_output_tokens", form);
    body.set("stream", draw.one_in(3));
    Request::new("/v1/responses", Dialect::Response, body, form)
}

fn message(draw: &mut Draw) -> Request {
    let mut body = Body::default();
    body.set("messages", conversations::messages(draw));
    if draw.has() {
        body.set("system", "Be brief.");
    }
    let form = parameters::anthropic(draw, &mut body);
    let form = conversations::set_tools(draw, &mut body, ToolForm::Anthropic, form);
    if draw.one_in(8) {
        return Request::new("/v1/messages/count_tokens", Dialect::TokenCount, body, form);
    }
    parameters::set_max_tokens(draw, &mut body, "max_tokens", form);
    body.set("stream", draw.one_in(3));
    Request::new("/v1/messages", Dialect::Message, body, form)
}

fn vertex(draw: &mut Draw) -> Request {
    let count = if draw.goes_too_far() { 0 } else { 1 + draw.below(3) };
    let instance = |_| if draw.one_in(2) { native(draw, false).0.into() } else { chat(draw).body };
    let instances: Vec<Value> = (0..count).map(instance).collect();
    let mut body = Body::default();
    body.set("instances", instances);
    Request::new("/vertex", Dialect::Predictions, body, Form::Any)
}

fn invocation(draw: &mut Draw) -> Request {
    let meant = match draw.below(3) {
        0 => compat(draw),
        1 => completion(draw),
        _ => chat(draw),
    };
    Request { path: "/invocations", ..meant }
}

fn tokens(draw: &mut Draw) -> Request {
    let mut body = Body::default();
    if draw.one_in(2) {
        body.set("messages", conversations::messages(draw));
        return Request::new("/chat_tokenize", Dialect::ChatTokens, body, Form::Any);
    }
    body.set("inputs", prompts::text(draw));
    Request::new("/tokenize", Dialect::Tokens, body, Form::Any)
}

/// Sets the maximum number of tokens to generate, under the older or the newer name of the field.
fn set_max_tokens(draw: &mut Draw, body: &mut Body, form: Form) {
    let name = draw.pick(&["max_tokens", "max_tokens", "max_completion_tokens"]);
    parameters::set_max_tokens(draw, body, name, form);
}

/// Sets the number of choices and the fields of streams. Returns true if the answer is a stream.
fn set_stream(draw: &mut Draw, body: &mut Body) -> bool {
    if draw.one_in(4) {
        body.set(CHOICES.name, CHOICES.draw(draw));
    }
    let is_stream = draw.one_in(3);
    body.set("stream", is_stream);
    if draw.has() {
        body.set("stream_options", json!({"include_usage": draw.one_in(2)}));
    }
    is_stream
}
