//! Graphs as text: a line for each state, for each node, and for the outputs.
//!
//! The line of a node contains its operation, its operands, some of its attributes, and the shape and type of its
//! result.

use std::fmt;

use super::{
    AttentionSpec, Clamp, ExpertGroups, ExpertsSpec, Extent, Graph, Input, Node, Numbers, Op, Pairing, PositionScale,
    RotarySpec, RouterSpec, Scoring, StateSpec, ValuesIn, Weighted, Window,
};

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, state) in self.states().iter().enumerate() {
            writeln!(f, "state {index} = {state}")?;
        }
        for (index, node) in self.nodes().iter().enumerate() {
            writeln!(f, "%{index} = {node}")?;
        }
        let outputs: Vec<String> = self.outputs().iter().map(|value| format!("%{}", value.index())).collect();
        writeln!(f, "return {}", outputs.join(", "))
    }
}

impl fmt::Display for StateSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, extent, shape, numbers, window } = self;
        let unit = match extent {
            Extent::Token => "token",
            Extent::Slot => "slot",
            Extent::Position => "position",
        };
        write!(f, "{name} per {unit} : {shape:?} ")?;
        match numbers {
            Numbers::Cache => f.write_str("cache")?,
            Numbers::Exact(dtype) => write!(f, "{dtype}")?,
        }
        window.map_or(Ok(()), |window| write!(f, " window={window}"))
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op.name())?;
        for (index, operand) in self.operands.iter().enumerate() {
            write!(f, "{} %{}", if index == 0 { "" } else { "," }, operand.index())?;
        }
        match &self.op {
            Op::Input(Input::Sampling { name, dtype: _ }) => write!(f, " {name}")?,
            Op::Input(input @ (Input::TokenIds | Input::Positions)) => write!(f, " {input:?}")?,
            Op::Argument(index) => write!(f, " {index}")?,
            Op::Weight(spec) => {
                write!(f, " {} {:?}", spec.name, spec.partition)?;
                if let Some(rounding) = spec.rounding {
                    write!(f, " {rounding:?}")?;
                }
            }
            Op::Constant(value) => write!(f, " {value}")?,
            Op::RmsNorm { eps, offset } | Op::LayerNorm { eps, offset } => write_norm(f, *eps, *offset)?,
            Op::Rotary(spec) => write_rotary(f, spec)?,
            Op::ScaleByPosition(PositionScale { beta, period, offset }) => {
                write!(f, " beta={beta} period={period}")?;
                if *offset != 0.0 {
                    write!(f, " offset={offset}")?;
                }
            }
            Op::PagedAttention(spec) | Op::SharedAttention(spec) => write_attention(f, spec)?,
            Op::Columns { first } => write!(f, " first={first}")?,
            Op::RunningSum(state) => write!(f, " state={}", state.index())?,
            Op::Route(spec) => write_route(f, *spec)?,
            Op::Experts(spec) => write_experts(f, *spec)?,
            Op::TokenCounts { scope, vocab_size: _ } => write!(f, " {scope:?}")?,
            Op::CurrentTokens
            | Op::Embedding
            | Op::Linear
            | Op::HeadLinear
            | Op::Xielu
            | Op::Activate(_)
            | Op::Gated(_)
            | Op::Reshape
            | Op::AllReduce
            | Op::AllGather
            | Op::AddBias
            | Op::ScaleColumns
            | Op::Join
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
            | Op::AddLogitBias
            | Op::IsAllowed { .. }
            | Op::Uniform
            | Op::ContextUniform { .. }
            | Op::InverseCdf
            | Op::TopTokens
            | Op::AppendToken => {}
        }
        write!(f, " : {} {}", self.shape, self.dtype)
    }
}

fn write_route(f: &mut fmt::Formatter<'_>, spec: RouterSpec) -> fmt::Result {
    let RouterSpec { num_chosen, scoring, groups, least_sum } = spec;
    write!(f, " chosen={num_chosen} normalised={}", least_sum.is_some())?;
    if scoring != Scoring::Softmax {
        write!(f, " scoring={scoring:?}")?;
    }
    if let Some(ExpertGroups { num, num_chosen, num_summed }) = groups {
        write!(f, " groups={num_chosen}/{num} summed={num_summed}")?;
    }
    Ok(())
}

fn write_norm(f: &mut fmt::Formatter<'_>, eps: f32, offset: f32) -> fmt::Result {
    write!(f, " eps={eps}")?;
    if offset == 0.0 { Ok(()) } else { write!(f, " offset={offset}") }
}

fn write_rotary(f: &mut fmt::Formatter<'_>, spec: &RotarySpec) -> fmt::Result {
    write!(f, " frequencies={} amplitude={}", spec.frequencies.len(), spec.amplitude)?;
    match spec.pairing {
        Pairing::Halves => Ok(()),
        Pairing::Neighbours => f.write_str(" neighbours"),
    }
}

fn write_experts(f: &mut fmt::Formatter<'_>, spec: ExpertsSpec) -> fmt::Result {
    write!(f, " chosen={} {:?}", spec.num_chosen, spec.gating.activation)?;
    if spec.weighted == Weighted::Input {
        f.write_str(" weighted=Input")?;
    }
    spec.gating.clamp.map_or(Ok(()), |Clamp { limit, offset }| write!(f, " limit={limit} offset={offset}"))
}

fn write_attention(f: &mut fmt::Formatter<'_>, spec: &AttentionSpec) -> fmt::Result {
    let AttentionSpec { keys, values, scale, window, soft_cap, slopes } = spec;
    write!(f, " keys={}", keys.index())?;
    match values {
        ValuesIn::State(values) => write!(f, " values={}", values.index())?,
        ValuesIn::Keys { .. } => f.write_str(" values=keys")?,
    }
    write!(f, " scale={scale}")?;
    match window {
        Some(Window::Sliding(num_keys)) => write!(f, " window={num_keys}")?,
        Some(Window::Chunked(num_keys)) => write!(f, " chunked={num_keys}")?,
        None => {}
    }
    soft_cap.map_or(Ok(()), |soft_cap| write!(f, " soft_cap={soft_cap}"))?;
    slopes.map_or(Ok(()), |slopes| write!(f, " slopes={}", slopes.last_exponent))
}
