//! Calls that are JSON objects with a name and arguments: a single object, a list, or one object after the other.
//!
//! The keys of the name and the arguments are those that models were trained on. Arguments that are an object and come
//! after the name are passed on as they arrive; otherwise the whole call is read first.

use super::call::{Arguments, Head, Tail};
use super::scan::{Cursor, Miss, Scan};
use super::tools::Tools;
use super::{apertus, glm, llama4};

const NAME_KEYS: [&str; 2] = ["name", "tool_name"];
const ARGUMENTS_KEYS: [&str; 2] = ["arguments", "parameters"];
/// Keys that are skipped with their values.
const OTHER_KEYS: [&str; 3] = ["id", "tool_call_id", "type"];

/// Marks that may follow the last call.
const CLOSERS: [&str; 9] = [
    "</tool_call>",
    "</tool_calls>",
    "<|/tool_call|>",
    "<|END_ACTION|>",
    "</TOOLCALL>",
    "<|action_end|>",
    glm::LONGCAT_CALL_END,
    apertus::CALLS_END,
    llama4::PYTHON_END,
];

/// Reads an object, or the first object of a list, as [`object`] does.
pub(super) fn head(_opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    cursor.skip_space();
    if cursor.eats("[")? {
        cursor.skip_space();
    }
    cursor.eat("{")?;
    object(cursor, tools)
}

/// As [`head`], but the opener may itself be the first bracket of the object.
pub(super) fn head_of_bare_objects(opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    if opener == "{" { object(cursor, tools) } else { head(opener, cursor, tools) }
}

/// Reads the rest of the object, and then up to the next object, or else the end of the list and the mark after it, if
/// they are there.
pub(super) fn tail(cursor: &mut Cursor<'_>) -> Scan<Tail> {
    cursor.end_of_object()?;
    let end = cursor.clone();
    cursor.skip_space();
    if !cursor.eats(",")? {
        cursor.eats(";")?;
    }
    cursor.skip_space();
    match cursor.peek() {
        Ok('{') => return Ok(Tail::Call),
        Ok(_) | Err(Miss::Other) => *cursor = end,
        Err(Miss::Short) => return Err(Miss::Short),
    }
    cursor.skip_space();
    if cursor.eats("]")? {
        cursor.skip_space();
    }
    cursor.eats_any(&CLOSERS)?;
    Ok(Tail::Text)
}

/// Reads an object after its first bracket: up to the arguments if they are an object and come after the name,
/// otherwise up to the last bracket.
fn object(cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    let (mut name, mut arguments) = (None, None);
    loop {
        cursor.skip_space();
        let key = cursor.json_string()?;
        cursor.skip_space();
        cursor.eat(":")?;
        cursor.skip_space();
        if NAME_KEYS.contains(&key.as_str()) {
            let given = cursor.json_string()?;
            name = Some(tools.find(&given).ok_or(Miss::Other)?.name.clone());
        } else if ARGUMENTS_KEYS.contains(&key.as_str()) {
            match (&name, cursor.peek()?) {
                (Some(name), '{') => return Ok(Head::Call { name: name.clone(), arguments: Arguments::Json }),
                _ => arguments = Some(whole_arguments(cursor.json()?)?),
            }
        } else if OTHER_KEYS.contains(&key.as_str()) {
            cursor.json()?;
        } else {
            return Err(Miss::Other);
        }
        cursor.skip_space();
        if !cursor.eats(",")? {
            // `tail` reads the closing bracket.
            cursor.clone().eat("}")?;
            let arguments = Arguments::Read(arguments.unwrap_or_else(|| "{}".to_owned()));
            return Ok(Head::Call { name: name.ok_or(Miss::Other)?, arguments });
        }
    }
}

/// Returns the JSON of arguments: an object, a string with an object in it, or null, which becomes `{}`.
fn whole_arguments(json: &str) -> Scan<String> {
    match serde_json::from_str(json).map_err(|_| Miss::Other)? {
        serde_json::Value::Object(_) => Ok(json.to_owned()),
        serde_json::Value::Null => Ok("{}".to_owned()),
        serde_json::Value::String(text) => match serde_json::from_str(&text) {
            Ok(serde_json::Value::Object(_)) => Ok(text),
            _ => Err(Miss::Other),
        },
        _ => Err(Miss::Other),
    }
}
