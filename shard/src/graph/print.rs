//! Graphs as text, one line per node, for people and for snapshots.
//!
//! A line has the operation, its operands, its attributes, and the shape and type of its result.

use std::fmt;

use super::{Graph, Node, Op};

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.nodes().iter().enumerate() {
            writeln!(f, "%{index} = {node}")?;
        }
        let outputs: Vec<String> = self.outputs().iter().map(|value| format!("%{}", value.index())).collect();
        writeln!(f, "return {}", outputs.join(", "))
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op.name())?;
        for (index, operand) in self.operands.iter().enumerate() {
            write!(f, "{} %{}", if index == 0 { "" } else { "," }, operand.index())?;
        }
        match &self.op {
            Op::Input(input) => write!(f, " {input:?}")?,
            Op::Argument(index) => write!(f, " {index}")?,
            Op::Weight(spec) => write!(f, " {} {:?}", spec.name, spec.partition)?,
            Op::Constant(value) => write!(f, " {value}")?,
            Op::RmsNorm { eps } => write!(f, " eps={eps}")?,
            Op::Rotary(spec) => write!(f, " frequencies={} amplitude={}", spec.frequencies.len(), spec.amplitude)?,
            Op::PagedAttention { layer, scale } => write!(f, " layer={layer} scale={scale}")?,
            Op::TokenCounts { scope, vocab_size: _ } => write!(f, " {scope:?}")?,
            Op::CurrentTokens
            | Op::Embedding
            | Op::Linear
            | Op::SiluMul
            | Op::Reshape
            | Op::AllReduce
            | Op::AllGather
            | Op::AddBias
            | Op::FirstColumns
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Less
            | Op::Select
            | Op::SumColumns
            | Op::LogSoftmax
            | Op::ArgMax
            | Op::GatherColumns
            | Op::HeldBack { .. }
            | Op::KthLargest
            | Op::MassThreshold
            | Op::Uniform
            | Op::InverseCdf
            | Op::TopTokens
            | Op::AppendToken => {}
        }
        write!(f, " : {} {}", self.shape, self.dtype)
    }
}
