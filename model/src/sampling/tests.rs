//! Tests of samplers: their graphs as printed text, and their inputs.
//!
//! The values that the graphs compute are tested where graphs are executed, such as in `cpu/src/tests/mod.rs`.

use std::collections::HashSet;
use std::sync::Arc;

use proto::LogitBias;

use super::*;

fn bias() -> Vec<LogitBias> {
    vec![LogitBias { token_id: 3, bias: 1.5 }]
}

fn printed(change: impl Fn(&mut SamplingParams)) -> String {
    let mut params = SamplingParams::greedy();
    change(&mut params);
    Samplers::new(10).graph(&params).unwrap().to_string()
}

#[test]
fn a_greedy_row_pays_for_nothing_else() {
    insta::assert_snapshot!(printed(|_| ()), @r"
    state 0 = token_history per position : [] int32
    %0 = argument 0 : [rows, 10] float32
    %1 = log_softmax %0 : [rows, 10] float32
    %2 = arg_max %0 : [rows] int32
    %3 = append_token %2 : [rows] int32
    %4 = gather_columns %1, %3 : [rows] float32
    return %3, %4
    ");
    assert_eq!(printed(|p| (p.temperature, p.top_k, p.seed) = (0.5, 3, 9)), printed(|_| ()));
}

#[test]
fn a_sampled_row_runs_what_it_asks_for() {
    insta::assert_snapshot!(printed(|p| (p.is_greedy, p.temperature, p.top_n_tokens) = (false, 0.5, 2)), @r"
    state 0 = token_history per position : [] int32
    %0 = argument 0 : [rows, 10] float32
    %1 = input temperature : [rows] float32
    %2 = arg_max %0 : [rows] int32
    %3 = gather_columns %0, %2 : [rows] float32
    %4 = constant 0 : [] float32
    %5 = constant 1 : [] float32
    %6 = less %1, %5 : [rows] bool
    %7 = less %5, %1 : [rows] bool
    %8 = select %6, %3, %4 : [rows] float32
    %9 = select %7, %3, %8 : [rows] float32
    %10 = subtract %0, %9 : [rows, 10] float32
    %11 = divide %10, %1 : [rows, 10] float32
    %12 = log_softmax %11 : [rows, 10] float32
    %13 = input seed_low : [rows] uint32
    %14 = input seed_high : [rows] uint32
    %15 = input num_generated : [rows] uint32
    %16 = uniform %13, %14, %15 : [rows] float32
    %17 = exp %12 : [rows, 10] float32
    %18 = inverse_cdf %17, %16 : [rows] int32
    %19 = append_token %18 : [rows] int32
    %20 = gather_columns %12, %19 : [rows] float32
    %21 = input top_n_tokens : [rows] int32
    %22 = top_tokens %12, %21 : [rows, top_tokens] int32
    %23 = gather_columns %12, %22 : [rows, top_tokens] float32
    return %19, %20, %22, %23
    ");
}

#[test]
fn processors_run_in_their_order() {
    let everything = printed(|p| {
        (p.repetition_penalty, p.frequency_penalty, p.presence_penalty, p.temperature) = (1.2, 0.5, 0.5, 0.9);
        (p.min_new_tokens, p.logit_bias, p.watermark_delta) = (3, bias(), 2.0);
        (p.top_k, p.top_p, p.min_p, p.typical_p, p.is_greedy) = (5, 0.9, 0.05, 0.8, false);
    });
    let names = [
        "watermark_delta",
        "add_logit_bias",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "held_back",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "seed_low",
    ];
    let places: Vec<usize> = names.iter().map(|name| everything.find(name).unwrap()).collect();
    assert!(places.is_sorted(), "{everything}");
}

#[test]
fn only_masked_steps_run_masks() {
    let params = SamplingParams::greedy();
    let mut samplers = Samplers::new(10);
    let (free, masked) = (samplers.graph(&params).unwrap(), samplers.masked_graph(&params).unwrap());
    assert!(!free.to_string().contains("is_allowed"));
    insta::assert_snapshot!(masked, @r"
    state 0 = token_history per position : [] int32
    %0 = argument 0 : [rows, 10] float32
    %1 = is_allowed : [rows, 10] bool
    %2 = constant -inf : [] float32
    %3 = select %1, %0, %2 : [rows, 10] float32
    %4 = log_softmax %3 : [rows, 10] float32
    %5 = arg_max %3 : [rows] int32
    %6 = append_token %5 : [rows] int32
    %7 = gather_columns %4, %6 : [rows] float32
    return %6, %7
    ");
}

#[test]
fn graphs_are_built_once() {
    let mut samplers = Samplers::new(10);
    let first = samplers.graph(&SamplingParams::greedy()).unwrap();
    let second = samplers.graph(&SamplingParams { seed: 5, ..SamplingParams::greedy() }).unwrap();
    assert!(Arc::ptr_eq(&first, &second));
}

#[test]
fn greedy_rows_have_neutral_inputs() {
    let mut inputs = SamplingInputs::default();
    let params = SamplingParams {
        temperature: 0.5,
        top_k: 3,
        seed: 1 << 40 | 5,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        ..SamplingParams::greedy()
    };
    inputs.push(&params, 4);
    inputs.push(&SamplingParams { is_greedy: false, ..params.clone() }, 6);
    let column = |name| inputs.column(name).to_vec();
    assert_eq!(column("temperature"), [1.0, 0.5].map(Number::F32));
    assert_eq!(column("top_k"), [0, 3].map(Number::I32));
    assert_eq!(column("frequency_penalty"), [0.5, 0.5].map(Number::F32));
    assert_eq!(column("presence_penalty"), [0.25, 0.25].map(Number::F32));
    assert_eq!(column("seed_low"), [0, 5].map(Number::U32));
    assert_eq!(column("seed_high"), [0, 256].map(Number::U32));
    assert_eq!(column("num_generated"), [4, 6].map(Number::U32));
}

#[test]
fn columns_have_names_of_their_own() {
    let names: Vec<&str> = columns().map(|column| column.name).collect();
    let distinct: HashSet<&str> = names.iter().copied().collect();
    assert_eq!(names.len(), distinct.len(), "{names:?}");
}

#[test]
fn every_processor_is_used_by_the_parameters_that_use_all() {
    let params = SamplingParams::every_processor();
    let row = Demand { params: &params, is_masked: true };
    assert!(PROCESSORS.iter().all(|processor| processor.is_on(&row)));
}

#[test]
fn a_batch_needs_what_its_rows_need() {
    let of = |change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams::greedy();
        change(&mut params);
        BatchSampler::of(&params)
    };
    assert_eq!(of(|_| ()), BatchSampler::Greedy);
    assert_eq!(of(|p| p.is_greedy = false), BatchSampler::Drawing);
    assert_eq!(of(|p| (p.is_greedy, p.typical_p) = (false, 0.5)), BatchSampler::Drawing);
    assert_eq!(of(|p| (p.is_greedy, p.min_p) = (false, 0.1)), BatchSampler::Drawing);
    assert_eq!(of(|p| p.repetition_penalty = 1.1), BatchSampler::Penalising);
    assert_eq!(of(|p| p.presence_penalty = -0.1), BatchSampler::Penalising);
    assert_eq!(of(|p| p.min_new_tokens = 1), BatchSampler::Penalising);
    assert_eq!(of(|p| p.top_n_tokens = 1), BatchSampler::Penalising);
    assert_eq!(of(|p| (p.logit_bias, p.top_n_tokens) = (bias(), 1)), BatchSampler::Everything);
    assert_eq!(of(|p| p.watermark_delta = 2.0), BatchSampler::Everything);
    assert!(BatchSampler::ALL.is_sorted());
}
