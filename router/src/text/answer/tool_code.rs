//! Calls that are Python with keyword arguments, one in a line: Gemma 3's in a block ```` ```tool_code ````, and
//! OLMo 3's between `<function_calls>` and its closing mark.

use serde_json::{Map, Value as Json};

use super::call::{Arguments, Head, Tail};
use super::scan::{Cursor, Miss, Scan};
use super::tools::Tools;

const BLOCK_ENDS: [&str; 2] = ["```", "</function_calls>"];
const MAX_DEPTH: usize = 64;

pub(super) fn head(_opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    cursor.skip_space();
    let is_printed = cursor.eats("print(")?;
    let head = call(cursor, tools)?;
    if is_printed {
        cursor.eat(")")?;
    }
    Ok(head)
}

/// Reads a call.
pub(super) fn call(cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    let name = cursor.tool(tools, &["("])?.name.clone();
    cursor.eat("(")?;
    let mut arguments = Map::new();
    while !ends(cursor, ")", arguments.is_empty())? {
        let key = cursor.while_in(|c| c.is_alphanumeric() || c == '_')?.to_owned();
        cursor.skip_space();
        cursor.eat("=")?;
        arguments.insert(key, value(cursor, 1)?);
    }
    Ok(Head::Call { name, arguments: Arguments::Read(Json::Object(arguments).to_string()) })
}

/// Reads the end of the block. If other text comes first, it is read as another call.
pub(super) fn tail(cursor: &mut Cursor<'_>) -> Scan<Tail> {
    cursor.skip_space();
    if cursor.eats_any(&BLOCK_ENDS)? {
        return Ok(Tail::Text);
    }
    match cursor.peek() {
        Ok(_) => Ok(Tail::Call),
        Err(Miss::Short) => Err(Miss::Short),
        Err(Miss::Other) => Ok(Tail::Text),
    }
}

/// Reads `bracket` and returns true if it is next, maybe after a comma. Otherwise reads the comma that must be next,
/// unless the container is still empty, and returns false.
fn ends(cursor: &mut Cursor<'_>, bracket: &str, is_empty: bool) -> Scan<bool> {
    cursor.skip_space();
    let has_comma = !is_empty && cursor.eats(",")?;
    cursor.skip_space();
    let ends = cursor.eats(bracket)?;
    if ends || is_empty || has_comma { Ok(ends) } else { Err(Miss::Other) }
}

fn value(cursor: &mut Cursor<'_>, depth: usize) -> Scan<Json> {
    if depth > MAX_DEPTH {
        return Err(Miss::Other);
    }
    cursor.skip_space();
    match cursor.peek()? {
        quote @ ('"' | '\'') => text(cursor, quote).map(Json::from),
        '[' => {
            cursor.eat("[")?;
            let mut list = Vec::new();
            while !ends(cursor, "]", list.is_empty())? {
                list.push(value(cursor, depth + 1)?);
            }
            Ok(Json::Array(list))
        }
        '{' => {
            cursor.eat("{")?;
            let mut object = Map::new();
            while !ends(cursor, "}", object.is_empty())? {
                let quote = cursor.peek()?;
                let key = text(cursor, quote)?;
                cursor.skip_space();
                cursor.eat(":")?;
                object.insert(key, value(cursor, depth + 1)?);
            }
            Ok(Json::Object(object))
        }
        _ => match cursor.while_in(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.'))? {
            "True" | "true" => Ok(Json::Bool(true)),
            "False" | "false" => Ok(Json::Bool(false)),
            "None" | "null" => Ok(Json::Null),
            number => serde_json::from_str(number).map_err(|_| Miss::Other),
        },
    }
}

/// Reads a quoted string.
fn text(cursor: &mut Cursor<'_>, quote: char) -> Scan<String> {
    let quote = match quote {
        '"' => "\"",
        '\'' => "'",
        _ => return Err(Miss::Other),
    };
    cursor.eat(quote)?;
    let mut text = String::new();
    loop {
        let part = cursor.while_in(|c| !matches!(c, '"' | '\'' | '\\'))?;
        text.push_str(part);
        if cursor.eats(quote)? {
            return Ok(text);
        }
        let c = cursor.take()?;
        text.push(match c {
            '\\' => match cursor.take()? {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                other => other,
            },
            other => other,
        });
    }
}
