//! Tests of every operation on XLA-CPU against the CPU backend, with random shapes and data; of the programs' text; of
//! uploads; and of backends on fake devices.
//!
//! A [`case`](Case) is a small graph with its step. It runs on both backends; on the device its arguments are padded
//! with numbers that spoil every result that they reach. Outputs are compared with the tolerances of the test; states
//! are compared exactly. [`test_of`] does not compile if it names no test for an operation.

mod attention;
mod caches;
mod case;
mod collectives;
mod compare;
mod elementwise;
mod experts;
mod fake;
mod history;
mod kernel;
mod model_ops;
pub(crate) mod numbers;
mod rig;
mod rows;
mod selection;
mod slots;
mod tables;
mod text;
mod tokens;
mod uploads;

use ::numbers::{FloatType, Rounding};
use cpu::oracle::{Array, Elements};
use model::graph::{
    Activation, Binary, Clamp, DType, Dim, ExpertGroups, ExpertsSpec, Gating, Graph, Input, Op, Partition,
    PositionScale, RouterSpec, Scoring, Shape, Source, TokenScope, Unary, Value, WeightSpec, Weighted,
};
use proptest::prelude::*;
use proptest::test_runner::Config;

use case::Case;
use compare::Tolerance;
use numbers::Numbers;

/// Returns a configuration with `cases` cases and few attempts to shrink a failing case, because each attempt compiles
/// a program.
fn cases(cases: u32) -> Config {
    Config { cases, failure_persistence: None, max_shrink_iters: 24, ..Config::default() }
}

/// Returns the name of the test that compares an operation on the device with the same operation on the CPU backend.
fn test_of(op: &Op) -> &'static str {
    match op {
        Op::Input(Input::TokenIds | Input::Positions) => "tokens_and_their_arguments_pass_through",
        Op::Input(Input::Sampling { .. }) => "sampling_inputs_and_row_arguments_pass_through",
        Op::Argument(_) | Op::Constant(_) | Op::Reshape => "tokens_and_their_arguments_pass_through",
        Op::Weight(_) | Op::Linear => "linear_layers",
        Op::HeadLinear | Op::Join => "heads_have_matrices_of_their_own",
        Op::CurrentTokens => "current_tokens_are_read_and_noted",
        Op::Embedding => "embeddings_are_rows_of_the_table",
        Op::RmsNorm { .. } | Op::LayerNorm { .. } => "norms",
        Op::Rotary(_) => "rotary_turns",
        Op::PagedAttention(_) => "prompts_attend_to_their_contexts",
        Op::SharedAttention(_) => "a_layer_reads_the_state_of_another",
        Op::RunningSum(_) => "sums_go_on_where_slots_left_them",
        Op::ScaleByPosition(_) => "factors_grow_with_positions",
        Op::Xielu => "xielu_has_weights",
        Op::Activate(_) | Op::Gated(_) => "activations",
        Op::Route(_) => "routes",
        Op::Experts(_) => "experts_of_two_devices",
        Op::AllReduce => "parts_of_inputs_are_summed",
        Op::AllGather => "parts_of_outputs_are_joined",
        Op::AddBias | Op::ScaleColumns | Op::Columns { .. } => "biases_and_sums",
        Op::Unary(Unary::Negate | Unary::Abs | Unary::Exp) => "functions_of_elements",
        Op::Unary(Unary::ReciprocalRoot) => "biases_and_sums",
        Op::Binary(Binary::Add | Binary::Subtract | Binary::Multiply | Binary::Divide) => "functions_of_elements",
        Op::Less | Op::Select => "functions_of_elements",
        Op::SumColumns | Op::LogSoftmax => "sums_and_log_probabilities",
        Op::ArgMax => "the_best_is_the_lowest_of_equals",
        Op::GatherColumns => "columns_are_picked",
        Op::KthLargest => "the_kth_largest",
        Op::MassThreshold => "thresholds_of_a_mass",
        Op::TokenCounts { scope: TokenScope::Context | TokenScope::Generated, vocab_size: _ } => "tokens_are_counted",
        Op::HeldBack { vocab_size: _ } => "tokens_are_held_back",
        Op::AddLogitBias => "biases_are_added",
        Op::IsAllowed { vocab_size: _ } => "masks_are_bits",
        Op::Uniform => "random_numbers_have_the_same_bits",
        Op::ContextUniform { vocab_size: _ } => "numbers_of_contexts_have_the_same_bits",
        Op::InverseCdf => "draws_of_exact_sums",
        Op::TopTokens => "top_tokens_are_in_order",
        Op::AppendToken => "sampled_tokens_are_noted",
    }
}

