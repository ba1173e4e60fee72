//! Grammars for answers with tool calls. They force calls in the model's own format or the generic one, with arguments
//! that are valid under the function's schema, or allow a choice between such calls and an answer that follows another
//! grammar. In models whose thoughts have marks, a thought may come before the calls or the answer.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::constraint::ANSWER;
use super::{Grammar, GrammarError, closed, limits, schema};
use crate::text::{AnswerForm, CallSyntax, MarkedText};

/// The maximum number of calls in one answer. Without it, a model that cannot stop would fill the answer with calls.
const MAX_CALLS: usize = 16;

/// Returns the grammar of calls of the function `name`, or of any function if `name` is `None`.
///
/// # Errors
/// When the schema of a function is too large.
pub(crate) fn calls(form: &AnswerForm, syntax: CallSyntax, name: Option<&str>) -> Result<Grammar, GrammarError> {
    let mut rules = String::new();
    let calls = call_rules(form, syntax, name, &mut rules)?;
    let thought = thought(form, &mut rules);
    Ok(Grammar::Lark(format!("start: {thought} {calls}\n{rules}")))
}

/// Returns a grammar that allows either calls of any function, or an answer that follows `answer`.
///
/// # Errors
/// When the schema of a function is too large.
pub(crate) fn calls_or(form: &AnswerForm, syntax: CallSyntax, answer: Grammar) -> Result<Grammar, GrammarError> {
    let mut rules = String::new();
    let calls = call_rules(form, syntax, None, &mut rules)?;
    let thought = thought(form, &mut rules);
    let content = in_lark(form, form.content_mark());
    Ok(answer.within(format!("start: {thought} (calls | {content} @{ANSWER})\ncalls: {calls}\n{rules}")))
}

/// Returns the grammar of an answer that may follow a thought, if thoughts have marks in this form. A model that is not
/// allowed to think gives worse answers, and a model whose prompt has begun a thought would write the thought into the
/// answer.
pub(crate) fn after_thought(form: &AnswerForm, answer: Grammar) -> Grammar {
    let mut rules = String::new();
    match thought(form, &mut rules) {
        "" => answer,
        thought => {
            let content = in_lark(form, form.content_mark());
            answer.within(format!("start: {thought} {content} @{ANSWER}\n{rules}"))
        }
    }
}

/// Returns the Lark expression of the calls, and adds to `rules` the rules that this expression uses.
fn call_rules(
    form: &AnswerForm,
    syntax: CallSyntax,
    name: Option<&str>,
    rules: &mut String,
) -> Result<String, GrammarError> {
    let text = |text: &str| in_lark(form, text);
    let mut choices = Vec::new();
    for (index, (function, schema)) in
        form.functions().enumerate().filter(|(_, (of, _))| name.is_none_or(|name| name == *of))
    {
        let head = text(&[syntax.before_name, function, syntax.before_arguments].concat());
        // A function may have no parameters, and then no schema.
        let checked = if schema.is_object() { limits::check_schema(schema) } else { Ok(()) };
        let closed = checked.and_then(|()| closed(schema));
        let schema = schema::prepare(closed.map_err(|error| of_function(function, &error))?);
        let _ = writeln!(rules, "call_{index}: {head} arguments_{index} {}", text(syntax.after_arguments));
        let _ = writeln!(rules, "arguments_{index}: %json {schema}");
        choices.push(format!("call_{index}"));
    }
    let _ = writeln!(rules, "call: {}", choices.join(" | "));
    let num_others = if form.has_one_call || name.is_some() { 0 } else { MAX_CALLS - 1 };
    let others = match num_others {
        0 => String::new(),
        _ => format!("({} call){{0,{num_others}}}", text(syntax.separator)),
    };
    Ok(format!("{} call {others} {}", text(syntax.begin), text(syntax.end)))
}

/// Returns the error with the name of the function whose parameters are wrong.
fn of_function(name: &str, error: &GrammarError) -> GrammarError {
    GrammarError::Invalid(format!("the parameters of the function {name:?}: {error}"))
}

/// Forbids arguments that the schema does not name, unless the schema allows them.
fn closed(schema: &Value) -> Result<Value, GrammarError> {
    let mut schema = if schema.is_object() { schema.clone() } else { json!({}) };
    if let Value::Object(keywords) = &mut schema {
        keywords.entry("type").or_insert_with(|| json!("object"));
        let others = ["additionalProperties", "unevaluatedProperties", "$ref", "anyOf", "oneOf", "allOf"];
        if !others.iter().any(|keyword| keywords.contains_key(*keyword)) {
            keywords.entry("properties").or_insert_with(|| json!({}));
        }
    }
    closed::close(&schema)
}

/// Adds the rules of a thought to `rules` and returns a reference to them. The reference makes the thought optional
/// unless the prompt has begun it; the reference is empty if thoughts have no marks in this form.
fn thought(form: &AnswerForm, rules: &mut String) -> &'static str {
    let Some((open, close)) = form.thought_marks() else { return "" };
    let is_special = matches!(form.parts(close)[..], [MarkedText::Mark(_), ..]);
    let body = match is_special {
        true => format!("thought_text {}", in_lark(form, close)),
        false => "thought_text".to_owned(),
    };
    let until = if is_special { String::new() } else { format!("[suffix={}]", Value::from(close)) };
    let open_text = open.map(|open| in_lark(form, open)).unwrap_or_default();
    let _ = write!(rules, "thought: {open_text} {body} /\\s{{0,4}}/\nthought_text{until}: /(?s:.*)/\n");
    if open.is_some() { "thought?" } else { "thought" }
}

/// Returns a text in Lark, with special tokens as token ids.
fn in_lark(form: &AnswerForm, text: &str) -> String {
    let part = |part: MarkedText<'_>| match part {
        MarkedText::Mark(id) => format!("<[{id}]>"),
        MarkedText::Text(text) => Value::from(text).to_string(),
    };
    form.parts(text).into_iter().map(part).collect::<Vec<_>>().join(" ")
}
