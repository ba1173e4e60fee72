//! The decode kernel in its program: XLA-CPU computes the operands of the custom call, and an interpreter carries out
//! its body.
//!
//! Entry point: [`kernel_output`].

use cpu::oracle::Array;

use super::case::{Case, Program};
use super::rig;
use crate::stablehlo::carry_out;

/// Returns the output of the kernel that the program of `case` calls, `[rows, heads, value_dim]` with padding, or
/// `None` if this machine lacks XLA-CPU.
pub(super) fn kernel_output(case: &Case) -> Option<Vec<f32>> {
    let rig = rig::rig()?;
    let Program { text, uploads, .. } = case.program(0);
    let (start, call) = text.split_once("stablehlo.custom_call @tpu_custom_call(").expect("the program calls a kernel");
    let (operands, call) = call.split_once(") {backend_config = \"").expect("operands and a configuration");
    let (config, call) = call.split_once("\", ").expect("a configuration");
    let (types, _) = call.split_once("} : (").and_then(|(_, types)| types.split_once(") -> ")).expect("types");
    let (start, _) = start.rsplit_once('\n').expect("the call is not the first line");
    let results: Vec<Array> = rig.run(&returning(start, operands, types), &[uploads], 0).remove(0);
    let config: serde_json::Value = serde_json::from_str(&config.replace("\\22", "\"")).expect("JSON");
    let body = config["custom_call_config"]["body"].as_str().expect("a body");
    Some(carry_out(&String::from_utf8(bytes_of(body)).expect("text"), &results))
}

/// Returns a program that ends after the lines `start` and returns `values`. It keeps its arguments.
fn returning(start: &str, values: &str, types: &str) -> String {
    let (signature, lines) = start.split_once(") {\n").expect("the function has a body");
    let (arguments, _) = signature.rsplit_once(" -> (").expect("the function has results");
    let kept = arguments.split(" {tf.aliasing_output").enumerate().map(|(index, part)| match index {
        0 => part,
        _ => &part[part.find(", %arg").or_else(|| part.rfind(')')).expect("the attributes end")..],
    });
    let arguments: String = kept.collect();
    format!("{arguments} -> ({types}) {{\n{lines}\n    return {values} : {types}\n  }}\n}}\n")
}

/// Returns the bytes of text in base 64.
fn bytes_of(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['+', '/']).map(|c| c as u8).collect();
    let value = |c: &u8| digits.iter().position(|digit| digit == c).map_or(0, |value| value as u32);
    let group = |group: &[u8]| {
        let bits = group.iter().fold(0, |bits, c| bits << 6 | value(c));
        let len = 3 - group.iter().filter(|c| **c == b'=').count();
        bits.to_be_bytes()[1..=len].to_vec()
    };
    text.as_bytes().chunks(4).flat_map(group).collect()
}
