//! The calls of Llama 4: a list of Python calls with keyword arguments, or JSON objects in the form of Llama 3. Calls
//! are at the start of the answer, or after `<|python_start|>`.

use super::call::{Head, Tail};
use super::scan::{Cursor, Miss, Scan};
use super::tools::Tools;
use super::{json_calls, tool_code};

pub(super) const PYTHON_START: &str = "<|python_start|>";
/// The mark after calls. Transformers' chat template writes calls after it.
pub(super) const PYTHON_END: &str = "<|python_end|>";
pub(super) const FIRST_OPENERS: [&str; 2] = ["{", "["];

pub(super) fn head(opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    if opener == "{" {
        return json_calls::head_of_bare_objects(opener, cursor, tools);
    }
    cursor.skip_space();
    if opener == PYTHON_START && cursor.eats(PYTHON_END)? {
        cursor.skip_space();
    }
    // A list has begun before a first opener, and before calls after the first.
    let is_in_list = opener == "[" || opener.is_empty() || cursor.eats("[")?;
    cursor.skip_space();
    if cursor.peek()? == '{' {
        return json_calls::head(opener, cursor, tools);
    }
    if is_in_list { tool_code::call(cursor, tools) } else { Err(Miss::Other) }
}

/// Reads up to the next call, or else the end of the list and the mark after it.
pub(super) fn tail(cursor: &mut Cursor<'_>) -> Scan<Tail> {
    let mut ahead = cursor.clone();
    ahead.skip_space();
    let has_comma = ahead.eats(",")?;
    ahead.skip_space();
    match ahead.peek() {
        // The arguments were those of a JSON object.
        Ok('"' | '}') => return json_calls::tail(cursor),
        Ok(_) if has_comma => {
            *cursor = ahead;
            return Ok(Tail::Call);
        }
        Ok(_) | Err(Miss::Other) => {}
        Err(Miss::Short) => return Err(Miss::Short),
    }
    if ahead.eats("]")? {
        ahead.skip_space();
    }
    ahead.eats(PYTHON_END)?;
    *cursor = ahead;
    Ok(Tail::Text)
}

#[cfg(test)]
mod tests {
    use crate::text::answer::format_of;
    use crate::text::answer::tests::check;

    #[test]
    fn chat_templates_of_llama_4_have_headers() {
        let shown = "<|header_start|>user<|header_end|>\n\nRespond in the format {\"name\": function name, \"parameters\": \
             dictionary of argument name and its value}.<|eot|>";
        assert_eq!(format_of(shown).map(|format| format.name), Some("llama4"));
        let llama_3 = shown.replace("header_start", "start_header_id").replace("header_end", "end_header_id");
        assert_eq!(format_of(&llama_3).map(|format| format.name), Some("llama"));
    }

    /// The forms of Meta's guide to Llama 4, and the form of calls in transformers' chat template.
    #[test]
    fn llama_4_writes_python_or_objects() {
        let expected = [r#"get({"city":"it's \"a\"","days":-2,"exact":true,"tags":[1,{"a":null}]})"#, "get_time({})"];
        let calls = "[get(city='it\\'s \"a\"', days=-2, exact=True, tags=[1, {\"a\": None}]), get_time()]";
        check("llama4", calls, &expected);
        check("llama4", &format!("<|python_start|>{calls}<|python_end|>"), &expected);
        check(
            "llama4",
            &format!("Sure.\n<|python_start|> {calls} <|python_end|>\nSo."),
            &["Sure.", expected[0], expected[1], "So."],
        );
        let object = r#"{"name": "get", "parameters": {"days": 1}}"#;
        let expected = r#"get({"days": 1})"#;
        check("llama4", object, &[expected]);
        check("llama4", &format!("{object}; {object}"), &[expected, expected]);
        check("llama4", &format!("[{object}, {object}]"), &[expected, expected]);
        check("llama4", r#"{"name": "get", "parameters": {}, "id": "a"}"#, &["get({})"]);
        check("llama4", &format!("<|python_start|>{object}<|python_end|>"), &[expected]);
        check("llama4", &format!("<|python_start|><|python_end|>{object}"), &[expected]);
        check("llama4", &format!("Hm.<|python_end|>{object}"), &["Hm.", expected]);
        // Calls of other functions, text, and calls that are cut off.
        check("llama4", "[get_time(), len(x=1)]", &["get_time({})", ", len(x=1)]"]);
        for text in [
            "[1] says",
            "[len(x=1)]",
            "[get(days=1",
            "[get(1)]",
            "<|python_start|>get_time()<|python_end|>",
            "See [get()]",
        ] {
            check("llama4", text, &[text]);
        }
        check("llama4", "[get_time()", &["get_time({})"]);
    }
}
