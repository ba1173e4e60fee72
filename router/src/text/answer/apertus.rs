//! Apertus' calls: `<|tools_prefix|>` before a list of objects, each with the name of a function as its only key and
//! the arguments as its value.

use super::call::{Arguments, CallSyntax, Head};
use super::scan::{Cursor, Miss, Scan};
use super::tools::Tools;

pub(super) const CALLS: &str = "<|tools_prefix|>";
pub(super) const CALLS_END: &str = "<|tools_suffix|>";
pub(super) const SYNTAX: CallSyntax = CallSyntax {
    begin: "<|tools_prefix|>[",
    before_name: "{\"",
    before_arguments: "\": ",
    after_arguments: "}",
    separator: ", ",
    end: "]<|tools_suffix|>",
};

pub(super) fn head(_opener: &'static str, cursor: &mut Cursor<'_>, tools: &Tools) -> Scan<Head> {
    cursor.skip_space();
    if cursor.eats("[")? {
        cursor.skip_space();
    }
    cursor.eat("{")?;
    cursor.skip_space();
    let name = cursor.json_string()?;
    let tool = tools.find(&name).ok_or(Miss::Other)?;
    cursor.skip_space();
    cursor.eat(":")?;
    cursor.skip_space();
    cursor.clone().eat("{")?;
    Ok(Head::Call { name: tool.name.clone(), arguments: Arguments::Json })
}
