//! Tests of the text of programs. Cached programs whose text has changed are useless, so snapshots of some programs
//! show a change.

use std::sync::Arc;

use backend::{ModelGraphs, StateLayout};
use devices::{DecodeAttention, DecodeLoop, HeadForm};
use model::graph::{AttentionSpec, Pairing, RotarySpec, StateSpec};
use model::sampling::{BatchSampler, TargetReport, target_graph};

use super::*;
use crate::program::{ProgramForm, ProgramKey, Programs};

const VOCAB_SIZE: usize = 10;
const HIDDEN_SIZE: usize = 8;
const HEAD_DIM: usize = 4;

/// Returns the graphs of a decoder with one layer, of its output head, of the report on prompt tokens (targets), and of
/// the sampler with every processor.
pub(super) fn graphs() -> Vec<Arc<Graph>> {
    let ModelGraphs { decoder, logits } = model();
    let targets = target_graph(VOCAB_SIZE, TargetReport::TopTokens).unwrap();
    vec![decoder, logits, targets, BatchSampler::Everything.graph(VOCAB_SIZE).unwrap()]
}

pub(super) fn model() -> ModelGraphs {
    model_with(HEAD_DIM)
}

/// Returns the graphs of the same model with heads of `head_dim` elements.
pub(super) fn model_with(head_dim: usize) -> ModelGraphs {
    let mut graph = Graph::default();
    let given = graph.input(Input::TokenIds);
    let ids = graph.current_tokens(given).unwrap();
    let table = graph.weight(&weight("table", &[VOCAB_SIZE, HIDDEN_SIZE], FloatType::Bf16));
    let x = graph.embedding(table, ids).unwrap();
    let attended = attention(&mut graph, x, head_dim);
    let x = graph.binary(Binary::Add, x, attended).unwrap();
    let normed = norm(&mut graph, x, "mlp_norm");
    let [gate, up] = ["gate", "up"].map(|name| linear(&mut graph, normed, name, [12, HIDDEN_SIZE]));
    let gated = graph.gated(Activation::Silu, gate, up).unwrap();
    let down = linear(&mut graph, gated, "down", [HIDDEN_SIZE, 12]);
    let x = graph.binary(Binary::Add, x, down).unwrap();
    let x = norm(&mut graph, x, "norm");
    let decoder = graph.finish(&[x]);
    let mut logits = Graph::default();
    let hidden = rows(&mut logits, 0, &[HIDDEN_SIZE], DType::F32);
    let output = linear(&mut logits, hidden, "head", [VOCAB_SIZE, HIDDEN_SIZE]);
    ModelGraphs { decoder, logits: logits.finish(&[output]) }
}

fn attention(graph: &mut Graph, x: Value, head_dim: usize) -> Value {
    let frequencies = (0..head_dim as i32 / 2).map(|index| 0.01_f32.powi(index)).collect();
    let spec = Arc::new(RotarySpec { frequencies, amplitude: 1.0, pairing: Pairing::Halves });
    let positions = graph.input(Input::Positions);
    let x = norm(graph, x, "attention_norm");
    let [q, k, v] = [("q", 2), ("k", 1), ("v", 1)].map(|(name, heads)| {
        let x = linear(graph, x, name, [heads * head_dim, HIDDEN_SIZE]);
        graph.reshape(x, &[heads, head_dim]).unwrap()
    });
    let [q, k] = [q, k].map(|x| graph.rotary(x, positions, &spec).unwrap());
    let [keys, values] = ["keys", "values"].map(|name| graph.state(&StateSpec::of_tokens(name, &[1, head_dim], None)));
    let spec = AttentionSpec { keys, values: values.into(), scale: 0.5, window: None, soft_cap: None, slopes: None };
    let attended = graph.paged_attention([q, k, v], None, spec).unwrap();
    let attended = graph.reshape(attended, &[2 * head_dim]).unwrap();
    linear(graph, attended, "o", [HIDDEN_SIZE, 2 * head_dim])
}

fn linear(graph: &mut Graph, x: Value, name: &str, shape: [usize; 2]) -> Value {
    let weight = graph.weight(&weight(name, &shape, FloatType::Bf16));
    graph.linear(x, weight, None).unwrap()
}

fn norm(graph: &mut Graph, x: Value, name: &str) -> Value {
    let weight = graph.weight(&weight(name, &[HIDDEN_SIZE], FloatType::Bf16));
    graph.rms_norm(x, weight, 1e-5, 0.0).unwrap()
}

fn programs_of(model: &ModelGraphs) -> Programs {
    let layout = StateLayout { num_slots: 2, num_blocks: 4, max_total_tokens: 32, max_batch_prefill_tokens: 32 };
    let form = ProgramForm {
        min_decode_rows: 2,
        decode_heads: HeadForm::Split,
        decode_loop: DecodeLoop::EveryRow,
        decode_attention: DecodeAttention::Loop,
        chunk_bytes: 16 << 20,
        lanes: 1,
        fixed_contexts: &[],
        kv_dtype: Some(DType::F32),
    };
    Programs::new(model, layout, 1, form)
}

fn programs() -> Programs {
    programs_of(&model())
}

const DECODER: ProgramKey = ProgramKey::Decoder { rows: 2, tokens_per_row: 1, context: None };
const SAMPLER: ProgramKey = ProgramKey::Sampler { rows: 2, sampler: BatchSampler::Greedy };

#[test]
fn the_program_of_a_decoder() {
    insta::assert_snapshot!(programs().print(DECODER).unwrap().text);
}

#[test]
fn the_program_of_a_greedy_sampler() {
    insta::assert_snapshot!(programs().print(SAMPLER).unwrap().text);
}

#[test]
fn the_program_of_a_decoder_of_integers() {
    let programs = programs_of(&model().quantized(Rounding::Int8));
    insta::assert_snapshot!(programs.print(DECODER).unwrap().text);
}

/// A text contains nothing that differs between runs, such as the order of a hash map.
#[test]
fn the_same_program_is_the_same_text() {
    let everything = ProgramKey::Sampler { rows: 2, sampler: BatchSampler::Everything };
    let prefill = ProgramKey::Decoder { rows: 1, tokens_per_row: 32, context: None };
    let penalising = ProgramKey::Sampler { rows: 2, sampler: BatchSampler::Penalising };
    let targets = ProgramKey::Targets { tokens: 32 };
    let others = [targets, ProgramKey::CachedTokens, ProgramKey::Clear];
    for key in [DECODER, prefill, SAMPLER, penalising, everything].into_iter().chain(others) {
        let [first, second] = [(); 2].map(|()| programs().print(key).unwrap());
        assert_eq!(first.text, second.text, "{key}");
        assert_eq!(first.weights, second.weights, "{key}");
    }
}