/// The tests that `test_of` names exist: for every operation of `text::graphs`, and for those added below.
#[test]
fn tests_of_operations_exist() {
    let sources = [
        include_str!("attention.rs"),
        include_str!("collectives.rs"),
        include_str!("elementwise.rs"),
        include_str!("experts.rs"),
        include_str!("history.rs"),
        include_str!("model_ops.rs"),
        include_str!("rows.rs"),
        include_str!("selection.rs"),
        include_str!("slots.rs"),
        include_str!("tokens.rs"),
    ];
    let graphs = text::graphs();
    let mut ops: Vec<Op> = graphs.iter().flat_map(|graph| graph.nodes()).map(|node| node.op.clone()).collect();
    ops.extend([Op::AllReduce, Op::AllGather, Op::AddBias, Op::Columns { first: 0 }, Op::ScaleColumns]);
    ops.extend([Op::LayerNorm { eps: 0.0, offset: 0.0 }, Op::Activate(Activation::Gelu)]);
    ops.extend([Op::HeadLinear, Op::Join, Op::Unary(Unary::ReciprocalRoot)]);
    ops.push(Op::Xielu);
    ops.push(Op::ScaleByPosition(PositionScale { beta: 1.0, period: 1.0, offset: 0.0 }));
    ops.push(Op::Route(RouterSpec::softmax(1, true)));
    ops.push(Op::Experts(ExpertsSpec { num_chosen: 1, gating: Activation::Silu.into(), weighted: Weighted::Output }));
    for op in ops {
        let declaration = format!("fn {}(", test_of(&op));
        assert!(sources.iter().any(|source| source.contains(&declaration)), "{}: no {declaration}", op.name());
    }
}

/// Returns the weight `spec`, quantized to int8.
fn integers_of(spec: WeightSpec) -> WeightSpec {
    WeightSpec { rounding: Some(Rounding::Int8), ..spec }
}

/// Returns a strategy for the quantizations that the CPU backend has too.
fn any_rounding() -> impl Strategy<Value = Rounding> {
    prop::sample::select(vec![Rounding::Int8, Rounding::Int4])
}

/// Adds an argument of tokens, `[tokens, sizes..]`.
fn tokens(graph: &mut Graph, index: usize, sizes: &[usize]) -> Value {
    graph.argument(index, leading(Dim::Tokens, sizes), DType::F32)
}

/// Adds an argument of rows, `[rows, sizes..]`.
fn rows(graph: &mut Graph, index: usize, sizes: &[usize], dtype: DType) -> Value {
    graph.argument(index, leading(Dim::Rows, sizes), dtype)
}

fn leading(first: Dim, sizes: &[usize]) -> Shape {
    Shape::new([first].into_iter().chain(sizes.iter().copied().map(Dim::Fixed)).collect::<Vec<_>>())
}

fn floats(dims: &[usize], values: Vec<f32>) -> Array {
    assert_eq!(values.len(), dims.iter().product::<usize>());
    Array { dims: dims.to_vec(), elements: Elements::F32(values) }
}

fn integers(dims: &[usize], values: Vec<i32>) -> Array {
    assert_eq!(values.len(), dims.iter().product::<usize>());
    Array { dims: dims.to_vec(), elements: Elements::I32(values) }
}

fn weight(name: &str, shape: &[usize], dtype: FloatType) -> WeightSpec {
    let partition = Partition::Replicated;
    let (name, shape, source) = (name.to_owned(), shape.to_vec(), Source::Whole);
    WeightSpec { name, shape, dtype, partition, num_ranks: 1, num_copies: 1, source, rounding: None }
}
