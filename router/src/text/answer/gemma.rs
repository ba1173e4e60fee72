//! FunctionGemma's and Gemma 4's calls: `call:name{key:value,…}`, with marks instead of quotes around texts.

use serde_json::{Map, Value as Json};

use super::call::{Arguments, Head, Tail};
use super::scan::{Cursor, Miss, Scan};
use super::tools::Tools;

const TEXT_MARKS: [&str; 2] = ["<escape>", "<|\"|>"];
const CLOSERS: [&str; 2] = ["<end_function_call>", "<tool_call|>"];
const MAX_DEPTH: usize = 64;

pub(super) fn head(_opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    cursor.skip_space();
    cursor.eat("call:")?;
    let name = cursor.tool(tools, &["{"])?.name.clone();
    let arguments = Json::Object(object(cursor, 0)?).to_string();
    Ok(Head::Call { name, arguments: Arguments::Read(arguments) })
}

pub(super) fn tail(cursor: &mut Cursor<'_>) -> Scan<Tail> {
    cursor.skip_space();
    cursor.eats_any(&CLOSERS)?;
    Ok(Tail::Text)
}

fn object(cursor: &mut Cursor<'_>, depth: usize) -> Scan<Map<String, Json>> {
    let mut object = Map::new();
    cursor.eat("{")?;
    while !ends(cursor, "}", object.is_empty())? {
        let key = match text(cursor)? {
            Some(key) => key,
            None => cursor.while_in(|c| !matches!(c, ':' | '{' | '}' | ',' | '<'))?.trim().to_owned(),
        };
        cursor.eat(":")?;
        object.insert(key, value(cursor, depth + 1)?);
    }
    Ok(object)
}

fn list(cursor: &mut Cursor<'_>, depth: usize) -> Scan<Vec<Json>> {
    let mut list = Vec::new();
    cursor.eat("[")?;
    while !ends(cursor, "]", list.is_empty())? {
        list.push(value(cursor, depth + 1)?);
    }
    Ok(list)
}

/// Reads `bracket` and returns true if it is next. Otherwise reads the comma that must be next, unless the container is
/// still empty, and returns false.
fn ends(cursor: &mut Cursor<'_>, bracket: &str, is_empty: bool) -> Scan<bool> {
    cursor.skip_space();
    if cursor.eats(bracket)? {
        return Ok(true);
    }
    if !is_empty {
        cursor.eat(",")?;
        cursor.skip_space();
    }
    Ok(false)
}

fn value(cursor: &mut Cursor<'_>, depth: usize) -> Scan<Json> {
    if depth > MAX_DEPTH {
        return Err(Miss::Other);
    }
    cursor.skip_space();
    if let Some(text) = text(cursor)? {
        return Ok(Json::from(text));
    }
    match cursor.peek()? {
        '{' => Ok(Json::Object(object(cursor, depth)?)),
        '[' => Ok(Json::Array(list(cursor, depth)?)),
        // A number, true, false, null, or a text that lacks its marks.
        _ => {
            let bare = cursor.while_in(|c| !matches!(c, ',' | '}' | ']' | '<' | '{' | '['))?.trim();
            Ok(serde_json::from_str(bare).unwrap_or_else(|_| Json::from(bare)))
        }
    }
}

fn text(cursor: &mut Cursor<'_>) -> Scan<Option<String>> {
    for mark in TEXT_MARKS {
        if cursor.eats(mark)? {
            return Ok(Some(cursor.until(mark)?.to_owned()));
        }
    }
    Ok(None)
}
